"""The recent lifecycle events in memory, for those who look and those who follow; passes them on to the log."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from queue_core.events import EventLog, Lifecycle, NullLog, QueueEvent
from queue_core.http_api.values import Json
from queue_core.process.logs import LifecycleFile

HEARTBEAT_SECONDS = 15.0
MAX_FOLLOWERS = 100


@dataclass(frozen=True, slots=True)
class RecentEvents:
    """Some events, where to go on, and whether older ones had been dropped by then."""

    events: tuple[tuple[int, QueueEvent], ...]
    cursor: int
    missed: bool


class EventRing:
    """An `EventLog` in front of another. Lives in the server's loop."""

    def __init__(self, behind: EventLog | None, *, size: int, lifecycle: Lifecycle) -> None:
        self._behind = behind or NullLog()
        finest = {"off": 0, "batch": 1, "task": 2}
        self.lifecycle: Lifecycle = max(lifecycle, self._behind.lifecycle, key=lambda one: finest[one])
        self._ring: deque[QueueEvent] = deque(maxlen=size)
        self._total = 0
        self._followers: set[asyncio.Event] = set()
        self._is_stopped = False

    @property
    def is_full(self) -> bool:
        """Whether one more may not follow."""
        return len(self._followers) >= MAX_FOLLOWERS

    @property
    def lost_total(self) -> int:
        """Events that the log behind this one could not keep."""
        return self._behind.dropped_total if isinstance(self._behind, LifecycleFile) else 0

    def record(self, events: Sequence[QueueEvent]) -> None:
        """See `EventLog.record`."""
        self._ring.extend(events)
        self._total += len(events)
        for follower in self._followers:
            follower.set()
        if self._behind.lifecycle != "off":
            self._behind.record(events)

    def recent(self, *, after: int, limit: int) -> RecentEvents:
        """Events after the cursor, oldest first."""
        first = self._total - len(self._ring)
        begin = min(max(after, first), self._total)
        found = tuple(enumerate(islice(self._ring, begin - first, begin - first + limit), start=begin + 1))
        return RecentEvents(found, begin + len(found), missed=after < first)

    @property
    def total(self) -> int:
        """Events ever recorded: the cursor of the newest."""
        return self._total

    async def follow(self, *, after: int) -> AsyncIterator[RecentEvents | None]:
        """Events as they come, until `stop`; None now and then, so that a connection that died is noticed."""
        news = asyncio.Event()
        self._followers.add(news)
        try:
            while not self._is_stopped:
                news.clear()
                recent = self.recent(after=after, limit=500)
                if recent.events:
                    after = recent.cursor
                    yield recent
                    continue
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield None
        finally:
            self._followers.discard(news)

    def stop(self) -> None:
        """End all following."""
        self._is_stopped = True
        for follower in self._followers:
            follower.set()


def event_json(event: QueueEvent) -> Json:
    """An event without what does not apply to it."""
    return {field.name: value for field in fields(event) if (value := getattr(event, field.name)) is not None}
