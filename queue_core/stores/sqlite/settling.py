"""Lets time act: due tasks become ready (or dead), a bounded number at a time, inside the verb that looks next."""

from dataclasses import dataclass

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.semantics import Ending
from queue_core.stats import FinishedLease
from queue_core.stores.sqlite.counts import DELAYED, READY
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.names import task_id_of
from queue_core.stores.sqlite.rows import COLUMNS, end, load, task_of
from queue_core.stores.sqlite.step import QueueRow, Step

SETTLED_PER_CALL = 500

_DUE_AT = (
    "SELECT (SELECT min(eta) FROM tasks INDEXED BY tasks_leased WHERE queue = ?1 AND state = 2),"
    " CASE (SELECT delayed FROM counts WHERE id = ?2) WHEN 0 THEN NULL ELSE"
    " (SELECT min(eta) FROM tasks INDEXED BY tasks_delayed WHERE queue = ?1 AND state = 1) END"
)
"""When the first lease of queue ?1, which row ?2 counts, ends, and the first delay there."""
_DUE_DELAYED = (
    "SELECT id, tag, eta FROM tasks INDEXED BY tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?"
    " ORDER BY eta, id LIMIT ?"
)
_DUE_LEASED = (
    f"SELECT {COLUMNS} FROM tasks INDEXED BY tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?"  # noqa: S608
    " ORDER BY eta, id LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Settled:
    """Leases found expired, and the (eta, id) of the first due task left; those before it may be leased in order."""

    expired: tuple[FinishedLease, ...] = ()
    horizon: tuple[int, int] | None = None


NOTHING_DUE = Settled()


def is_due(step: Step, queue: QueueRow, *, now: Instant) -> bool:
    """Whether time has something to do in a queue: a lease that has ended, a delay that is over."""
    ends: Instant | None
    begins: Instant | None
    ((ends, begins),) = step.cursor.execute(_DUE_AT, (queue.id, queue.whole)).fetchall()
    return (ends is not None and ends <= now) or (begins is not None and begins <= now)


def settle(step: Step, queue: QueueRow, *, now: Instant, limit: int = SETTLED_PER_CALL) -> Settled:
    """Settle the first `limit` due tasks by eta."""
    if not is_due(step, queue, now=now):
        return NOTHING_DUE
    delayed = step.connection.execute(_DUE_DELAYED, (queue.id, now, limit + 1)).fetchall()
    leased = step.connection.execute(_DUE_LEASED, (queue.id, now, limit + 1)).fetchall()
    step.told = True
    horizon = None
    if len(delayed) + len(leased) > limit:
        horizon = sorted([(row[2], row[0]) for row in delayed] + [(row[3], row[0]) for row in leased])[limit]
        delayed = [row for row in delayed if (row[2], row[0]) < horizon]
        leased = [row for row in leased if (row[3], row[0]) < horizon]
    if delayed:
        step.connection.executemany("UPDATE tasks SET state = 0 WHERE id = ?", [(row[0],) for row in delayed])
        for row in delayed:
            step.counts.change(queue.whole, row[1], ((DELAYED, -1), (READY, 1)))
    return Settled(tuple([expire(step, queue, row, now=now) for row in leased]), horizon)


def settle_used_up(step: Step, queue: QueueRow, name: str, *, now: Instant) -> bool:
    """Settle the task of a given name if it went with the end of its last lease; whether it did."""
    if queue.spec.on_exhausted != "delete":
        return False
    task_id = task_id_of(step.connection, queue, name)
    for row in [] if task_id is None else load(step.connection, queue, [task_id]):
        ending = semantics.settle(task_of(step, queue, row), queue.spec, now=now)
        if isinstance(ending, Ending) and ending.task is None:
            end(step, queue, row, ending)
            return True
    return False


def expire(step: Step, queue: QueueRow, row: Row, *, now: Instant) -> FinishedLease:
    """End the expired lease of a row selected as `rows.COLUMNS`."""
    ending = semantics.settle(task_of(step, queue, row), queue.spec, now=now)
    assert isinstance(ending, Ending), "a due LEASED task ends its lease"
    return end(step, queue, row, ending)
