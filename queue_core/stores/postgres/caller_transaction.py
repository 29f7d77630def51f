"""Verbs in the caller's own transaction, whose commit wakes waiters for the tasks that became leasable."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.clock import NEVER, Instant
from queue_core.stats import FinishedLease
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.transaction import PostgresTransaction
from queue_core.task import NewTask, StoredTask
from queue_core.verbs import Added, Deleted, Deletion, Granted, LeaseRequest, Release
from queue_core.verbs.change_verbs import READY_OR_HELD, Changed, Selector, Transition

_NOTIFY = Statement(
    "towline_notify_on_commit",
    "SELECT count(*) FROM unnest($1::text[], $2::text[], $3::int4[]) AS made (queue, tag, tasks),"
    " towline.notify_on_commit(made.queue, made.tag, made.tasks)",
    (pack.texts, pack.texts, pack.int4s),
)

MAX_TAGS = 1000
"""The most tags of a resumed queue whose waiters are woken."""

QueueTag = tuple[str, str | None]


class CallerTransaction(PostgresTransaction):
    """Each verb sends its notifications at once, as the caller may commit any time after it."""

    __slots__ = ()

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        added = super().add(queue, tasks, now=now)
        self._notify(_added(queue, tasks, added))
        return added

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        granted = super().lease(queue, request, now=now)
        self._notify(_finished(granted.expired))
        return granted

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        finished = super().release(queue, releases, now=now)
        self._notify(_finished(finished))
        return finished

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
        outcomes = super().delete(queue, deletions, now=now)
        self._notify(_then_added(queue, deletions, outcomes))
        return outcomes

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[Sequence[Deleted | None], Granted]:
        outcomes, granted = super().exchange(queue, deletions, request, now=now)
        self._notify([*_then_added(queue, deletions, outcomes), *_finished(granted.expired)])
        return outcomes, granted

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        expired, more = super().expire(queue, limit=limit, now=now)
        self._notify(_finished(expired))
        return expired, more

    def apply(self, queue: str, selector: Selector, transition: Transition, *, now: Instant) -> list[Changed]:
        changed = super().apply(queue, selector, transition, now=now)
        after = [one.outcome for one in changed if isinstance(one.outcome, StoredTask)]
        self._notify((queue, task.tag) for task in after if task.state in READY_OR_HELD)
        return changed

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        has_changed = super().set_paused(queue, paused)
        if has_changed and paused == "running":
            pages = self.tag_stats(queue, after=None, limit=MAX_TAGS, now=NEVER)
            self._notify(Counter({(queue, page.tag): page.stats.ready for page in pages if page.stats.ready}))
        return has_changed

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED, now: Instant) -> list[FinishedLease]:
        finished = super().release_worker(worker, failure=failure, now=now)
        self._notify(_finished(finished))
        return finished

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        added = super().restore(queue, tasks, now=now)
        self._notify((queue, task.tag) for task, outcome in zip(tasks, added, strict=True) if outcome.ready)
        return added

    def _notify(self, ready: Iterable[QueueTag] | Counter[QueueTag]) -> None:
        counted = Counter(ready)
        counted.update(self._session.take_ready())
        if counted:
            queues, tags = [queue for queue, _ in counted], [tag for _, tag in counted]
            self._session.rows(_NOTIFY, queues, tags, list(counted.values()))


def _added(queue: str, tasks: Sequence[NewTask], added: Sequence[Added]) -> Iterable[QueueTag]:
    for task, outcome in zip(tasks, added, strict=True):
        if outcome.ready and outcome.status == "added":
            yield task.queue or queue, task.tag


def _then_added(queue: str, deletions: Sequence[Deletion], outcomes: Sequence[Deleted | None]) -> list[QueueTag]:
    return [
        ready
        for deletion, outcome in zip(deletions, outcomes, strict=True)
        if outcome is not None
        for ready in _added(queue, deletion.then, outcome.then)
    ]


def _finished(finished: Iterable[FinishedLease | None]) -> list[QueueTag]:
    """Return queue and tag of the tasks whose leases ended, but for those that died."""
    return [(lease.queue, lease.tag) for lease in finished if lease is not None and not lease.died]
