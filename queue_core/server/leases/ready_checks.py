"""Checks of queues for ready tasks: after a notification, and when a task is due; whoever waits for one is woken.

Where turns run beside the loop, a notification may come while a lease that found nothing is on its way back to us:
`changes` counts what was heard of a queue, and a call that missed some has the queue checked again.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from queue_core.errors import UnknownQueueError
from queue_core.server.commit.committer import Committer
from queue_core.server.leases.call import LeaseCall
from queue_core.server.leases.timers import RECHECK_SECONDS
from queue_core.server.leases.waiters import Waiters, Watchers
from queue_core.task import TagFilter
from queue_core.unit_of_work import UnitOfWork

PAUSE_SECONDS = 0.002
"""How soon a queue is checked again after a check: many notifications lead to one."""
MAX_FILTERS_PER_STEP = 64

Ready: TypeAlias = tuple[TagFilter, int]
"""What is waited for, and how many such tasks are ready."""


class ReadyChecks:
    """At most one check of a queue is under way; what is heard of it meanwhile leads to one more."""

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
        """Queues that are checked, or were a moment ago; and whether something was heard of them meanwhile."""

    def changes(self, queue: str) -> int:
        """Return how many changes of a queue were heard of; 0 where turns run in the loop, as nothing is missed."""
        return self._changes.get(queue, 0)

    def count_change(self, queue: str) -> None:
        """A task of a queue may have become leasable."""
        self._changes[queue] = self._changes.get(queue, 0) + 1

    def check(self, queue: str) -> None:
        """Check a queue: another process did something to it (or we did), or a task is due."""
        self.count_change(queue)
        if queue in self._under_way:
            self._under_way[queue] = True
        elif not self._is_stopped:
            self._under_way[queue] = False
            first = self._waiters.take(queue, 1, fits=lambda _tags: True) if self._committer.is_threaded else []
            if first:  # most likely there is one task, and it may take that: one round trip instead of two
                first[0].retry(then=partial(self._check_all, queue))
            else:
                self._check_all(queue)

    def stop(self) -> None:
        """Begin no more checks."""
        self._is_stopped = True

    def _check_all(self, queue: str) -> None:
        """Expire what is due, then let those retry for whom there is something."""
        self._under_way[queue] = False
        filters = list(self._waiters.filters(queue) | self._watchers.filters(queue))
        for begin in range(0, max(1, len(filters)), MAX_FILTERS_PER_STEP):
            self._check_some(queue, filters[begin : begin + MAX_FILTERS_PER_STEP])

    def _check_some(self, queue: str, filters: Sequence[TagFilter]) -> None:
        def check(work: UnitOfWork) -> list[Ready]:
            work.settle(queue)
            return [(tags, work.stats(queue, tags).ready) for tags in filters]

        self._committer.submit(check, partial(self._checked, queue))

    def _checked(self, queue: str, outcome: object) -> None:
        pause_seconds = PAUSE_SECONDS
        if isinstance(outcome, list):
            self._wake(queue, outcome)
        elif self._committer.is_threaded and not isinstance(outcome, UnknownQueueError):
            pause_seconds = RECHECK_SECONDS  # the store may be back by then: nobody need know that it was away
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
