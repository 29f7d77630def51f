"""Callers known to a server: the waiting ones, in the order in which they are woken, and present workers. Pure.

The most recently active worker is woken first: the workers of a pool that has too many become visibly idle.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar

from queue_core.stats import WorkerActivity
from queue_core.task import TagFilter
from queue_core.verbs.served_tags import ServedTags, is_recent, merged_tags, tags_served_by

MAX_CALLERS_REMEMBERED = 20_000
"""Callers whose activity is remembered; the one that was silent for longest is forgotten first."""
MAX_PRESENT_WORKERS = 20_000
"""Workers remembered at most; the one that was silent for longest is forgotten first."""

MAX_PRESENT_BYTES = 32 << 20
"""The most bytes that names and tags of all remembered workers take, with their overhead."""
MAX_TAG_BYTES_OF_WORKER = 8 << 10
"""The most bytes of one worker's tags; a worker that leases more counts as one that leases any tag."""
_WORKER_BYTES = 600
_TAG_BYTES = 100
"""The bytes of an entry beside its text."""

MAX_RECENT_WORKERS = 2_000
"""Of those, the latest that are listed at a time, at most."""


class Waiter(Protocol):
    """A waiting caller: its queue, its filter, and when it last worked. Compared by identity."""

    @property
    def queue(self) -> str: ...

    @property
    def tags(self) -> TagFilter: ...

    @property
    def active_at(self) -> float: ...

    def is_gone(self) -> bool:
        """Return whether the caller has hung up: it is not woken, and stays until it is removed."""


W = TypeVar("W", bound=Waiter)


class Waiters(Generic[W]):
    """All waiting callers, by queue and filter. Adding and removing cost O(1); waking one costs O(filters of its
    queue, and waiters of those that fit)."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[TagFilter, dict[W, None]]] = {}
        self.count = 0
        """The number of those that wait."""

    def add(self, waiter: W) -> None:
        """Begin to wait."""
        self._by_queue.setdefault(waiter.queue, {}).setdefault(waiter.tags, {})[waiter] = None
        self.count += 1

    def discard(self, waiter: W) -> bool:
        """Stop waiting; False when it had been taken or was never here."""
        by_tags = self._by_queue.get(waiter.queue, {})
        waiting = by_tags.get(waiter.tags, {})
        if waiter not in waiting:
            return False
        del waiting[waiter]
        self.count -= 1
        if not waiting:
            del by_tags[waiter.tags]
            if not by_tags:
                del self._by_queue[waiter.queue]
        return True

    def take(self, queue: str, count: int, *, fits: Callable[[TagFilter], bool]) -> list[W]:
        """Remove and return up to `count` waiters of a queue whose filters fit, the most recently active first."""
        by_tags = self._by_queue.get(queue, {})
        fitting = [waiter for tags, waiting in by_tags.items() if fits(tags) for waiter in waiting]
        fitting.sort(key=lambda waiter: waiter.active_at, reverse=True)
        return self.take_all(islice((waiter for waiter in fitting if not waiter.is_gone()), count))

    def take_all(self, waiters: Iterable[W]) -> list[W]:
        """Remove these waiters, and return those of them that were still waiting."""
        return [waiter for waiter in list(waiters) if self.discard(waiter)]

    def queues(self) -> list[str]:
        """Return the queues that have waiters; any thread may call this."""
        return list(self._by_queue)

    def filters(self, queue: str) -> set[TagFilter]:
        """Return the filters of a queue's waiters."""
        return set(self._by_queue.get(queue, ()))

    def of(self, queue: str) -> Iterator[W]:
        """Return the waiters of a queue."""
        return chain.from_iterable(self._by_queue.get(queue, {}).values())

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[W]:
        return chain.from_iterable(self.of(queue) for queue in self._by_queue)


def taking(tag: str | None) -> Callable[[TagFilter], bool]:
    """Return a predicate: whether a filter accepts a task of this tag."""
    return lambda tags: tags.accepts(tag)


class CallerActivity:
    """When each caller last worked."""

    def __init__(self) -> None:
        self._active_at: dict[Hashable, float] = {}

    def record(self, caller: Hashable, *, now: float) -> None:
        """Remember that a caller works."""
        active_at = self._active_at
        active_at.pop(caller, None)
        active_at[caller] = now
        if len(active_at) > MAX_CALLERS_REMEMBERED:
            del active_at[next(iter(active_at))]

    def active_at(self, caller: Hashable, *, now: float) -> float:
        """Return when a caller last worked; one that is new counts as active `now`."""
        known = self._active_at.get(caller)
        if known is None:
            self.record(caller, now=now)
            return now
        return known


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """A caller that is notified of work without taking any, such as a supervisor of pools that are asleep.

    Args:
        wanted: queues, and tags in them.
        notify: called once, with the queue that has work.
    """

    wanted: Sequence[tuple[str, TagFilter]]
    notify: Callable[[str], None]


