"""Tasks as rows: find, read, write and end them; their given names; and the expiry of delays and leases.

Expiry happens inside the next verb (ADR 2): due tasks become ready (or dead), a bounded number at a time.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from queue_core import semantics
from queue_core.attempts.attempt import MAX_ATTEMPTS, attempts_of, attempts_text, with_attempt
from queue_core.clock import Instant, after
from queue_core.fast_values import replaced
from queue_core.limits import LARGEST_PAYLOAD_BYTES
from queue_core.semantics import LeaseEnd
from queue_core.stats import FinishedLease
from queue_core.stores.rare_text import set_rare_text
from queue_core.stores.sqlite.counters import DELAYED, DIED, GAUGE_OF_STATE, LEASED, TOTAL_OF_OUTCOME
from queue_core.stores.sqlite.driver import Cell, Row, SqliteConnection
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import Progress, StoredTask, TaskState

LONG_PAYLOAD_BYTES = 2048
MAX_EXPIRED_PER_CALL = 500
NAMES_PRUNED_PER_ADD = 2
NAME_GRACE_SECONDS = 60.0
"""A name's row is kept for so long after the name is free again, as a clock may be set back a little."""

Refusal = Literal["exists", "tombstoned"]

_CHOSEN = re.compile(r"_([0-9]{1,18})")

# Everything but what `completed` adds, as a page of tasks is found among thousands, and each may have a checkpoint of
# 16 KiB; of the payload they only say whether it is a long one.
COLUMNS = (
    "id, tag, state, eta, ready_at, added_at, leases, leased_at, worker, reason, name, spent,"
    " payload IS NULL AS is_long, max_leases, priority, headers"
)
REMOVED_COLUMNS = "id, tag, state, name, payload IS NULL AS is_long"
"""The columns that a removal reads of a task that nobody has leased."""
REMOVED_WIDTH = 5
"""How many columns these are."""
_CHANGED = "state = ?, eta = ?, ready_at = ?, leases = ?, leased_at = ?, worker = ?, reason = ?, spent = ?"
_WRITE = f"UPDATE tasks SET {_CHANGED} WHERE id = ?"  # noqa: S608
_LINES = "substr(attempts, 1, instr(attempts || char(9), char(9)) - 1)"
"""The lines of the attempts without the traceback behind them."""
_WRITE_ENDED = (
    f"UPDATE tasks SET {_CHANGED}, attempts = CASE WHEN attempts IS NULL THEN ?10"  # noqa: S608
    f" WHEN length(attempts) - length(replace(attempts, char(10), '')) >= {MAX_ATTEMPTS - 1}"
    f" THEN substr({_LINES}, instr(attempts, char(10)) + 1) || char(10) || ?10"
    f" ELSE {_LINES} || char(10) || ?10 END WHERE id = ?9"
)
"""Appends a line to the attempts, without the first where there are as many as are kept; parses none of them."""
_REPORT = "UPDATE tasks SET progress = coalesce(?, progress), checkpoint = coalesce(?, checkpoint) WHERE id = ?"
_REST = (
    "SELECT coalesce(substr(coalesce(tasks.payload, payloads.payload), 1, ?), x''), attempts, progress,"
    " checkpoint FROM tasks LEFT JOIN payloads USING (id) WHERE id = ?"
)


Form = Literal["one", "run", "list"]
"""The form of a statement that finds rows by their ids. One statement over a list takes three fifths of the time of as
many statements; over a run of ids, which tasks that were added together have, a little over two fifths."""

_CONDITIONS: dict[Form, str] = {
    "one": "id = ?",
    "run": "id BETWEEN ? AND ?",
    "list": "id IN (SELECT value FROM json_each(?))",
}


def by_ids(sql: str) -> dict[Form, str]:
    """Return a statement in each form; `{ids}` stands for its condition."""
    return {form: sql.replace("{ids}", condition) for form, condition in _CONDITIONS.items()}


def ready_rows(columns: str) -> str:
    """Return a statement, without an order, for these columns of all ready tasks of queue ?1, tagged or not.

    Those with a priority are not among them.
    """
    return (
        f"SELECT {columns} FROM tasks INDEXED BY tasks_ready WHERE queue = ?1 AND state = 0 AND tag > 0"  # noqa: S608
        f" UNION ALL SELECT {columns} FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = -?1 AND state = 0"
    )


_LOAD = by_ids(f"SELECT {COLUMNS} FROM tasks NOT INDEXED WHERE {{ids}} AND queue = ?")  # noqa: S608
_REMOVE = by_ids("DELETE FROM tasks WHERE {ids}")
_REMOVE_PAYLOADS = by_ids("DELETE FROM payloads WHERE {ids}")


