"""Callers who wait for a lease, served most recently active first: surplus workers become visibly idle. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from queue_core.task import TagFilter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Waiter(Generic[T]):
    """One waiting caller: what it would take, how recently it worked, and the handle by which it is woken."""

    queue: str
    tags: TagFilter
    active_at: float
    handle: T


class Waiters(Generic[T]):
    """All who wait, per queue. Adding and leaving cost O(1); waking one costs O(waiters of its queue)."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[Waiter[T], None]] = {}

    def add(self, waiter: Waiter[T]) -> None:
        """Begin to wait."""
        self._by_queue.setdefault(waiter.queue, {})[waiter] = None

    def discard(self, waiter: Waiter[T]) -> bool:
        """Stop waiting; False when it had been taken or was never here."""
        waiting = self._by_queue.get(waiter.queue)
        if waiting is None or waiter not in waiting:
            return False
        del waiting[waiter]
        if not waiting:
            del self._by_queue[waiter.queue]
        return True

    def take(
        self, queue: str, tag: str | None, count: int, *, is_gone: Callable[[T], bool] | None = None
    ) -> list[Waiter[T]]:
        """Remove and return up to `count` waiters that would take a task of `tag`, most recently active first.

        Args:
            is_gone: whether a handle's caller is not there any more: it is passed over, and stays.
        """
        waiting = self._by_queue.get(queue)
        if not waiting:
            return []
        fitting = [waiter for waiter in waiting if waiter.tags.accepts(tag)]
        fitting.sort(key=lambda waiter: waiter.active_at, reverse=True)
        taken = list(islice(fitting if is_gone is None else (w for w in fitting if not is_gone(w.handle)), count))
        for waiter in taken:
            self.discard(waiter)
        return taken

    def queues(self) -> list[str]:
        """Queues that somebody waits on."""
        return list(self._by_queue)

    def __len__(self) -> int:
        return sum(map(len, self._by_queue.values()))

    def __iter__(self) -> Iterator[Waiter[T]]:
        for waiting in self._by_queue.values():
            yield from waiting
