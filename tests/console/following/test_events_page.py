"""The page of events: only new ones are read, none is missed, and none of another run is mixed in."""

import asyncio
from collections.abc import Sequence

from queue_core.clock import Instant
from queue_core.console.api import ApiReply, Query
from queue_core.console.call import PageCall, Viewer
from queue_core.console.pages.events import EVENTS_READ, EVENTS_SHOWN, events
from queue_core.console.shared import PageMemory
from queue_core.events import QueueEvent
from queue_core.server.base.event_stream import EventRing, event_json
from queue_core.verbs.wire import Json
from tests.support.servers import QUEUE


class RingApi:
    """The API of a server that has only a ring of events."""

    def __init__(self) -> None:
        self.ring = EventRing(None, size=EVENTS_READ, lifecycle="task")
        self.sent = 0

    def add(self, *names: str) -> None:
        self.ring.record([QueueEvent("task.added", at=Instant(1), queue=QUEUE, task=name) for name in names])

    async def call(
        self, _method: str, _path: str, _body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        assert token is None
        given = dict(query)
        after = int(given.get("after", max(0, self.ring.total - EVENTS_READ)))
        recent = self.ring.recent(after=after, limit=int(given["limit"]))
        self.sent += len(recent.events)
        told = [{"id": number, **event_json(event)} for number, event in recent.events]
        return ApiReply(200, {"events": told, "cursor": recent.cursor, "missed": recent.missed})


def names_shown(api: RingApi, memory: PageMemory, **wanted: str) -> Sequence[str]:
    call = PageCall(api, Viewer(None, is_logged_in=False), {}, [*wanted.items()], 0.0, role="viewer", memory=memory)
    shown = asyncio.run(events(call))["events"]
    assert isinstance(shown, Sequence)
    return [str(one["task"]) for one in shown]


def test_only_events_after_the_last_look_are_read() -> None:
    api, memory = RingApi(), PageMemory(lambda: 0.0)
    api.add("a", "b")
    assert names_shown(api, memory) == ["b", "a"]
    api.add("c")
    assert names_shown(api, memory) == ["c", "b", "a"]
    assert names_shown(api, memory, task="b") == ["b"]
    assert api.sent == 3


def test_after_more_events_than_are_kept_the_newest_are_shown() -> None:
    api, memory = RingApi(), PageMemory(lambda: 0.0)
    api.add("a")
    assert names_shown(api, memory) == ["a"]
    api.add(*(f"t{number}" for number in range(EVENTS_READ + 500)))
    shown = names_shown(api, memory)
    assert (len(shown), shown[0]) == (EVENTS_SHOWN, f"t{EVENTS_READ + 499}")


def test_events_of_a_server_that_was_restarted_take_the_place_of_those_before() -> None:
    api, memory = RingApi(), PageMemory(lambda: 0.0)
    api.add("a", "b", "c")
    assert names_shown(api, memory) == ["c", "b", "a"]
    api.ring = RingApi().ring
    api.add("d")
    assert names_shown(api, memory) == ["d"]
