"""One finished lease for one new one: the short way through `exchange` and `lease` for who takes one task at a time.

It does what `ending.delete` and then `leasing.lease` do, without lists, and leaves to them whatever is not plain.
"""

from collections.abc import Sequence

from queue_core.building import LazyList, builder
from queue_core.clock import Instant, after
from queue_core.store import Deleted, Deletion, Granted, LeaseRequest
from queue_core.stores.sqlite.counts import DELETED, LEASED, LEASES, READY
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.ending import HELD, deleted_samples, outcomes_of
from queue_core.stores.sqlite.leasing import TAKE, first_ready, new_lease, take
from queue_core.stores.sqlite.names import take_back
from queue_core.stores.sqlite.rows import payload_of, remove_ids
from queue_core.stores.sqlite.settling import is_due
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import Lease, parse_token

_NOTHING = Granted(())

new_granted = builder(Granted)

Outcomes = Sequence[Deleted | None]


def exchange_one(
    step: Step, name: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Outcomes, Granted] | None:
    """See `Transaction.exchange`, and `Transaction.lease` without a deletion; None: nothing is done here.

    That is so for several leases or deletions, a `then`, the oldest tag or several, a lease that is too long, a queue
    that is paused or has tasks that are due, a worker that this process has not leased to since it last looked.
    """
    plain = plain_request(step, name, deletions, request)
    if plain is None:
        return None
    queue, seconds, tag_id = plain
    fence = parse_token(deletions[0].token) if deletions else None
    if is_due(step, queue, now=now):
        return None
    outcomes = [] if fence is None else _delete(step, queue, fence, now=now)
    return outcomes, _lease(step, queue, tag_id, seconds=seconds, worker=request.worker, now=now)


def plain_request(
    step: Step, name: str, deletions: Sequence[Deletion], request: LeaseRequest
) -> tuple[QueueRow, float, int | None] | None:
    """Of what asks for one lease, for one deletion at most: the queue, the lease's seconds, the row of a tag.

    None: it asks for more, or is for the general way to refuse.
    """
    if request.count != 1 or len(deletions) > 1 or (deletions and deletions[0].then) or request.tags.kind == "oldest":
        return None
    queue = step.open_queue(name)
    spec = queue.spec
    seconds = spec.lease_seconds if request.seconds is None else request.seconds
    tag_ids = step.tag_ids(queue, request.tags)
    if spec.paused or seconds > spec.max_lease_seconds or (tag_ids is not None and len(tag_ids) != 1):
        return None
    if request.worker and request.worker not in step.known.workers:
        return None
    return queue, seconds, None if tag_ids is None else tag_ids[0]


def _delete(step: Step, queue: QueueRow, fence: tuple[int, Instant], *, now: Instant) -> Outcomes:
    step.told = True
    rows = step.cursor.execute(HELD["one"], (fence[0], queue.id, now)).fetchall()
    if not rows or rows[0][4] != fence[1]:
        return [None]
    task_id, tag_id, _, _, _, _, given, is_long = rows[0]
    remove_ids(step, [task_id], long=[task_id] if is_long else [])
    if given is not None:
        take_back(step.connection, queue, [given], at=now)
    numbers = step.counts.of(queue.whole, tag_id)
    numbers[LEASED] -= 1
    numbers[DELETED] += 1
    samples = deleted_samples(rows, {tag_id: step.tag(tag_id)}, now=now)
    step.note_all(queue, samples)
    return LazyList(1, lambda: outcomes_of(queue.spec.name, rows, samples))


def _lease(step: Step, queue: QueueRow, tag_id: int | None, *, seconds: float, worker: str, now: Instant) -> Granted:
    sql, of = first_ready(queue, tag_id)
    rows = step.cursor.execute(sql, (of, 1)).fetchall()
    if not rows:
        return _NOTHING
    row = rows[0]
    if row[7] is not None:
        return new_granted(take(step, queue, rows, seconds=seconds, worker=worker, now=now))
    end = after(now, seconds)
    step.cursor.execute(TAKE["one"], (end, worker, now, row[1]))
    numbers = step.counts.of(queue.whole, row[2])
    numbers[READY] -= 1
    numbers[LEASED] += 1
    numbers[LEASES] += 1
    step.told = True
    return new_granted((lease_of_row(step, queue, row, end=end, worker=worker, now=now),))


def lease_of_row(step: Step, queue: QueueRow, row: Row, *, end: Instant, worker: str, now: Instant) -> Lease:
    """The lease, given now, of a ready task that was read as `First` has it."""
    eta, task_id, tag_id, added_at, number, last_leased_at, given, _, payload = row
    leased_at = now if now > last_leased_at else last_leased_at + 1
    return new_lease(
        queue.spec.name,
        f"_{task_id}" if given is None else given,
        step.tag(tag_id),
        payload_of(step.connection, task_id, payload),
        f"{task_id}.{leased_at}",
        worker,
        number + 1,
        leased_at,
        end,
        eta,
        added_at,
    )
