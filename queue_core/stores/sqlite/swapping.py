"""One finished lease for the next: what becomes of both tasks waits in a small table, one page to write, not four.

Such a lease mostly ends soon. Its task is then deleted with others, and never was in the index of leased ones. Nobody
sees swaps wait: they are sorted in before any other verb but the add of a single task, in whichever process, and before
a reader's snapshot.
"""

from collections.abc import Sequence

from queue_core.building import LazyList
from queue_core.clock import Instant, after
from queue_core.store import Deletion, Granted, LeaseRequest
from queue_core.stores.sqlite import settling
from queue_core.stores.sqlite.counts import DELETED, LEASED, LEASES, READY
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.ending import deleted_samples, outcomes_of
from queue_core.stores.sqlite.exchanging import Outcomes, lease_of_row, new_granted, plain_request
from queue_core.stores.sqlite.leasing import first, first_ready
from queue_core.stores.sqlite.names import take_back
from queue_core.stores.sqlite.read_ahead import READ_AT_ONCE
from queue_core.stores.sqlite.rows import remove_ids
from queue_core.stores.sqlite.samples import Sample
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import TaskState, parse_token

MAX_SWAPS = 48
ROWS_PER_SWAP = 2
"""How many rows may wait. An exchange makes one, or two where the lease that ends was sorted in meanwhile."""

_READY = int(TaskState.READY)
_LEASED = int(TaskState.LEASED)
_LEASED_BY_SWAP = ((READY, -1), (LEASED, 1), (LEASES, 1))
_DELETED_BY_SWAP = {_READY: ((READY, -1), (LEASES, 1), (DELETED, 1)), _LEASED: ((LEASED, -1), (DELETED, 1))}
"""What becomes of counters, of a task that is leased, and of one that is deleted: by its state in `tasks`."""

_FIRST = first(" AND id NOT IN (SELECT id FROM swaps)")
_TASK = (
    "t.id, t.tag, iif(t.state = 0, t.eta, t.ready_at), t.leases + (t.state = 0), coalesce(s.leased_at, t.leased_at),"
    " coalesce(s.worker, t.worker), t.name, t.payload IS NULL, t.state"
)
"""What a deletion needs of a leased task, whether `tasks` has it as leased or still as ready."""
_HELD = (
    f"SELECT {_TASK} FROM tasks t LEFT JOIN swaps s ON s.id = t.id WHERE t.id = ? AND t.queue = ?"  # noqa: S608
    " AND iif(s.id IS NULL, t.state = 2, s.until IS NOT NULL)"
)
"""That one, if it is under a lease; none has ended unrenewed, as none is due."""
_IS_OURS = "SELECT 1 FROM swaps WHERE id = ? AND leased_at = ? AND until IS NOT NULL"
_IS_TAKEN = "SELECT 1 FROM swaps WHERE id = ?"
_ALL = (
    f"SELECT {_TASK}, t.queue, s.until, s.deleted_at FROM swaps s CROSS JOIN tasks t ON t.id = s.id"  # noqa: S608
    " ORDER BY s.deleted_at"
)
_LEASE = "INSERT INTO swaps VALUES (?, ?, ?, NULL, ?)"
_DELETE = "UPDATE swaps SET until = NULL, deleted_at = ? WHERE id = ?"
_DELETE_SORTED = "INSERT INTO swaps VALUES (?, ?, NULL, ?, ?)"
_TAKE = (
    "UPDATE tasks SET state = 2, ready_at = eta, eta = ?, leases = leases + 1, worker = ?, leased_at = ? WHERE id = ?"
)


def swap(
    step: Step, name: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Outcomes, Granted] | None:
    """See `Transaction.exchange`; None: nothing is done here.

    That is so for whatever `exchange_one` leaves alone, without a deletion, for a token that is not current, where no
    task is to be leased before those that wait, where enough has been swapped, and where payloads are limited, as only
    tasks are measured.
    """
    if not deletions or step.known.is_limited or step.swapped > MAX_SWAPS - ROWS_PER_SWAP:
        return None
    if step.swapped_until is not None and step.swapped_until <= now:
        return None
    plain = plain_request(step, name, deletions, request)
    if plain is None:
        return None
    queue, seconds, tag_id = plain
    fence = parse_token(deletions[0].token)
    ahead = step.known.ahead
    held = ahead.leases.get((queue.id, *fence))
    if ahead.is_shared and (held is None or not step.cursor.execute(_IS_OURS, fence).fetchall()):
        ahead.forget()
        held = None
    row = _next_ready(step, queue, tag_id)
    if row is not None and _is_next(step, queue, row, now=now):
        held = held or _held(step, queue, fence)
        if held is not None:
            step.told = True
            outcomes = _delete(step, queue, held, now=now)
            return outcomes, _lease(step, queue, row, end=after(now, seconds), worker=request.worker, now=now)
    return None


