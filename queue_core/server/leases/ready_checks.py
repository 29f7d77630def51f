"""Checks of queues for ready tasks, after a notification and when a task is due; waiting calls for them are woken.

Where commits run in threads, a notification may come while a lease that found nothing is on its way back to the loop:
`changes` counts the changes of a queue, and a call that missed one has the queue checked again.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from queue_core.errors import UnknownQueueError
from queue_core.server.commit.group_commit import Committer
from queue_core.server.leases.call import LeaseCall
from queue_core.server.leases.timers import RECHECK_SECONDS
from queue_core.server.leases.waiters import Waiters, Watchers
from queue_core.task import TagFilter
from queue_core.unit.unit_of_work import UnitOfWork

PAUSE_SECONDS = 0.002
"""Seconds before a queue is checked again: many notifications lead to one check."""
MAX_FILTERS_PER_CHECK = 64
"""Filters read in one operation."""

Ready: TypeAlias = tuple[TagFilter, int]
"""A filter, and the number of ready tasks that it accepts."""


class ReadyChecks:
    """At most one check of a queue is under way; changes meanwhile lead to one more."""

    def __init__(
        self, committer: Committer, waiters: Waiters[LeaseCall], watchers: Watchers, *, failed: Callable[[str], None]
    ) -> None:
        """Args:
        failed: called with a queue that can't be checked, as it is gone or as the store in this process failed.
        """
        self._committer = committer
        self._waiters = waiters
        self._watchers = watchers
        self._failed = failed
        self._is_stopped = False
        self._changes: dict[str, int] = {}
        self._under_way: dict[str, bool] = {}
        """Queues that are checked, or were a moment ago; and whether they changed meanwhile."""

    def changes(self, queue: str) -> int:
        """Return the number of changes of a queue that were counted."""
        return self._changes.get(queue, 0)

    def count_change(self, queue: str) -> None:
        """Count that a task of a queue may have become leasable."""
        self._changes[queue] = self._changes.get(queue, 0) + 1

    def check(self, queue: str) -> None:
        """Check a queue: a process (perhaps this one) changed it, or a task is due."""
        self.count_change(queue)
        if queue in self._under_way:
            self._under_way[queue] = True
        elif not self._is_stopped:
            self._under_way[queue] = False
            first = self._waiters.take(queue, 1, fits=lambda _tags: True) if self._committer.is_threaded else []
            if first:  # it likely takes the one new task: one round trip instead of two
                first[0].retry(then=partial(self._check_all, queue))
            else:
                self._check_all(queue)

    def stop(self) -> None:
        """Begin no more checks."""
        self._is_stopped = True

    def _check_all(self, queue: str) -> None:
        """Expire due leases, then let the calls retry for which there is a task."""
        self._under_way[queue] = False
        filters = list(self._waiters.filters(queue) | self._watchers.filters(queue))
        for begin in range(0, max(1, len(filters)), MAX_FILTERS_PER_CHECK):
            self._check_some(queue, filters[begin : begin + MAX_FILTERS_PER_CHECK])

    def _check_some(self, queue: str, filters: Sequence[TagFilter]) -> None:
        def check(work: UnitOfWork) -> list[Ready]:
            work.expire(queue)
            return [(tags, work.stats(queue, tags).ready) for tags in filters]

        self._committer.submit(check, partial(self._checked, queue))

    def _checked(self, queue: str, outcome: object) -> None:
        pause_seconds = PAUSE_SECONDS
        if isinstance(outcome, list):
            self._wake(queue, outcome)
        elif self._committer.is_threaded and not isinstance(outcome, UnknownQueueError):
            pause_seconds = RECHECK_SECONDS  # the store may be back by then
            self._under_way[queue] = True
        else:
            self._failed(queue)
        asyncio.get_running_loop().call_later(pause_seconds, self._paused, queue)

    def _paused(self, queue: str) -> None:
        if self._under_way.pop(queue, False):
            self.check(queue)

    def _wake(self, queue: str, found: Sequence[Ready]) -> None:
        for tags, ready in found:
            if ready:
                self._watchers.notify(queue, fits=tags.__eq__)
                for call in self._waiters.take(queue, ready, fits=tags.__eq__):
                    call.retry()
