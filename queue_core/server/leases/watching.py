"""Callers who wait to hear that there is work, without taking any: supervisors of pools that are asleep. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queue_core.task import TagFilter


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """One caller, what it listens for, and how it is told the queue's name."""

    wanted: Sequence[tuple[str, TagFilter]]
    tell: Callable[[str], None]


class Watchers:
    """All who watch. There are few of them (a supervisor each), so everything here looks at all."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    def add(self, watcher: Watcher) -> None:
        """Begin to watch."""
        self._watchers[watcher] = None

    def discard(self, watcher: Watcher) -> None:
        """Stop; it may have been told meanwhile."""
        self._watchers.pop(watcher, None)

    def queues(self) -> set[str]:
        """Queues that somebody watches; may be asked from another thread."""
        return {queue for watcher in list(self._watchers) for queue, _ in watcher.wanted}

    def filters(self, queue: str) -> set[TagFilter]:
        """What is watched for in a queue."""
        return {tags for watcher in self._watchers for wanted, tags in watcher.wanted if wanted == queue}

    def note_task(self, queue: str, tag: str | None) -> None:
        """A task of a tag became leasable."""
        self._tell(queue, lambda tags: tags.accepts(tag))

    def note_ready(self, queue: str, tags: TagFilter) -> None:
        """There are ready tasks that pass a filter."""
        self._tell(queue, lambda wanted: wanted == tags)

    def tell_all(self, queue: str) -> None:
        """Send everybody who watches a queue to look for themselves."""
        self._tell(queue, lambda _tags: True)

    def _tell(self, queue: str, fits: Callable[[TagFilter], bool]) -> None:
        told = [
            watcher
            for watcher in self._watchers
            if any(wanted == queue and fits(tags) for wanted, tags in watcher.wanted)
        ]
        for watcher in told:
            del self._watchers[watcher]
            watcher.tell(queue)

    def __len__(self) -> int:
        return len(self._watchers)
