"""Pages that are followed: rendered once for all that see the same, as often as their cost allows, not for nobody."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing

import pytest

from queue_core.console.api import ApiReply, Query
from queue_core.console.live import (
    BUSY_SHARE,
    LONGEST_INTERVAL_SECONDS,
    MAX_STREAM_SECONDS,
    MAX_VIEWERS,
    SHARE,
    LivePages,
    LoopLoad,
    Seat,
    frame_of,
    interval_seconds,
)
from queue_core.console.shared import FRESH_SECONDS, LONGEST_SECONDS, PageMemory, SharedApi, fresh_seconds
from queue_core.verbs.wire import Json

FOREVER = float("inf")


class Stage:
    """Live pages whose time goes on by the pauses between renderings, each given by the test."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rendered = 0
        self.pauses: list[float] = []
        self.html = "<p>one</p>"
        self.cost_seconds = 0.0
        self.cpu_seconds = 0.0
        self._next = asyncio.Event()
        self.rests = asyncio.Event()
        self.pages = LivePages(lambda: self.seconds, cpu_seconds=lambda: self.cpu_seconds, pause=self._pause)

    async def render(self) -> str:
        self.rendered += 1
        self.seconds += self.cost_seconds
        return self.html

    def take(self, *key: str) -> Seat:
        seat = self.pages.take_seat(key, self.render)
        assert seat is not None
        return seat

    async def go_on(self) -> None:
        """Let every page be rendered once more."""
        self.rests.clear()
        self._next.set()
        await self.rests.wait()

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._next.clear()
        self.rests.set()
        await self._next.wait()
        self.seconds += seconds


async def pages_of(events: AsyncIterator[bytes], count: int) -> list[bytes]:
    """Return the next pages of a stream."""
    found: list[bytes] = []
    async with asyncio.timeout(10):
        async for event in events:
            if b"event: page" in event:
                found.append(event)
                if len(found) == count:
                    break
    return found


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(story())


def test_a_page_is_rendered_once_for_all_its_viewers() -> None:
    async def story() -> None:
        stage = Stage()
        seats = [stage.take("viewer", "/queues") for _ in range(20)]
        streams = [seat.events(seen="", seconds=FOREVER) for seat in seats]
        shown = [await pages_of(stream, 1) for stream in streams]
        assert shown == [[frame_of("<p>one</p>").event]] * 20
        assert stage.rendered == 1
        stage.html = "<p>two</p>"
        await stage.go_on()
        assert [await pages_of(stream, 1) for stream in streams] == [[frame_of("<p>two</p>").event]] * 20
        assert stage.rendered == 2

    run(story)


def test_a_page_that_nobody_sees_is_not_rendered() -> None:
    async def story() -> None:
        stage = Stage()
        first, second = stage.take("viewer", "/"), stage.take("viewer", "/")
        await pages_of(first.events(seen="", seconds=FOREVER), 1)
        first.leave()
        first.leave()
        await stage.go_on()
        assert stage.rendered == 2
        second.leave()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "no timer and no reading is left"

    run(story)


def test_a_viewer_who_has_the_page_gets_the_next_one() -> None:
    async def story() -> None:
        stage = Stage()
        seat = stage.take("viewer", "/")
        async with aclosing(seat.events(seen=frame_of(stage.html).id, seconds=FOREVER)) as events:
            assert await anext(events) == b"retry: 1000\n\n"
            coming = asyncio.ensure_future(anext(events))
            await stage.rests.wait()
            assert not coming.done()
            stage.html = "<p>two</p>"
            await stage.go_on()
            assert await coming == frame_of("<p>two</p>").event
        seat.leave()

    run(story)


def test_a_session_that_is_over_ends_its_stream_and_says_so() -> None:
    async def story() -> None:
        stage = Stage()
        stage.cost_seconds = 7.0
        seat = stage.take("viewer", "/")
        events = [event async for event in seat.events(seen="", seconds=5.0)]
        assert events[-1] == b"event: over\ndata: session\n\n"
        long = stage.take("viewer", "/")
        stage.seconds += MAX_STREAM_SECONDS
        ended = long.events(seen="", seconds=FOREVER)
        await anext(ended)
        stage.seconds += MAX_STREAM_SECONDS
        assert [event async for event in ended] == [frame_of(stage.html).event], "the browser connects again"

    run(story)


def test_there_are_seats_for_a_hundred() -> None:
    async def story() -> None:
        stage = Stage()
        seats = [stage.take("viewer", f"/{number % 3}") for number in range(MAX_VIEWERS)]
        assert stage.pages.take_seat(("viewer", "/"), stage.render) is None
        seats[0].leave()
        assert stage.pages.take_seat(("viewer", "/"), stage.render) is not None
        stage.pages.stop()
        seats[1].leave()
        assert stage.pages.take_seat(("viewer", "/"), stage.render) is None, "the server stops"

    run(story)


