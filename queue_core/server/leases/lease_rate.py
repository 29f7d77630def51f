"""Counts lease calls of a queue over the last second: the bound that App Engine set on its pull queues. No clock."""

from collections import deque
from threading import Lock

from queue_core.clock import MICROSECONDS, Instant

MAX_QUEUES = 1000
"""Queues remembered before those that were quiet for a second are forgotten."""


class LeaseRate:
    """Lets so many lease calls of a queue through in any second. From any thread: a remote store's turns have theirs.

    Source: App Engine, "10 LeaseTasks requests per queue per second".
    """

    def __init__(self) -> None:
        self._granted: dict[str, deque[Instant]] = {}
        self._lock = Lock()

    def allows(self, queue: str, spec_limit: int | None, now: Instant) -> bool:
        """Whether a call at `now` is within the limit; only one that is counts.

        Args:
            spec_limit: calls in any second; None: no bound, and nothing is counted.
        """
        if spec_limit is None:
            return True
        with self._lock:
            if queue not in self._granted and len(self._granted) >= MAX_QUEUES:
                self._forget(now)
            granted = self._granted.setdefault(queue, deque())
            # Later than now: the clock was stepped back, and those calls say nothing of this second.
            while granted and not now - MICROSECONDS < granted[0] <= now:
                granted.popleft()
            while granted and granted[-1] > now:
                granted.pop()
            if len(granted) >= spec_limit:
                return False
            granted.append(now)
            return True

    def _forget(self, now: Instant) -> None:
        quiet = [queue for queue, granted in self._granted.items() if not granted or granted[-1] <= now - MICROSECONDS]
        for queue in quiet:
            del self._granted[queue]