def load(connection: SqliteConnection, queue: QueueRow, ids: list[int]) -> list[Row]:
    """Return the rows, without payloads, of those ids that are tasks of this queue."""
    form, cells = among(ids)
    return connection.execute(_LOAD[form], (*cells, queue.id)).fetchall()


def task_of(session: SqliteSession, queue: QueueRow, row: Row) -> StoredTask:
    """Return the task of a row that was selected as `COLUMNS`, without what `completed` adds."""
    task = StoredTask(
        row[0],
        queue.spec.name,
        b"",
        row[3],
        row[5],
        row[10],
        session.tag(row[1]),
        state_of(row),
        row[6],
        row[7],
        row[4],
        row[8],
        row[9],
        spent_of(row[11]),
        row[13],
        priority=row[14] or 0,
    )
    return task if row[15] is None else set_rare_text(task, row[15])


def state_of(row: Row) -> TaskState:
    """Return the state of a row that was selected as `COLUMNS`: a ready task's is stored as its priority, negative."""
    return TaskState(max(row[2], 0))


def stored_state(state: TaskState, priority: int) -> int:
    """Return the state of a task of this priority as stored."""
    return -priority if state is TaskState.READY else int(state)


def long_payload_of(connection: SqliteConnection, task_id: int) -> bytes:
    """Return a task's long payload; a short one is in its row."""
    row = connection.execute("SELECT payload FROM payloads WHERE id = ?", (task_id,)).fetchone()
    assert row is not None, "it is written and deleted with its task"
    return bytes(row[0])


def completed(
    connection: SqliteConnection, task: StoredTask, *, payload_bytes: int = LARGEST_PAYLOAD_BYTES
) -> StoredTask:
    """Return a task of `task_of` with its payload, cut to `payload_bytes`, attempts, progress and checkpoint.

    An attempt that it has already is one that is not written yet, and follows those stored.
    """
    row = connection.execute(_REST, (payload_bytes, task.id)).fetchone()
    assert row is not None, "its row was read in the same transaction"
    payload, attempts, progress, checkpoint = row
    return replaced(
        task,
        payload=payload,
        attempts=reduce(with_attempt, task.attempts, attempts_of(attempts)),
        progress=progress_of(progress),
        checkpoint=checkpoint,
    )


def write(connection: SqliteConnection, tasks: Iterable[StoredTask]) -> None:
    """Write the columns of tasks that may change, but for attempts and reports."""
    connection.executemany(_WRITE, [_changed(task) for task in tasks])


def write_reports(connection: SqliteConnection, tasks: Iterable[StoredTask]) -> None:
    """Write the progress and the checkpoints that renewals brought; few do."""
    reports = [
        (progress_text(task.progress), task.checkpoint, task.id)
        for task in tasks
        if task.progress is not None or task.checkpoint is not None
    ]
    if reports:
        connection.executemany(_REPORT, reports)


def _changed(task: StoredTask) -> tuple[Cell, ...]:
    return (
        stored_state(task.state, task.priority),
        task.eta,
        task.ready_at,
        task.leases,
        task.leased_at,
        task.worker,
        task.reason,
        spent_text(task.spent),
        task.id,
    )


def removed_columns(row: Row) -> Row:
    """Return what of a row selected as `COLUMNS` is in `REMOVED_COLUMNS`."""
    return row[0], row[1], row[2], row[10], row[12]


def remove(session: SqliteSession, queue: QueueRow, rows: Sequence[Row], *, at: Instant) -> None:
    """Delete the tasks of rows selected as `REMOVED_COLUMNS`, and tombstone their given names.

    Counters are not changed.
    """
    remove_ids(session, [row[0] for row in rows], long=[row[0] for row in rows if row[4]])
    named = [row[3] for row in rows if row[3] is not None]
    if named:
        tombstone_names(session.connection, queue, named, at=at)


def remove_ids(session: SqliteSession, ids: list[int], *, long: list[int]) -> None:
    """Delete tasks by id, and the payloads of `long`, those whose payload is long."""
    form, cells = among(ids)
    session.cursor.execute(_REMOVE[form], cells)
    if long:
        form, cells = among(long)
        session.cursor.execute(_REMOVE_PAYLOADS[form], cells)


