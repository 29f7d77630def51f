"""The verbs of a lease's holder: renew, release, delete, exchange; each fenced by the token."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from queue_core import semantics
from queue_core.clock import Instant, after, seconds_between
from queue_core.errors import WorkerRetiredError
from queue_core.fast_values import LazyList, fast_constructor, none_indexes
from queue_core.stats import FinishedLease
from queue_core.store import Deleted, Deletion, Granted, LeaseRequest, Release, Renewal, Renewed, handed_over
from queue_core.stores.sqlite.adds import add, check_adds
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.leases import TAKE, first_ready, lease, new_lease, take
from queue_core.stores.sqlite.rows import (
    among,
    by_ids,
    end,
    is_due,
    load,
    payload_of,
    remove_ids,
    take_back_names,
    task_of,
    write,
)
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.stores.sqlite.statistics import DELETED, LEASED, LEASES, READY, Sample, finished_of, tally
from queue_core.task import StoredTask, TaskState, parse_token
from queue_core.validation import check_lease_time, check_renewed_time

_LEASED = int(TaskState.LEASED)

_TOKENS = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(?: [0-9]{1,18}\.[0-9]{1,18})*")
_SHORT = "id, tag, ready_at, leases, leased_at, worker, name, payload IS NULL"
_HELD = by_ids(f"SELECT {_SHORT} FROM tasks NOT INDEXED WHERE {{ids}} AND queue = ? AND state = 2 AND eta > ?")  # noqa: S608
"""What a deletion needs of tasks that are under a live lease, whichever it is."""

_NOTHING = Granted(())

new_deleted = fast_constructor(Deleted)
new_granted = fast_constructor(Granted)

Fence = tuple[int, Instant]


def fences_of(tokens: Sequence[str]) -> list[Fence]:
    """What each token is made of: `parse_token` for all of them at once, a third cheaper. Raises as it does."""
    joined = " ".join(tokens)
    if _TOKENS.fullmatch(joined):
        numbers = list(map(int, joined.replace(".", " ").split(" ")))
        if len(numbers) == 2 * len(tokens):
            return list(zip(numbers[::2], cast("list[Instant]", numbers[1::2]), strict=True))
    return [parse_token(token) for token in tokens]


def _current(step: SqliteSession, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> dict[Fence, Row]:
    """The rows of those fences that are current."""
    rows = {row[0]: row for row in load(step.connection, queue, list({fence[0] for fence in fences}))}
    found: dict[Fence, Row] = {}
    for fence in fences:
        row = rows.get(fence[0])
        if row is not None and row[2] == _LEASED and row[7] == fence[1] and row[3] > now:
            found[fence] = row
    return found


def renew(step: SqliteSession, name: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
    """See `Transaction.renew`."""
    queue = step.open_queue(name)
    fences = fences_of([renewal.token for renewal in renewals])
    rows = _current(step, queue, fences, now=now)
    step.told = True
    asked = [queue.spec.lease_seconds if renewal.seconds is None else renewal.seconds for renewal in renewals]
    for fence, seconds in zip(fences, asked, strict=True):
        if fence in rows:
            check_renewed_time(queue.spec, seconds_between(fence[1], after(now, seconds)))
    tasks: dict[Fence, StoredTask] = {fence: task_of(step, queue, row) for fence, row in rows.items()}
    outcomes: list[Renewed | None] = []
    for fence, renewal, seconds in zip(fences, renewals, asked, strict=True):
        if fence not in tasks:
            outcomes.append(None)
            continue
        task = tasks[fence] = semantics.renew(tasks[fence], seconds=seconds, now=now)
        outcomes.append(Renewed(renewal.token, task.shown_name, task.tag, task.worker, task.leases, task.eta))
    write(step.connection, tasks.values())
    return outcomes


def release(step: SqliteSession, name: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
    """See `Transaction.release`."""
    queue = step.open_queue(name)
    fences = fences_of([release.token for release in releases])
    rows = _current(step, queue, fences, now=now)
    step.told = True
    outcomes: list[FinishedLease | None] = []
    for fence, asked in zip(fences, releases, strict=True):
        row = rows.pop(fence, None)
        outcomes.append(None if row is None else _release(step, queue, row, asked, now=now))
    return outcomes


def _release(step: SqliteSession, queue: QueueRow, row: Row, asked: Release, *, now: Instant) -> FinishedLease:
    task = task_of(step, queue, row)
    ending = semantics.release_as_requested(
        task,
        queue.spec,
        requested_seconds=asked.delay_seconds,
        charge=asked.charge,
        dead_reason=asked.dead_reason,
        jitter=asked.jitter,
        now=now,
    )
    return end(step, queue, row, ending)


def delete(step: SqliteSession, name: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
    """See `Transaction.delete`."""
    queue = step.open_queue(name)
    fences = fences_of([deletion.token for deletion in deletions])
    handing = handed_over(deletions)
    for then in handing:
        check_adds(step, name, then, now=now)
    if not handing:
        return _delete_all(step, queue, fences, now=now)
    # One by one: a `then` may need the name of a task that a later deletion of the same call removes.
    outcomes: list[Deleted | None] = []
    for fence, deletion in zip(fences, deletions, strict=True):
        (deleted,) = _delete_all(step, queue, [fence], now=now)
        if deleted is not None and deletion.then:
            deleted = Deleted(deleted.finished, tuple(add(step, name, deletion.then, now=now)))
        outcomes.append(deleted)
    return outcomes


def _delete_all(
    step: SqliteSession, queue: QueueRow, fences: Sequence[Fence], *, now: Instant
) -> Sequence[Deleted | None]:
    step.told = True
    found = _found(_held(step, queue, fences, now=now), fences)
    rows = [row for row in found if row is not None]
    if not rows:
        return [None] * len(found)
    ids = [row[0] for row in rows]
    remove_ids(step, ids, long=[row[0] for row in rows if row[7]])
    named = [row[6] for row in rows if row[6] is not None]
    if named:
        take_back_names(step.connection, queue, named, at=now)
    tag_ids = [row[1] for row in rows]
    for tag_id, number in tally(tag_ids):
        numbers = step.counts.of(queue.whole, tag_id)
        numbers[LEASED] -= number
        numbers[DELETED] += number
    samples = _deleted_samples(rows, step.tags_of(tag_ids), now=now)
    step.note_all(queue, samples)
    lost = none_indexes(found) if len(rows) < len(found) else ()
    return LazyList(len(found), lambda: _outcomes_of(queue.spec.name, found, samples), none_indexes=lost)


def _deleted_samples(rows: Sequence[Row], tags: Mapping[int, str | None], *, now: Instant) -> list[Sample]:
    """The samples of leases that end with their tasks' deletion, by rows of `_HELD`."""
    return [
        (
            f"_{task_id}" if given is None else given,
            tags[tag_id],
            worker,
            leases,
            "deleted",
            leased_at - ready_at if leased_at > ready_at else 0,
            now - leased_at if now > leased_at else 0,
            now,
            False,
            "",
        )
        for task_id, tag_id, ready_at, leases, leased_at, worker, given, _ in rows
    ]


