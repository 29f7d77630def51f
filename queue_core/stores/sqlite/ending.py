"""The verbs of a lease's holder: renew, release, delete; each fenced by the token."""

from collections import Counter
from collections.abc import Sequence

from queue_core import semantics
from queue_core.backoff import release_delay_seconds
from queue_core.clock import Instant, after, seconds_between
from queue_core.stats import FinishedLease
from queue_core.store import Added, Deleted, Deletion, Release, Renewal, Renewed
from queue_core.stores.sqlite.adding import add, check_adds
from queue_core.stores.sqlite.counts import DELETED, LEASED
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.leasing import check_lease_time
from queue_core.stores.sqlite.rows import end, load, remove, task_of, write
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import Task, TaskState, chosen_name, parse_token

_LEASED = int(TaskState.LEASED)

Fence = tuple[int, Instant]


def _current(step: Step, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> dict[Fence, Row]:
    """The rows of those fences that are current."""
    rows = {row[0]: row for row in load(step.connection, queue, list({fence[0] for fence in fences}))}
    found: dict[Fence, Row] = {}
    for fence in fences:
        row = rows.get(fence[0])
        if row is not None and row[2] == _LEASED and row[7] == fence[1] and row[3] > now:
            found[fence] = row
    return found


def renew(step: Step, name: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
    """See `Transaction.renew`."""
    queue = step.queue(name)
    fences = [parse_token(renewal.token) for renewal in renewals]
    rows = _current(step, queue, fences, now=now)
    step.told = True
    for fence, renewal in zip(fences, renewals, strict=True):
        if fence in rows:
            check_lease_time(queue.spec, seconds_between(fence[1], after(now, renewal.seconds)))
    tasks: dict[Fence, Task] = {fence: task_of(step, queue, row) for fence, row in rows.items()}
    outcomes: list[Renewed | None] = []
    for fence, renewal in zip(fences, renewals, strict=True):
        if fence not in tasks:
            outcomes.append(None)
            continue
        task = tasks[fence] = semantics.renew(tasks[fence], seconds=renewal.seconds, now=now)
        outcomes.append(Renewed(renewal.token, task.shown_name, task.tag, task.worker, task.leases, task.eta))
    write(step.connection, tasks.values())
    return outcomes


def release(step: Step, name: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
    """See `Transaction.release`."""
    queue = step.queue(name)
    fences = [parse_token(release.token) for release in releases]
    rows = _current(step, queue, fences, now=now)
    step.told = True
    outcomes: list[FinishedLease | None] = []
    for fence, asked in zip(fences, releases, strict=True):
        row = rows.pop(fence, None)
        outcomes.append(None if row is None else _release(step, queue, row, asked, now=now))
    return outcomes


def _release(step: Step, queue: QueueRow, row: Row, asked: Release, *, now: Instant) -> FinishedLease:
    task = task_of(step, queue, row)
    delay_seconds = release_delay_seconds(
        queue.spec,
        asked_seconds=asked.delay_seconds,
        charge=asked.charge,
        leases=task.leases,
        jitter=asked.jitter,
    )
    ending = semantics.release(
        task,
        queue.spec,
        delay_seconds=delay_seconds,
        now=now,
        charge=asked.charge,
        dead_reason=asked.dead_reason,
    )
    return end(step, queue, row, ending)


def delete(step: Step, name: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
    """See `Transaction.delete`."""
    queue = step.queue(name)
    fences = [parse_token(deletion.token) for deletion in deletions]
    hands_over = False
    for deletion in deletions:
        if deletion.then:
            hands_over = True
            check_adds(step, name, deletion.then, now=now)
    if not hands_over:
        return _delete(step, queue, fences, now=now)
    # One by one: a `then` may need the name of a task that a later deletion of the same call removes.
    outcomes: list[Deleted | None] = []
    for fence, deletion in zip(fences, deletions, strict=True):
        (deleted,) = _delete(step, queue, [fence], now=now)
        if deleted is not None and deletion.then:
            then: list[Added] = add(step, name, deletion.then, now=now)
            deleted = Deleted(deleted.finished, tuple(then))
        outcomes.append(deleted)
    return outcomes


def _delete(step: Step, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> list[Deleted | None]:
    step.told = True
    rows = _current(step, queue, fences, now=now)
    done: list[Row] = []
    finished: list[FinishedLease] = []
    outcomes: list[Deleted | None] = []
    name = queue.spec.name
    for fence in fences:
        row = rows.pop(fence, None)
        if row is None:
            outcomes.append(None)
            continue
        task_id, tag, _state, _eta, ready_at, _added_at, leases, leased_at, worker, _reason, given, _spent, _long = row
        sample = FinishedLease(
            name,
            chosen_name(task_id) if given is None else given,
            step.tag(tag),
            worker,
            leases,
            "deleted",
            max(0, leased_at - ready_at) / 1_000_000,
            max(0, now - leased_at) / 1_000_000,
            now,
        )
        done.append(row)
        finished.append(sample)
        outcomes.append(Deleted(sample))
    if done:
        remove(step, queue, done, at=now)
        step.note_all(queue, finished)
        for tag, number in Counter([row[1] for row in done]).items():
            step.counts.change(queue.whole, tag, ((LEASED, -number), (DELETED, number)))
    return outcomes
