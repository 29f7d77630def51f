"""The verbs of a lease's holder: renew, release, delete, exchange; each fenced by the token."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from queue_core import semantics
from queue_core.clock import MICROSECONDS, Instant, after, seconds_between
from queue_core.errors import WorkerRetiredError
from queue_core.fast_values import LazyList, none_indexes
from queue_core.stats import FinishedLease
from queue_core.stores.rare_text import headers_of, set_rare_text
from queue_core.stores.sqlite.adds import add, check_adds
from queue_core.stores.sqlite.counters import DELETED, LEASED, LEASES, READY, Sample, finished_of, tally
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.rotation import next_tag
from queue_core.stores.sqlite.lanes.updates import opens, room, update
from queue_core.stores.sqlite.leases import TAKE, first_ready, first_ready_rows, lease, take, update_after_lease
from queue_core.stores.sqlite.rows import (
    among,
    by_ids,
    end,
    is_due,
    load,
    long_payload_of,
    remove_ids,
    remove_one,
    task_of,
    tombstone_names,
    write,
    write_reports,
)
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import Lease, StoredTask, TaskState, celery_id_of, parse_token
from queue_core.verbs import Deleted, Deletion, Granted, LeaseRequest, Release, Renewal, Renewed, handed_over
from queue_core.verbs.validation import check_lease_time, check_renewed_time

_LEASED = int(TaskState.LEASED)

_TOKENS = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(?: [0-9]{1,18}\.[0-9]{1,18})*")
_SHORT = "id, tag, ready_at, leases, leased_at, worker, name, payload IS NULL, added_at, headers"
_LIVE_LEASES = by_ids(f"SELECT {_SHORT} FROM tasks NOT INDEXED WHERE {{ids}} AND queue = ? AND state = 2 AND eta > ?")  # noqa: S608
"""Statements that select what a deletion needs of tasks under a live lease, whichever it is."""

_NOTHING = Granted(())


Fence = tuple[int, Instant]


def fences_of(tokens: Sequence[str]) -> list[Fence]:
    """Return the parts of each token: `parse_token` for all of them at once, a third cheaper. Raises as it does."""
    joined = " ".join(tokens)
    if _TOKENS.fullmatch(joined):
        numbers = list(map(int, joined.replace(".", " ").split(" ")))
        if len(numbers) == 2 * len(tokens):
            return list(zip(numbers[::2], cast("list[Instant]", numbers[1::2]), strict=True))
    return [parse_token(token) for token in tokens]


def _current(session: SqliteSession, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> dict[Fence, Row]:
    """Return the rows of those fences whose lease is current."""
    rows = {row[0]: row for row in load(session.connection, queue, list({fence[0] for fence in fences}))}
    found: dict[Fence, Row] = {}
    for fence in fences:
        row = rows.get(fence[0])
        if row is not None and row[2] == _LEASED and row[7] == fence[1] and row[3] > now:
            found[fence] = row
    return found


def renew(session: SqliteSession, name: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
    """See `Transaction.renew`."""
    queue = session.open_queue(name)
    fences = fences_of([renewal.token for renewal in renewals])
    rows = _current(session, queue, fences, now=now)
    session.has_changes = True
    lengths = [queue.spec.lease_seconds if renewal.seconds is None else renewal.seconds for renewal in renewals]
    for fence, seconds in zip(fences, lengths, strict=True):
        if fence in rows:
            check_renewed_time(queue.spec, seconds_between(fence[1], after(now, seconds)))
    tasks: dict[Fence, StoredTask] = {fence: task_of(session, queue, row) for fence, row in rows.items()}
    outcomes: list[Renewed | None] = []
    for fence, renewal, seconds in zip(fences, renewals, lengths, strict=True):
        if fence not in tasks:
            outcomes.append(None)
            continue
        task = tasks[fence] = semantics.renew(
            tasks[fence],
            seconds=seconds,
            now=now,
            progress=renewal.progress,
            checkpoint=renewal.checkpoint,
        )
        outcomes.append(Renewed(renewal.token, task.shown_name, task.tag, task.worker, task.leases, task.eta))
    write(session.connection, tasks.values())
    write_reports(session.connection, tasks.values())
    return outcomes


def release(
    session: SqliteSession, name: str, releases: Sequence[Release], *, now: Instant
) -> list[FinishedLease | None]:
    """See `Transaction.release`."""
    queue = session.open_queue(name)
    fences = fences_of([release.token for release in releases])
    rows = _current(session, queue, fences, now=now)
    session.has_changes = True
    outcomes: list[FinishedLease | None] = []
    for fence, request in zip(fences, releases, strict=True):
        row = rows.pop(fence, None)
        outcomes.append(None if row is None else _release(session, queue, row, request, now=now))
    return outcomes


def _release(session: SqliteSession, queue: QueueRow, row: Row, request: Release, *, now: Instant) -> FinishedLease:
    task = task_of(session, queue, row)
    ending = semantics.release_as_requested(
        task,
        queue.spec,
        requested_seconds=request.delay_seconds,
        charge=request.charge,
        dead_reason=request.dead_reason,
        jitter=request.jitter,
        now=now,
        failure=request.failure,
    )
    return end(session, queue, row, ending)


def delete(
    session: SqliteSession, name: str, deletions: Sequence[Deletion], *, now: Instant
) -> Sequence[Deleted | None]:
    """See `Transaction.delete`."""
    queue = session.open_queue(name)
    fences = fences_of([deletion.token for deletion in deletions])
    handing = handed_over(deletions)
    for then in handing:
        check_adds(session, name, then, now=now)
    if not handing:
        return _delete_all(session, queue, fences, now=now)
    # One by one: a `then` may need the name of a task that a later deletion of the same call removes.
    outcomes: list[Deleted | None] = []
    for fence, deletion in zip(fences, deletions, strict=True):
        (deleted,) = _delete_all(session, queue, [fence], now=now)
        if deleted is not None and deletion.then:
            deleted = Deleted(deleted.finished, tuple(add(session, name, deletion.then, now=now)))
        outcomes.append(deleted)
    return outcomes


def _delete_all(
    session: SqliteSession, queue: QueueRow, fences: Sequence[Fence], *, now: Instant
) -> Sequence[Deleted | None]:
    session.has_changes = True
    found = _match(_live_rows(session, queue, fences, now=now), fences)
    rows = [row for row in found if row is not None]
    if not rows:
        return [None] * len(found)
    ids = [row[0] for row in rows]
    remove_ids(session, ids, long=[row[0] for row in rows if row[7]])
    named = [row[6] for row in rows if row[6] is not None]
    if named:
        tombstone_names(session.connection, queue, named, at=now)
    tag_ids = [row[1] for row in rows]
    for tag_id, number in tally(tag_ids):
        numbers = session.counts.of(queue.whole, tag_id)
        numbers[LEASED] -= number
        numbers[DELETED] += number
    samples = _deleted_samples(rows, session.tags_of(tag_ids), now=now)
    session.record_all(queue, samples)
    lost = none_indexes(found) if len(rows) < len(found) else ()
    return LazyList(len(found), lambda: _outcomes_of(queue.spec.name, found, samples), none_indexes=lost)


def _deleted_samples(rows: Sequence[Row], tags: Mapping[int, str | None], *, now: Instant) -> list[Sample]:
    """Return the samples of leases that end with their tasks' deletion, given as rows of `_LIVE_LEASES`."""
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
            now - added_at,
            "" if rare is None else celery_id_of(headers_of(rare)),
        )
        for task_id, tag_id, ready_at, leases, leased_at, worker, given, _, added_at, rare in rows
    ]