def _is_next(step: Step, queue: QueueRow, row: Row, *, now: Instant) -> bool:
    """Whether a task may be leased before all that wait, and nothing is due."""
    if row[7] is not None:
        return False
    arrived_since = step.arrived_since()
    if arrived_since is not None and arrived_since < row[0]:
        return False
    due_at = _due_at(step, queue)
    return due_at is None or due_at > now


def _next_ready(step: Step, queue: QueueRow, tag_id: int | None) -> Row | None:
    """The first ready task of a tag, or of all, that no swap has taken: `rows` as `First` has them."""
    ahead = step.known.ahead
    rows = ahead.ready.get((queue.id, tag_id))
    while rows:
        if rows[-1][1] not in ahead.taken and not (ahead.is_shared and _is_taken(step, rows[-1][1])):
            return rows[-1]
        rows.pop()
    sql, of = first_ready(queue, tag_id, _FIRST)
    found = step.cursor.execute(sql, (of, 1 if rows is None else READ_AT_ONCE)).fetchall()
    found.reverse()
    ahead.ready[queue.id, tag_id] = found
    return found[-1] if found else None


def _is_taken(step: Step, task_id: int) -> bool:
    return bool(step.cursor.execute(_IS_TAKEN, (task_id,)).fetchall())


def _due_at(step: Step, queue: QueueRow) -> Instant | None:
    due_at = step.known.ahead.due_at
    if queue.id not in due_at:
        due_at[queue.id] = settling.due_at(step, queue)
    return due_at[queue.id]


def _held(step: Step, queue: QueueRow, fence: tuple[int, Instant]) -> Row | None:
    """The row of a lease that is current; None: it is not."""
    task_id, leased_at = fence
    found = step.cursor.execute(_HELD, (task_id, queue.id)).fetchall()
    return found[0] if found and found[0][4] == leased_at else None


def _delete(step: Step, queue: QueueRow, held: Row, *, now: Instant) -> Outcomes:
    task_id, tag_id, _, _, leased_at, worker, _, _, state = held
    if state == _READY:
        step.cursor.execute(_DELETE, (now, task_id))
        step.known.ahead.leases.pop((queue.id, task_id, leased_at), None)
    else:
        step.cursor.execute(_DELETE_SORTED, (task_id, leased_at, now, worker))
        step.swapped += 1
    tag = step.tag(tag_id)
    return LazyList(1, lambda: outcomes_of(queue.spec.name, [held], [_sample_of(held, tag, ended_at=now)]))


def _lease(step: Step, queue: QueueRow, row: Row, *, end: Instant, worker: str, now: Instant) -> Granted:
    eta, task_id, tag_id, _, number, _, given, _, payload = row
    lease = lease_of_row(step, queue, row, end=end, worker=worker, now=now)
    step.cursor.execute(_LEASE, (task_id, lease.leased_at, end, worker))
    step.swapped += 1
    if step.swapped_until is None or end < step.swapped_until:
        step.swapped_until = end
    ahead = step.known.ahead
    ahead.taken.add(task_id)
    held = (task_id, tag_id, eta, number + 1, lease.leased_at, worker, given, payload is None, _READY)
    ahead.leases[queue.id, task_id, lease.leased_at] = held
    return new_granted((lease,))


def _sample_of(row: Row, tag: str | None, *, ended_at: Instant) -> Sample:
    (sample,) = deleted_samples([row[:8]], {row[1]: tag}, now=ended_at)
    return sample


def sort_in(step: Step) -> None:
    """Put swaps where tasks are, count them, and keep the samples of leases that ended, in that order."""
    by_queue: dict[int, list[Row]] = {}
    for row in step.cursor.execute(_ALL).fetchall():
        by_queue.setdefault(row[9], []).append(row)
    step.cursor.execute("DELETE FROM swaps")
    step.swapped, step.swapped_until = 0, None
    for queue_id, rows in by_queue.items():
        ((name,),) = step.cursor.execute("SELECT name FROM queues WHERE id = ?", (queue_id,)).fetchall()
        queue = step.queue(name)
        step.now = step.now or Instant(max(row[11] or row[4] for row in rows))
        _sort_in_leases(step, queue, [row for row in rows if row[11] is None])
        _sort_in_deletions(step, queue, [row for row in rows if row[11] is not None])


def _sort_in_leases(step: Step, queue: QueueRow, rows: list[Row]) -> None:
    step.cursor.executemany(_TAKE, [(row[10], row[5], row[4], row[0]) for row in rows])
    for row in rows:
        step.counts.change(queue.whole, row[1], _LEASED_BY_SWAP)


def _sort_in_deletions(step: Step, queue: QueueRow, rows: list[Row]) -> None:
    if not rows:
        return
    remove_ids(step, [row[0] for row in rows], long=[row[0] for row in rows if row[7]])
    for row in rows:
        step.counts.change(queue.whole, row[1], _DELETED_BY_SWAP[row[8]])
        if row[6] is not None:
            take_back(step.connection, queue, [row[6]], at=row[11])
    step.note_all(queue, [_sample_of(row, step.tag(row[1]), ended_at=row[11]) for row in rows])
