"""The waiters of this process, their tags, and which of them was woken. Touches no connection."""

import json
from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import count
from math import inf
from threading import Condition, Lock
from typing import Protocol

from queue_core.clock import Instant
from queue_core.task import TagFilter

MAX_IDLE = 1000
"""The most idle times of closed waiters that are kept of a queue."""


class WakeUpSender(Protocol):
    """Sends the changes of waiters; each method returns at once, and they are sent in order."""

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake as many waiters as tasks of the tag became leasable."""

    def ready(self, waiter: "PostgresSubscription") -> None:
        """Send that a woken waiter waits again."""

    def unregister(self, number: int) -> None:
        """Send that a waiter is closed."""


class PostgresSubscription:
    """See `Subscription`."""

    def __init__(
        self, waiters: "PostgresWaiters", number: int, queue: str, tags: TagFilter, active_at: Instant
    ) -> None:
        self.number = number
        self.queue = queue
        self.tags = tags
        self.active_at = active_at
        self.tag: str | None = None
        self.woken = False
        self.in_vain = False
        self._ended = False
        self._is_away = False
        self._waiters = waiters
        self._changed = Condition()

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until woken (True) or a timeout (False); where wake-ups are impossible, True every few seconds."""
        if self._is_away:
            self._is_away = False
            self._waiters.sender.ready(self)
        poll_seconds = self._waiters.poll_seconds
        with self._changed:
            seconds = min(timeout_seconds, poll_seconds)
            self._changed.wait_for(lambda: self.woken or self._ended, timeout=max(0.0, seconds))
            woken = self.woken or self._ended
            self.in_vain = not woken
            self._is_away = self.woken
            self.woken = self._ended = False
        return woken or poll_seconds < timeout_seconds

    def wake(self) -> None:
        """End a `wait` in another thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Unregister; an unused wake-up is passed on to the next fitting waiter."""
        self._waiters.remove(self)

    def deliver(self, tag: str | None) -> None:
        """Deliver a wake-up for a task of this tag; None: without a tag, or unknown."""
        with self._changed:
            self.woken = True
            self.tag = tag
            self._changed.notify_all()

    def row(self) -> dict[str, object]:
        """Return the row that the store's function `register_waiters` takes."""
        tags: Sequence[str] | None = None
        if self.tags.kind == "untagged":
            tags = ()
        elif self.tags.tags:
            tags = self.tags.tags
        return {"number": self.number, "active_at": self.active_at, "queue": self.queue, "tags": tags}


class PostgresWaiters:
    """The waiters of this process; thread-safe."""

    def __init__(self, sender: WakeUpSender) -> None:
        self.sender = sender
        self.poll_seconds = inf
        """How often waiters poll; infinite where they can be woken."""
        self._lock = Lock()
        self._numbers = count(1)
        self._open: dict[int, PostgresSubscription] = {}
        self._idle: dict[str, list[Instant]] = {}

    def add(self, queue: str, tags: TagFilter, *, now: Instant) -> PostgresSubscription:
        """Add a waiter. One whose last wait timed out counts as active since that wait began."""
        with self._lock:
            idle = self._idle.get(queue)
            waiter = PostgresSubscription(self, next(self._numbers), queue, tags, idle.pop() if idle else now)
            self._open[waiter.number] = waiter
            return waiter

    def remove(self, waiter: PostgresSubscription) -> None:
        """Remove a waiter; does nothing the second time."""
        with self._lock:
            if self._open.pop(waiter.number, None) is None:
                return
            if waiter.in_vain and not waiter.woken:
                idle = self._idle.setdefault(waiter.queue, [])
                insort(idle, waiter.active_at)
                del idle[:-MAX_IDLE]
        self.sender.unregister(waiter.number)
        if waiter.woken:
            self.sender.publish(waiter.queue, waiter.tag, 1)

    def deliver(self, numbers: Iterable[int], queue: str, tag: str | None) -> None:
        """Deliver wake-ups to waiters by number; those of closed ones are passed on."""
        for number in numbers:
            with self._lock:
                waiter = self._open.get(number)
            if waiter is None:
                self.sender.unregister(number)
                self.sender.publish(queue, tag, 1)
            else:
                waiter.deliver(tag)

    def wake_all(self) -> None:
        """Wake all waiters, as wake-ups may have been lost."""
        for waiter in self.all():
            waiter.deliver(None)

    def all(self) -> list[PostgresSubscription]:
        """Return the open waiters."""
        with self._lock:
            return list(self._open.values())

    def __len__(self) -> int:
        return len(self._open)


def rows(waiters: Iterable[PostgresSubscription]) -> str:
    """Return the rows that the store's function `register_waiters` takes, as JSON."""
    return json.dumps([waiter.row() for waiter in waiters])