class Watchers:
    """All watchers. There are few of them (one for each supervisor), so every method goes through all."""

    def __init__(self) -> None:
        self.watching: dict[Watcher, None] = {}
        """Those that watch now, in the order in which they came."""

    def add(self, watcher: Watcher) -> None:
        """Begin to watch."""
        self.watching[watcher] = None

    def discard(self, watcher: Watcher) -> None:
        """Stop; it may have been notified meanwhile."""
        self.watching.pop(watcher, None)

    def queues(self) -> set[str]:
        """Return the queues that are watched; any thread may call this."""
        return {queue for watcher in list(self.watching) for queue, _ in watcher.wanted}

    def filters(self, queue: str) -> set[TagFilter]:
        """Return the filters of a queue's watchers."""
        return {tags for watcher in self.watching for wanted, tags in watcher.wanted if wanted == queue}

    def notify(self, queue: str, *, fits: Callable[[TagFilter], bool] = lambda _tags: True) -> None:
        """Notify the watchers of a queue whose filter fits, and forget them."""
        fitting = [
            watcher
            for watcher in self.watching
            if any(wanted == queue and fits(tags) for wanted, tags in watcher.wanted)
        ]
        for watcher in fitting:
            del self.watching[watcher]
            watcher.notify(queue)


@dataclass(slots=True)
class WorkerPresence:
    """One worker on one queue. `at` is when its last call came or ended; `calls` is the number of calls under way.

    `tags` are those that any of its calls leases; `selection` is that of its last call.
    """

    worker: str
    queue: str
    at: float
    calls: int = 0
    waits: bool = False
    hung_up: bool = False
    tags: ServedTags | None = None
    selection: int | None = None
    counted_bytes: int = 0

    def describe(self, *, now: float) -> WorkerActivity:
        """Return what clients are shown of it."""
        silent_seconds = 0.0 if self.calls else max(0.0, now - self.at)
        return WorkerActivity(self.worker, round(silent_seconds, 3), self.waits, self.hung_up, self.tags)

    def called_for(self, selection: TagFilter) -> None:
        """Record that a call leases something else than the one before."""
        known = () if self.tags is None else (self.tags,)
        found = merged_tags((*known, tags_served_by(selection)))
        self.tags = () if found and _size_of(found) > MAX_TAG_BYTES_OF_WORKER else found

    def count_bytes(self) -> int:
        """Return how many bytes more than before it takes."""
        before = self.counted_bytes
        texts = len(self.worker.encode()) + len(self.queue)
        self.counted_bytes = _WORKER_BYTES + texts + _size_of(self.tags or ())
        return self.counted_bytes - before


def _size_of(tags: ServedTags) -> int:
    return sum(_TAG_BYTES + len((tag or "").encode()) for tag in tags)


class Presence:
    """Workers that this server knows by their lease calls. Nothing of it is stored: a server starts with none."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, str], WorkerPresence] = {}
        self._bytes = 0

    def call_began(self, queue: str, worker: str, tags: TagFilter, *, waits: bool, now: float) -> None:
        """Record a call that came; a call without a worker name is ignored."""
        if not worker:
            return
        key = (queue, worker)
        found = self._workers.pop(key, None)
        if found is None:
            found = WorkerPresence(worker, queue, now)
            self._bytes += found.count_bytes()
        self._workers[key] = found
        found.at = now
        found.calls += 1
        found.waits = found.waits or waits
        found.hung_up = False
        selection = hash(tags)
        if selection != found.selection:
            found.selection = selection
            found.called_for(tags)
            self._bytes += found.count_bytes()
        while len(self._workers) > MAX_PRESENT_WORKERS or self._bytes > MAX_PRESENT_BYTES:
            self._bytes -= self._workers.pop(next(iter(self._workers))).counted_bytes

    def call_ended(self, queue: str, worker: str, *, now: float, hung_up: bool = False) -> None:
        """Record that a call was answered, or that its caller hung up."""
        found = self._workers.get((queue, worker))
        if found is not None:
            found.at = now
            found.calls = max(0, found.calls - 1)
            found.hung_up = hung_up

    def find(self, queue: str, workers: Iterable[str]) -> Iterator[WorkerPresence]:
        """Return those of these workers that called for leases of the queue."""
        return (found for worker in workers if (found := self._workers.get((queue, worker))) is not None)

    def recent(self, *, now: float) -> list[WorkerPresence]:
        """Return the workers that have called within a minute, on each of their queues, the latest first."""
        found = (one for one in reversed(self._workers.values()) if one.calls or is_recent(now - one.at))
        return list(islice(found, MAX_RECENT_WORKERS))

    def with_prefix(self, queue: str, prefix: str) -> Iterator[WorkerPresence]:
        """Return the workers of a queue whose names start with `prefix`."""
        return (one for one in self._workers.values() if one.queue == queue and one.worker.startswith(prefix))
