"""The recent lifecycle events in memory, for readers and followers; passes them on to the log."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from queue_core.events import EventLog, Lifecycle, NullLog, QueueEvent
from queue_core.process.logs import LifecycleFile
from queue_core.process.places import Places
from queue_core.verbs.wire import Json

HEARTBEAT_SECONDS = 15.0
"""Seconds of silence after which a follower's connection is written to, so that a dead one is noticed."""
MAX_FOLLOWERS = 100
"""Connections that follow the events, at most."""


@dataclass(frozen=True, slots=True)
class RecentEvents:
    """Some events, the cursor behind them, and whether older ones had been dropped (`missed`)."""

    events: tuple[tuple[int, QueueEvent], ...]
    cursor: int
    missed: bool


class EventRing:
    """An `EventLog` that keeps the latest events and passes all on to another log. Lives in the server's loop."""

    def __init__(self, next_log: EventLog | None, *, size: int, lifecycle: Lifecycle) -> None:
        self._next = next_log or NullLog()
        finest = {"off": 0, "batch": 1, "task": 2}
        self.lifecycle: Lifecycle = max(lifecycle, self._next.lifecycle, key=lambda one: finest[one])
        self._ring: deque[QueueEvent] = deque(maxlen=size)
        self._total = 0
        self._followers: set[asyncio.Event] = set()
        self.places = Places(MAX_FOLLOWERS)
        """The places of followers."""
        self._is_stopped = False

    @property
    def lost_total(self) -> int:
        """The number of events that the other log could not keep."""
        return self._next.dropped_total if isinstance(self._next, LifecycleFile) else 0

    def record(self, events: Sequence[QueueEvent]) -> None:
        """See `EventLog.record`."""
        self._ring.extend(events)
        self._total += len(events)
        for follower in self._followers:
            follower.set()
        if self._next.lifecycle != "off":
            self._next.record(events)

    def recent(self, *, after: int, limit: int) -> RecentEvents:
        """Return events after the cursor, oldest first."""
        first = self._total - len(self._ring)
        begin = min(max(after, first), self._total)
        found = tuple(enumerate(islice(self._ring, begin - first, begin - first + limit), start=begin + 1))
        return RecentEvents(found, begin + len(found), missed=after < first)

    @property
    def total(self) -> int:
        """The number of events ever recorded: the cursor of the newest."""
        return self._total

    def resumed(self, last_event_id: str, *, default: int) -> int:
        """Return the cursor to go on from for a reader that connects again; `default` for one that is new.

        A cursor of before a restart is beyond all events of now: then all of them are new.
        """
        is_cursor = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20
        after = int(last_event_id) if is_cursor else default
        return after if after <= self._total else 0

    async def follow(
        self, *, after: int, is_over: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[RecentEvents | None]:
        """Yield events as they come, until `stop`; None after a silence, so that a dead connection is noticed.

        `is_over`: returns whether the follower may not follow any more; looked at whenever it is woken.
        """
        changed = asyncio.Event()
        self._followers.add(changed)
        try:
            while not self._is_stopped and not is_over():
                changed.clear()
                recent = self.recent(after=after, limit=500)
                if recent.events:
                    after = recent.cursor
                    yield recent
                    continue
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield None
        finally:
            self._followers.discard(changed)

    def stop(self) -> None:
        """End all followers."""
        self._is_stopped = True
        self.wake()

    def wake(self) -> None:
        """Have all followers look at whether they may go on."""
        for follower in self._followers:
            follower.set()


def event_json(event: QueueEvent) -> Json:
    """Return an event's fields that are set."""
    return {field.name: value for field in fields(event) if (value := getattr(event, field.name)) is not None}