def test_a_page_that_fails_ends_its_streams_and_is_begun_anew() -> None:
    async def story() -> None:
        stage = Stage()

        async def fail() -> str:
            raise ValueError("no such queue")

        broken = stage.pages.take_seat(("viewer", "/"), fail)
        assert broken is not None
        assert [event async for event in broken.events(seen="", seconds=FOREVER)] == [b"retry: 1000\n\n"]
        seat = stage.take("viewer", "/")
        broken.leave()
        assert await pages_of(seat.events(seen="", seconds=FOREVER), 1)

    run(story)


def test_dear_pages_are_rendered_less_often() -> None:
    async def story() -> None:
        stage = Stage()
        stage.cost_seconds = 0.1
        seats = [stage.take("viewer", "/queues"), stage.take("viewer", "/workers")]
        for seat in seats:
            await pages_of(seat.events(seen="", seconds=FOREVER), 1)
        assert stage.pauses[-1] == pytest.approx(0.2 / SHARE)

    run(story)


@pytest.mark.parametrize(
    ("costs", "load", "pause"),
    [
        pytest.param(0.0, 0.0, 1.0, id="free"),
        pytest.param(SHARE, 0.0, 1.0, id="just within the share"),
        pytest.param(2 * SHARE, 0.0, 2.0, id="twice the share"),
        pytest.param(2 * BUSY_SHARE, 1.0, 2.0, id="a busy server"),
        pytest.param(SHARE + BUSY_SHARE, 0.5, 2.0, id="a server that is busy half the time"),
        pytest.param(60.0, 0.0, LONGEST_INTERVAL_SECONDS, id="a store that hangs"),
    ],
)
def test_the_pause_keeps_rendering_within_its_share(costs: float, load: float, pause: float) -> None:
    assert interval_seconds(costs, load=load) == pytest.approx(pause)


def test_the_load_of_the_loop_is_its_computing_in_the_last_second() -> None:
    clocks = {"at": 0.0, "cpu": 0.0}
    load = LoopLoad(lambda: clocks["at"], lambda: clocks["cpu"])
    shown = []
    for at, cpu in ((0.5, 0.5), (1.0, 0.75), (1.9, 1.6), (2.0, 1.75), (12.0, 1.75)):
        clocks.update(at=at, cpu=cpu)
        shown.append(load.now())
    assert shown == [0.0, 0.75, 0.75, 1.0, 0.0]


def test_a_page_is_one_event_whatever_is_in_it() -> None:
    event = frame_of("<p>a\r\nb\n\n\revent: over</p>").event.decode()
    assert event.endswith("\n\n")
    assert "\r" not in event
    lines = event.removesuffix("\n\n").split("\n")
    assert [line.partition(": ")[0] for line in lines] == ["id", "event", "data", "data", "data", "data"]


class CountingApi:
    """An API that answers with the number of its call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str | None]] = []
        self.seconds = 0.0

    async def call(
        self, method: str, path: str, _body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        assert not query
        self.calls.append((method, path, token))
        number = len(self.calls)
        await asyncio.sleep(0)
        return ApiReply(200, {"number": number})


def test_pages_of_one_role_share_the_replies_of_a_moment() -> None:
    async def story() -> None:
        api = CountingApi()
        shared = SharedApi(api, lambda: api.seconds)
        for token, role in (("ann", "viewer"), ("ben", "viewer"), ("eve", "admin")):
            shared.know_rights(token, role)
        replies = await asyncio.gather(*(shared.call("GET", "/v1/stats", token=name) for name in ("ann", "ben", "eve")))
        assert [reply.body["number"] for reply in replies] == [1, 1, 2]
        assert (await shared.call("GET", "/v1/stats", token="stranger")).body["number"] == 3
        api.seconds += FRESH_SECONDS
        assert (await shared.call("GET", "/v1/stats", token="ben")).body["number"] == 4
        await shared.call("POST", "/v1/queues/a/peek", {"limit": 1}, token="ben")
        assert (await shared.call("POST", "/v1/queues/a/peek", {"limit": 1}, token="ann")).body["number"] == 5
        assert (await shared.call("POST", "/v1/queues/a/peek", {"limit": 2}, token="ann")).body["number"] == 6
        await shared.call("POST", "/v1/queues/a/pause", {}, token="ann")
        assert (await shared.call("GET", "/v1/stats", token="ben")).body["number"] == 8, "something has changed"

    run(story)


def test_a_dear_reply_is_used_for_longer() -> None:
    assert fresh_seconds(0.0) == FRESH_SECONDS
    assert fresh_seconds(0.05) == pytest.approx(2.0)
    assert fresh_seconds(9.0) == LONGEST_SECONDS


def test_a_page_remembers_a_value_until_its_mark_changes() -> None:
    async def story() -> None:
        seconds = [0.0]
        memory, made = PageMemory(lambda: seconds[0]), list[int]()

        async def make() -> int:
            made.append(len(made))
            return made[-1]

        assert [await memory.value("dead", mark, make) for mark in (1, 1, 2, 2)] == [0, 0, 1, 1]
        seconds[0] += 60.0
        assert await memory.value("dead", 2, make) == 2
        assert memory.get("other") is None

    run(story)