def _found(rows: Sequence[Row], fences: Sequence[Fence]) -> list[Row | None]:
    """For each fence its row, if that lease is current; None, too, when a call names it a second time."""
    if [(row[0], row[4]) for row in rows] == fences:
        return list(rows)
    held: dict[Fence, Row] = {(row[0], row[4]): row for row in rows}
    return [held.pop(fence, None) for fence in fences]


def _outcomes_of(queue: str, found: Sequence[Row | None], samples: Sequence[Sample]) -> list[Deleted | None]:
    """What became of deletions: of those that have a row, the samples are given in order."""
    of_rows = iter(samples)
    return [None if row is None else new_deleted(finished_of(queue, next(of_rows))) for row in found]


def _held(step: SqliteSession, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> list[Row]:
    form, cells = among(list(dict(fences)))
    return step.cursor.execute(_HELD[form], (*cells, queue.id, now)).fetchall()


def exchange(
    step: SqliteSession, name: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Sequence[Deleted | None], Granted]:
    """See `Transaction.exchange`."""
    if (exchanged := exchange_one(step, name, deletions, request, now=now)) is not None:
        return exchanged
    if request.seconds is not None:
        check_lease_time(step.open_queue(name).spec, request.seconds)
    outcomes = delete(step, name, deletions, now=now)
    try:
        return outcomes, lease(step, name, request, now=now)
    except WorkerRetiredError:
        return outcomes, Granted((), refused=True)


def exchange_one(
    step: SqliteSession, name: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Sequence[Deleted | None], Granted] | None:
    """Delete one task at most and lease one: the short way through `delete` and `lease`, without lists (ADR 18).

    To write its changes later, with those of others, was tried and removed (ADR 22 to 24).

    None: nothing is done. That is so for several leases or deletions, a `then`, the oldest tag or several, a lease that
    is too long, a queue that is paused or has tasks that are due, a worker that this process has not leased to since it
    last looked.
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
    fence = parse_token(deletions[0].token) if deletions else None
    if is_due(step, queue, now=now):
        return None
    outcomes = [] if fence is None else _delete_one(step, queue, fence, now=now)
    tag_id = None if tag_ids is None else tag_ids[0]
    return outcomes, _lease_one(step, queue, tag_id, seconds=seconds, worker=request.worker, now=now)


def _delete_one(step: SqliteSession, queue: QueueRow, fence: Fence, *, now: Instant) -> Sequence[Deleted | None]:
    step.told = True
    rows = step.cursor.execute(_HELD["one"], (fence[0], queue.id, now)).fetchall()
    if not rows or rows[0][4] != fence[1]:
        return [None]
    task_id, tag_id, _, _, _, _, given, is_long = rows[0]
    remove_ids(step, [task_id], long=[task_id] if is_long else [])
    if given is not None:
        take_back_names(step.connection, queue, [given], at=now)
    numbers = step.counts.of(queue.whole, tag_id)
    numbers[LEASED] -= 1
    numbers[DELETED] += 1
    samples = _deleted_samples(rows, {tag_id: step.tag(tag_id)}, now=now)
    step.note_all(queue, samples)
    return LazyList(1, lambda: _outcomes_of(queue.spec.name, rows, samples))


def _lease_one(
    step: SqliteSession, queue: QueueRow, tag_id: int | None, *, seconds: float, worker: str, now: Instant
) -> Granted:
    sql, of = first_ready(queue, tag_id)
    rows = step.cursor.execute(sql, (of, 1)).fetchall()
    if not rows:
        return _NOTHING
    eta, task_id, tag, added_at, number, last_leased_at, given, spent, payload = rows[0]
    if spent is not None:
        return new_granted(take(step, queue, rows, seconds=seconds, worker=worker, now=now))
    end_at = after(now, seconds)
    step.cursor.execute(TAKE["one"], (end_at, worker, now, task_id))
    numbers = step.counts.of(queue.whole, tag)
    numbers[READY] -= 1
    numbers[LEASED] += 1
    numbers[LEASES] += 1
    step.told = True
    leased_at = now if now > last_leased_at else last_leased_at + 1
    granted = new_lease(
        queue.spec.name,
        f"_{task_id}" if given is None else given,
        step.tag(tag),
        payload_of(step.connection, task_id, payload),
        f"{task_id}.{leased_at}",
        worker,
        number + 1,
        leased_at,
        end_at,
        eta,
        added_at,
    )
    return new_granted((granted,))
