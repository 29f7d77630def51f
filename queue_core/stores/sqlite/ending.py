"""The verbs of a lease's holder: renew, release, delete; each fenced by the token."""

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import cast

from queue_core import semantics
from queue_core.admission import check_renewed_time
from queue_core.building import builder
from queue_core.clock import MICROSECONDS, Instant, after, seconds_between
from queue_core.stats import FinishedLease
from queue_core.store import Deleted, Deletion, Release, Renewal, Renewed
from queue_core.stores.sqlite.adding import add, check_adds
from queue_core.stores.sqlite.counts import DELETED, LEASED, tally
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.names import take_back
from queue_core.stores.sqlite.rows import end, id_list, load, remove_ids, task_of, write
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import Task, TaskState, parse_token

_LEASED = int(TaskState.LEASED)

_TOKENS = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(?: [0-9]{1,18}\.[0-9]{1,18})*")
_SHORT = "id, tag, ready_at, leases, leased_at, worker, name, payload IS NULL"
_HELD = f"SELECT {_SHORT} FROM tasks WHERE id = ? AND queue = ? AND state = 2 AND eta > ?"  # noqa: S608
_HELD_ALL = (
    f"SELECT {_SHORT} FROM (SELECT value AS wanted FROM json_each(?))"  # noqa: S608
    " CROSS JOIN tasks ON id = wanted AND queue = ? AND state = 2 AND eta > ?"
)

_THEN = attrgetter("then")

new_finished_lease = builder(FinishedLease)
new_deleted = builder(Deleted)

Fence = tuple[int, Instant]


def fences_of(tokens: Sequence[str]) -> list[Fence]:
    """What each token is made of: `parse_token` for all of them at once, a third cheaper. Raises as it does."""
    joined = " ".join(tokens)
    if _TOKENS.fullmatch(joined):
        numbers = list(map(int, joined.replace(".", " ").split(" ")))
        if len(numbers) == 2 * len(tokens):
            return list(zip(numbers[::2], cast("list[Instant]", numbers[1::2]), strict=True))
    return [parse_token(token) for token in tokens]


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
    queue = step.open_queue(name)
    fences = fences_of([renewal.token for renewal in renewals])
    rows = _current(step, queue, fences, now=now)
    step.told = True
    asked = [queue.spec.lease_seconds if renewal.seconds is None else renewal.seconds for renewal in renewals]
    for fence, seconds in zip(fences, asked, strict=True):
        if fence in rows:
            check_renewed_time(queue.spec, seconds_between(fence[1], after(now, seconds)))
    tasks: dict[Fence, Task] = {fence: task_of(step, queue, row) for fence, row in rows.items()}
    outcomes: list[Renewed | None] = []
    for fence, renewal, seconds in zip(fences, renewals, asked, strict=True):
        if fence not in tasks:
            outcomes.append(None)
            continue
        task = tasks[fence] = semantics.renew(tasks[fence], seconds=seconds, now=now)
        outcomes.append(Renewed(renewal.token, task.shown_name, task.tag, task.worker, task.leases, task.eta))
    write(step.connection, tasks.values())
    return outcomes


def release(step: Step, name: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
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


def _release(step: Step, queue: QueueRow, row: Row, asked: Release, *, now: Instant) -> FinishedLease:
    task = task_of(step, queue, row)
    ending = semantics.release_as_asked(
        task,
        queue.spec,
        asked_seconds=asked.delay_seconds,
        charge=asked.charge,
        dead_reason=asked.dead_reason,
        jitter=asked.jitter,
        now=now,
    )
    return end(step, queue, row, ending)


def delete(step: Step, name: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
    """See `Transaction.delete`."""
    queue = step.open_queue(name)
    fences = fences_of([deletion.token for deletion in deletions])
    handed_over = list(filter(None, map(_THEN, deletions)))
    for then in handed_over:
        check_adds(step, name, then, now=now)
    if not handed_over:
        return _delete(step, queue, fences, now=now)
    # One by one: a `then` may need the name of a task that a later deletion of the same call removes.
    outcomes: list[Deleted | None] = []
    for fence, deletion in zip(fences, deletions, strict=True):
        (deleted,) = _delete(step, queue, [fence], now=now)
        if deleted is not None and deletion.then:
            deleted = Deleted(deleted.finished, tuple(add(step, name, deletion.then, now=now)))
        outcomes.append(deleted)
    return outcomes


def _delete(step: Step, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> list[Deleted | None]:
    step.told = True
    held = {row[0]: row for row in _held(step, queue, fences, now=now)}
    finished: list[FinishedLease] = []
    outcomes: list[Deleted | None] = []
    ids: list[int] = []
    tags: list[int] = []
    long: list[int] = []
    named: list[str] = []
    name = queue.spec.name
    for task_id, leased_at in fences:
        row = held.get(task_id)
        if row is None or row[4] != leased_at:
            outcomes.append(None)
            continue
        del held[task_id]
        _, tag, ready_at, leases, _, worker, given, is_long = row
        ids.append(task_id)
        tags.append(tag)
        if is_long:
            long.append(task_id)
        if given is not None:
            named.append(given)
        sample = new_finished_lease(
            name,
            f"_{task_id}" if given is None else given,
            step.tag(tag),
            worker,
            leases,
            "deleted",
            (leased_at - ready_at) / MICROSECONDS if leased_at > ready_at else 0.0,
            (now - leased_at) / MICROSECONDS if now > leased_at else 0.0,
            now,
        )
        finished.append(sample)
        outcomes.append(new_deleted(sample))
    if ids:
        remove_ids(step, ids, long=long)
        if named:
            take_back(step.connection, queue, named, at=now)
        step.note_all(queue, finished)
        for tag, number in tally(tags):
            step.counts.change(queue.whole, tag, ((LEASED, -number), (DELETED, number)))
    return outcomes


def _held(step: Step, queue: QueueRow, fences: Sequence[Fence], *, now: Instant) -> list[Row]:
    """What a deletion needs of tasks that are under a live lease, whichever it is."""
    if len(fences) == 1:
        return step.cursor.execute(_HELD, (fences[0][0], queue.id, now)).fetchall()
    return step.cursor.execute(_HELD_ALL, (id_list(dict(fences)), queue.id, now)).fetchall()