def _match(rows: Sequence[Row], fences: Sequence[Fence]) -> list[Row | None]:
    """Return for each fence its row; None if that lease is not current, and for the second of the same fence."""
    if [(row[0], row[4]) for row in rows] == fences:
        return list(rows)
    live: dict[Fence, Row] = {(row[0], row[4]): row for row in rows}
    return [live.pop(fence, None) for fence in fences]


def _outcomes_of(queue: str, found: Sequence[Row | None], samples: Sequence[Sample]) -> list[Deleted | None]:
    """Return the outcomes of deletions; `samples` are those of the rows found, in order."""
    of_rows = iter(samples)
    return [None if row is None else Deleted(finished_of(queue, next(of_rows))) for row in found]


def _live_rows(session: SqliteSession, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> list[Row]:
    form, cells = among(list(dict(fences)))
    return session.cursor.execute(_LIVE_LEASES[form], (*cells, queue.id, now)).fetchall()


def exchange(
    session: SqliteSession, name: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Sequence[Deleted | None], Granted]:
    """See `Transaction.exchange`."""
    if request.seconds is not None:
        check_lease_time(session.open_queue(name).spec, request.seconds)
    outcomes = delete(session, name, deletions, now=now)
    if session.counts.changed:
        update(session, now=now)
    try:
        return outcomes, lease(session, name, request, now=now)
    except WorkerRetiredError:
        return outcomes, Granted((), refused=True)


def exchange_one(
    session: SqliteSession, name: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Sequence[Deleted | None], Granted] | None:
    """Delete one task at most and lease one: the fast path of `delete` and `lease`, without lists (ADR 18).

    To write its changes later, with those of others, was tried and removed (ADR 22 to 24).

    Does nothing and returns None for several leases or deletions, a `then`, the oldest tag or several, a lease that is
    too long, a queue that is paused or has tasks that are due or a lane that opens, and a worker that is not in the
    `CatalogCache`.
    """
    if request.count != 1 or len(deletions) > 1 or (deletions and deletions[0].then) or request.tags.kind == "oldest":
        return None
    queue = session.open_queue(name)
    spec = queue.spec
    seconds = spec.lease_seconds if request.seconds is None else request.seconds
    tag_ids = session.tag_ids(queue, request.tags)
    if spec.paused or seconds > spec.max_lease_seconds or (tag_ids is not None and len(tag_ids) != 1):
        return None
    if request.worker and request.worker not in session.catalog.workers:
        return None
    fence = parse_token(deletions[0].token) if deletions else None
    if is_due(session, queue, now=now) or (not queue.is_plain and opens(session, queue, now=now)):
        return None
    outcomes = [] if fence is None else _delete_one(session, queue, fence, now=now)
    tag_id = None if tag_ids is None else tag_ids[0]
    if queue.is_plain:
        return outcomes, _lease_one(session, queue, tag_id, seconds=seconds, worker=request.worker, now=now)
    update(session, now=now)
    return outcomes, _lease_one_in_limits(session, queue, tag_id, seconds=seconds, worker=request.worker, now=now)


def _delete_one(session: SqliteSession, queue: QueueRow, fence: Fence, *, now: Instant) -> Sequence[Deleted | None]:
    session.has_changes = True
    rows = session.cursor.execute(_LIVE_LEASES["one"], (fence[0], queue.id, now)).fetchall()
    if not rows or rows[0][4] != fence[1]:
        return [None]
    task_id, tag_id, _, _, _, _, given, is_long, *_ = rows[0]
    remove_one(session, task_id, is_long=is_long)
    if given is not None:
        tombstone_names(session.connection, queue, [given], at=now)
    numbers = session.counts.of(queue.whole, tag_id)
    numbers[LEASED] -= 1
    numbers[DELETED] += 1
    samples = _deleted_samples(rows, {tag_id: session.tag(tag_id)}, now=now)
    session.record_all(queue, samples)
    return LazyList(1, lambda: [Deleted(finished_of(queue.spec.name, samples[0]))])


def _lease_one_in_limits(
    session: SqliteSession, queue: QueueRow, tag_id: int | None, *, seconds: float, worker: str, now: Instant
) -> Granted:
    if queue.spec.is_limited and room(session, queue, now=now) < 1:
        return _NOTHING
    if queue.spec.per_tag.fair and tag_id is None:
        tag_id = next_tag(session, queue, None)
        if tag_id is None:
            return _NOTHING
    granted = _lease_one(session, queue, tag_id, seconds=seconds, worker=worker, now=now)
    if granted.leases:
        update_after_lease(session, queue, [session.tag_id(queue, granted.leases[0].tag)], now=now)
    return granted


def _lease_one(
    session: SqliteSession, queue: QueueRow, tag_id: int | None, *, seconds: float, worker: str, now: Instant
) -> Granted:
    if queue.has_priorities:
        rows = first_ready_rows(session, queue, tag_id, count=1)
    else:
        sql, of = first_ready(queue, tag_id)
        rows = session.cursor.execute(sql, (of, 1)).fetchall()
    if not rows:
        return _NOTHING
    eta, task_id, tag, added_at, number, last_leased_at, given, spent, payload, rare, checkpoint = rows[0]
    if spent is not None:
        return Granted(take(session, queue, rows, seconds=seconds, worker=worker, now=now))
    end_at = Instant(now + round(seconds * MICROSECONDS))
    session.cursor.execute(TAKE["one"], (end_at, worker, now, task_id))
    numbers = session.counts.of(queue.whole, tag)
    numbers[READY] -= 1
    numbers[LEASED] += 1
    numbers[LEASES] += 1
    session.has_changes = True
    leased_at = now if now > last_leased_at else last_leased_at + 1
    granted = Lease(
        queue.spec.name,
        f"_{task_id}" if given is None else given,
        session.tag(tag),
        payload if payload is not None else long_payload_of(session.connection, task_id),
        f"{task_id}.{leased_at}",
        worker,
        number + 1,
        leased_at,
        end_at,
        eta,
        added_at,
        None,
        checkpoint,
    )
    return Granted((granted if rare is None else set_rare_text(granted, rare),))