def remove_one(session: SqliteSession, task_id: int, *, is_long: bool) -> None:
    """Delete one task, and its payload if that is long."""
    session.cursor.execute(_REMOVE["one"], (task_id,))
    if is_long:
        session.cursor.execute(_REMOVE_PAYLOADS["one"], (task_id,))


def among(ids: list[int]) -> tuple[Form, tuple[Cell, ...]]:
    """Return the form of a statement that finds the rows of these ids, which are distinct, and its parameters."""
    if len(ids) == 1:
        return "one", (ids[0],)
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        return "run", (ids[0], ids[-1])
    return "list", (f"[{','.join(map(str, ids))}]",)


def end(session: SqliteSession, queue: QueueRow, row: Row, ending: LeaseEnd) -> FinishedLease:
    """Apply the end of a lease of a task of `task_of`: to its row, its counters and the samples."""
    finished = ending.finished
    changes = [(LEASED, -1)]
    if finished.outcome != "removed":
        changes.append((TOTAL_OF_OUTCOME[finished.outcome], 1))
    if finished.died:
        changes.append((DIED, 1))
    if ending.task is None:
        remove(session, queue, [removed_columns(row)], at=finished.ended_at)
    else:
        task = kept(queue, row[1], ending.task)
        session.connection.execute(_WRITE_ENDED, (*_changed(task), attempts_text(task.attempts)))
        changes.append((GAUGE_OF_STATE[task.state], 1))
    session.counts.change(queue.whole, row[1], changes)
    session.record(queue, finished)
    return finished


def kept(queue: QueueRow, tag_id: int, task: StoredTask) -> StoredTask:
    """Return a task as it is kept: one of a lane that becomes ready is held until its lane admits it."""
    state = queue.state_of(tag_id, task.state)
    return task if state is task.state else replaced(task, state=state)


def spent_of(text: str | None) -> tuple[Instant, ...]:
    """Parse the ends of leases that were cut short, stored as decimals joined by commas; mostly there are none."""
    return tuple(Instant(int(part)) for part in text.split(",")) if text else ()


def spent_text(spent: Sequence[Instant]) -> str | None:
    """Return `spent` as stored."""
    return ",".join(map(str, spent)) if spent else None


def progress_of(text: str | None) -> Progress | None:
    """Parse what `progress_text` wrote."""
    return None if text is None else Progress(*json.loads(text))


def progress_text(progress: Progress | None) -> str | None:
    """Return progress as stored, the JSON array of its fraction and text; None for none."""
    if progress is None:
        return None
    return json.dumps([progress.fraction, progress.text], ensure_ascii=False, separators=(",", ":"))


# -- given names ----------------------------------------------------------------------------------------------------


def refusal_of_name(connection: SqliteConnection, queue: QueueRow, name: str, *, now: Instant) -> Refusal | None:
    """Return why `name` can't be added: `exists` or `tombstoned`; None: it is free."""
    row = connection.execute("SELECT task, until FROM names WHERE queue = ? AND name = ?", (queue.id, name)).fetchone()
    if row is None:
        return None
    if row[0] is not None:
        return "exists"
    return "tombstoned" if row[1] > now else None


def give_names(
    connection: SqliteConnection, queue: QueueRow, names: Sequence[tuple[str, int]], *, now: Instant
) -> None:
    """Give names to tasks, and delete a few names that are free again."""
    connection.executemany("REPLACE INTO names VALUES (?, ?, ?, NULL)", [(queue.id, *name) for name in names])
    connection.execute(
        "DELETE FROM names WHERE (queue, name) IN (SELECT queue, name FROM names WHERE until <= ? LIMIT ?)",
        (after(now, -NAME_GRACE_SECONDS), NAMES_PRUNED_PER_ADD * len(names)),
    )


def tombstone_names(connection: SqliteConnection, queue: QueueRow, names: Sequence[str], *, at: Instant) -> None:
    """Tombstone the names of deleted tasks: they stay taken for the queue's retention."""
    until = after(at, queue.spec.name_retention_seconds)
    connection.executemany(
        "UPDATE names SET task = NULL, until = ? WHERE queue = ? AND name = ?",
        [(until, queue.id, name) for name in names],
    )


def task_id_of(connection: SqliteConnection, queue: QueueRow, name: str) -> int | None:
    """Return the task id of a name: that of a given name, or the digits of a chosen one, whose task may be gone."""
    row = connection.execute("SELECT task FROM names WHERE queue = ? AND name = ?", (queue.id, name)).fetchone()
    if row is not None:
        return None if row[0] is None else int(row[0])
    chosen = _CHOSEN.fullmatch(name)
    return int(chosen[1]) if chosen else None


