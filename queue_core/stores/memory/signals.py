"""Wake waiting lease calls of the same process; for stores that no other process can open."""

from bisect import insort
from collections.abc import Callable
from itertools import count
from threading import Condition

from queue_core.task import TagFilter

MAX_IDLE = 1000
"""Waits that ended in vain, remembered of each queue."""


class LocalSignals:
    """`Signals` over one condition. The most recently active waiters are woken first."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._order = count(1)
        self._waiters: list[LocalSubscription] = []
        self._idle: dict[str, list[int]] = {}

    @property
    def trouble(self) -> str:
        """See `Signals.trouble`: there is none."""
        return ""

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake up to `count` matching waiters that are not awake yet."""
        if not self._waiters:
            return
        with self._changed:
            fitting = [waiter for waiter in self._waiters if not waiter.woken and waiter.fits(queue, tag)]
            fitting.sort(key=lambda waiter: waiter.order, reverse=True)
            for waiter in fitting[:count]:
                waiter.woken = True
                waiter.tag = tag
            if fitting:
                self._changed.notify_all()

    def subscribe(self, queue: str, tags: TagFilter) -> "LocalSubscription":
        """Subscribe a waiter. After a wait in vain, the next one counts as active since that wait began."""
        with self._changed:
            idle = self._idle.get(queue)
            order = idle.pop() if idle else next(self._order)
            waiter = LocalSubscription(self._changed, queue, tags, order, self._forget)
            self._waiters.append(waiter)
            return waiter

    def _forget(self, waiter: "LocalSubscription") -> None:
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                if waiter.in_vain and not waiter.woken:
                    idle = self._idle.setdefault(waiter.queue, [])
                    insort(idle, waiter.order)
                    del idle[:-MAX_IDLE]
        if waiter.woken:
            waiter.woken = False
            self.publish(waiter.queue, waiter.tag, 1)


class LocalSubscription:
    """The subscription of one waiter."""

    def __init__(
        self,
        changed: Condition,
        queue: str,
        tags: TagFilter,
        order: int,
        forget: Callable[["LocalSubscription"], None],
    ) -> None:
        self.queue = queue
        self.order = order
        self.tag: str | None = None
        self.woken = False
        self.in_vain = False
        self._ended = False
        self._tags = tags
        self._changed = changed
        self._forget = forget

    def fits(self, queue: str, tag: str | None) -> bool:
        """Return whether a task of this tag could be leased by the waiter."""
        return queue == self.queue and self._tags.accepts(tag)

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until woken (True) or the time is up (False)."""
        with self._changed:
            woken = self._changed.wait_for(lambda: self.woken or self._ended, timeout=timeout_seconds)
            self.in_vain = not self.woken
            self.woken = self._ended = False
            return woken

    def wake(self) -> None:
        """End a `wait` in another thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the subscription; an unused wake-up is passed on to the next matching waiter."""
        self._forget(self)
