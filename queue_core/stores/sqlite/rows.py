"""Between a task's row and its `Task`; the verbs that are not hot run the pure semantics over these."""

from collections.abc import Iterable, Sequence
from typing import Literal

from queue_core.clock import Instant
from queue_core.semantics import Ending
from queue_core.stats import FinishedLease
from queue_core.stores.sqlite.counts import DIED, GAUGE_OF_STATE, LEASED, TOTAL_OF_OUTCOME
from queue_core.stores.sqlite.driver import Cell, Connection, Row
from queue_core.stores.sqlite.names import take_back
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import Task, TaskState

LONG_PAYLOAD_BYTES = 2048

# Everything but the payload, of which only is told whether it is a long one.
COLUMNS = (
    "id, tag, state, eta, ready_at, added_at, leases, leased_at, worker, reason, name, spent,"
    " payload IS NULL AS is_long, max_leases"
)
_WRITE = (
    "UPDATE tasks SET state = ?, eta = ?, ready_at = ?, leases = ?, leased_at = ?, worker = ?, reason = ?, spent = ?"
    " WHERE id = ?"
)


Form = Literal["one", "run", "list"]
"""How rows are found by their ids. One statement over a list takes three fifths of the time of as many statements; over
a run of ids, which tasks that were added together have, a little over two fifths."""

_CONDITIONS: dict[Form, str] = {
    "one": "id = ?",
    "run": "id BETWEEN ? AND ?",
    "list": "id IN (SELECT value FROM json_each(?))",
}


def by_ids(sql: str) -> dict[Form, str]:
    """A statement in each form; `{ids}` stands for its condition."""
    return {form: sql.replace("{ids}", condition) for form, condition in _CONDITIONS.items()}


def ready_rows(columns: str) -> str:
    """A statement without its order: these columns of all ready tasks of queue ?1, the tagged and the untagged."""
    return (
        f"SELECT {columns} FROM tasks INDEXED BY tasks_ready WHERE queue = ?1 AND state = 0 AND tag > 0"  # noqa: S608
        f" UNION ALL SELECT {columns} FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = -?1 AND state = 0"
    )


_LOAD = by_ids(f"SELECT {COLUMNS} FROM tasks NOT INDEXED WHERE {{ids}} AND queue = ?")  # noqa: S608
_REMOVE = by_ids("DELETE FROM tasks WHERE {ids}")
_REMOVE_PAYLOADS = by_ids("DELETE FROM payloads WHERE {ids}")


def load(connection: Connection, queue: QueueRow, ids: list[int]) -> list[Row]:
    """The rows of those ids that are tasks of this queue, without their payloads."""
    form, cells = among(ids)
    return connection.execute(_LOAD[form], (*cells, queue.id)).fetchall()


def task_of(step: Step, queue: QueueRow, row: Row, *, payload: bytes = b"") -> Task:
    """The task of a row that was selected as `COLUMNS`."""
    return Task(
        row[0],
        queue.spec.name,
        payload,
        row[3],
        row[5],
        row[10],
        step.tag(row[1]),
        TaskState(row[2]),
        row[6],
        row[7],
        row[4],
        row[8],
        row[9],
        spent_of(row[11]),
        row[13],
    )


def payload_of(connection: Connection, task_id: int, payload: bytes | None) -> bytes:
    """A task's payload, from where the long ones are when it is not in the row."""
    if payload is not None:
        return payload
    row = connection.execute("SELECT payload FROM payloads WHERE id = ?", (task_id,)).fetchone()
    assert row is not None, "it is written and deleted with its task"
    return bytes(row[0])


def write(connection: Connection, tasks: Iterable[Task]) -> None:
    """Write what may change of tasks."""
    connection.executemany(
        _WRITE,
        [
            (
                int(task.state),
                task.eta,
                task.ready_at,
                task.leases,
                task.leased_at,
                task.worker,
                task.reason,
                spent_text(task.spent),
                task.id,
            )
            for task in tasks
        ],
    )


def remove(step: Step, queue: QueueRow, rows: Sequence[Row], *, at: Instant) -> None:
    """Delete the tasks of rows selected as `COLUMNS`, and hold back their given names. Counts nothing."""
    remove_ids(step, [row[0] for row in rows], long=[row[0] for row in rows if row[12]])
    named = [row[10] for row in rows if row[10] is not None]
    if named:
        take_back(step.connection, queue, named, at=at)


def remove_ids(step: Step, ids: list[int], *, long: list[int]) -> None:
    """Delete tasks by id, and the payloads of those whose payload is long."""
    form, cells = among(ids)
    step.cursor.execute(_REMOVE[form], cells)
    if long:
        form, cells = among(long)
        step.cursor.execute(_REMOVE_PAYLOADS[form], cells)


def among(ids: list[int]) -> tuple[Form, tuple[Cell, ...]]:
    """Which form of a statement finds the rows of these ids, none named twice, and what its condition takes."""
    if len(ids) == 1:
        return "one", (ids[0],)
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        return "run", (ids[0], ids[-1])
    return "list", (f"[{','.join(map(str, ids))}]",)


def end(step: Step, queue: QueueRow, row: Row, ending: Ending) -> FinishedLease:
    """Carry out the end of a lease: the task, its counters, the sample."""
    finished = ending.finished
    changes = [(LEASED, -1), (TOTAL_OF_OUTCOME[finished.outcome], 1)]
    if finished.died:
        changes.append((DIED, 1))
    if ending.task is None:
        remove(step, queue, [row], at=finished.ended_at)
    else:
        write(step.connection, [ending.task])
        changes.append((GAUGE_OF_STATE[ending.task.state], 1))
    step.counts.change(queue.whole, row[1], changes)
    step.note(queue, finished)
    return finished


def spent_of(text: str | None) -> tuple[Instant, ...]:
    """Ends of leases that were cut short, as they are kept: decimal, by commas; nothing is the rule."""
    return tuple(Instant(int(part)) for part in text.split(",")) if text else ()


def spent_text(spent: Sequence[Instant]) -> str | None:
    """How `spent` is kept."""
    return ",".join(map(str, spent)) if spent else None