# -- expiry ---------------------------------------------------------------------------------------------------------


_DUE_AT = (
    "SELECT (SELECT min(eta) FROM tasks INDEXED BY tasks_leased WHERE queue = ?1 AND state = 2),"
    " CASE ?3 AND (SELECT delayed FROM counts WHERE id = ?2) = 0 WHEN 1 THEN NULL ELSE"
    " (SELECT min(eta) FROM tasks INDEXED BY tasks_delayed WHERE queue = ?1 AND state = 1) END"
)
"""Selects when the first lease and the first delay of queue ?1 end; its row in `counts` is ?2, current if ?3 is 1."""
_DUE_DELAYED = (
    "SELECT id, tag, eta FROM tasks INDEXED BY tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?"
    " ORDER BY eta, id LIMIT ?"
)
_DUE_LEASED = (
    f"SELECT {COLUMNS} FROM tasks INDEXED BY tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?"  # noqa: S608
    " ORDER BY eta, id LIMIT ?"
)


_DELAY_OVER = "UPDATE tasks SET state = CASE WHEN ?2 THEN 4 ELSE -coalesce(priority, 0) END WHERE id = ?1"


@dataclass(frozen=True, slots=True)
class ExpiredLeases:
    """Leases that expired, and the (eta, id) of the first due task left, if any: only tasks before it may be leased.

    `more_due`: whether there is anything left that is due.
    """

    expired: tuple[FinishedLease, ...] = ()
    horizon: tuple[int, int] | None = None
    more_due: bool = False


NOTHING_DUE = ExpiredLeases()


def is_due(session: SqliteSession, queue: QueueRow, *, now: Instant) -> bool:
    """Return whether a lease of the queue has ended, or a delay is over."""
    ends: Instant | None
    begins: Instant | None
    cells = (queue.id, queue.whole, int(not session.counts.unwritten))
    ((ends, begins),) = session.cursor.execute(_DUE_AT, cells).fetchall()
    return (ends is not None and ends <= now) or (begins is not None and begins <= now)


def expire_due(
    session: SqliteSession, queue: QueueRow, *, now: Instant, limit: int = MAX_EXPIRED_PER_CALL
) -> ExpiredLeases:
    """Expire the first `limit` due tasks by eta: delayed ones become ready, leases end."""
    if not is_due(session, queue, now=now):
        return NOTHING_DUE
    delayed = session.connection.execute(_DUE_DELAYED, (queue.id, now, limit + 1)).fetchall()
    leased = session.connection.execute(_DUE_LEASED, (queue.id, now, limit + 1)).fetchall()
    session.has_changes = True
    horizon = None
    if len(delayed) + len(leased) > limit:
        horizon = sorted([(row[2], row[0]) for row in delayed] + [(row[3], row[0]) for row in leased])[limit]
        delayed = [row for row in delayed if (row[2], row[0]) < horizon]
        leased = [row for row in leased if (row[3], row[0]) < horizon]
    states = [queue.state_of(row[1], TaskState.READY) for row in delayed]
    if delayed:
        cells = [(row[0], state is TaskState.HELD) for row, state in zip(delayed, states, strict=True)]
        session.connection.executemany(_DELAY_OVER, cells)
    for row, state in zip(delayed, states, strict=True):
        session.counts.change(queue.whole, row[1], ((DELAYED, -1), (GAUGE_OF_STATE[state], 1)))
    expired = tuple([expire_lease(session, queue, row, now=now) for row in leased])
    return ExpiredLeases(expired, horizon, horizon is not None)


def expire_used_up(session: SqliteSession, queue: QueueRow, name: str, *, now: Instant) -> bool:
    """Delete the task of a given name if its last lease has expired; return whether it was."""
    if queue.spec.on_exhausted != "delete":
        return False
    task_id = task_id_of(session.connection, queue, name)
    for row in [] if task_id is None else load(session.connection, queue, [task_id]):
        ending = semantics.expire(task_of(session, queue, row), queue.spec, now=now)
        if isinstance(ending, LeaseEnd) and ending.task is None:
            end(session, queue, row, ending)
            return True
    return False


def expire_lease(session: SqliteSession, queue: QueueRow, row: Row, *, now: Instant) -> FinishedLease:
    """End the expired lease of a row selected as `COLUMNS`."""
    ending = semantics.expire(task_of(session, queue, row), queue.spec, now=now)
    assert isinstance(ending, LeaseEnd), "a due LEASED task ends its lease"
    return end(session, queue, row, ending)
