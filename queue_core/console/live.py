"""Pages that follow what happens: each is rendered once for all its viewers, and not at all without any.

What the rendering of all pages costs is bounded: pages that are dear, and many pages, are rendered less often, and all
of them when the server is busy. So people who look do not slow down those that lease. Needs no timer and reads nothing
while nobody looks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from queue_core.clock import thread_cpu_seconds
from queue_core.process.places import Places

INTERVAL_SECONDS: Final = 1.0
"""Pause between two renderings of a page, at least."""
LONGEST_INTERVAL_SECONDS: Final = 20.0
"""The same, at most: also of a page that takes long because its store is slow."""
SHARE: Final = 0.05
"""The part of the time in which pages are made, at most, as long as the longest interval allows it. With what viewers
and samples take, 20 people at 20 pages cost up to twice this."""
BUSY_SHARE: Final = 0.015
"""The same, of a server whose loop is busy all the time."""
COSTS_KEPT: Final = 5
"""Renderings of a page whose durations are remembered."""
HEARTBEAT_SECONDS: Final = 15.0
"""Seconds without a change after which a viewer's connection is written to, so that a dead one is noticed."""
MAX_VIEWERS: Final = 100
"""Connections that follow pages, at most; further viewers reload their page now and then."""
MAX_STREAM_SECONDS: Final = 900.0
"""A stream ends after so long, and its browser connects again: then the viewer's rights are looked up anew."""
RETRY: Final = b"retry: 1000\n\n"
"""The first lines of a stream: browsers connect again after a second."""
ALIVE: Final = b":\n\n"
_OVER: Final = b"event: over\ndata: %s\n\n"

Rendering = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class PageFrame:
    """A page as a server-sent event. `id` is equal for equal pages."""

    id: str
    event: bytes


def frame_of(html: str) -> PageFrame:
    """Return the event of a page."""
    name = blake2b(html.encode(), digest_size=9).hexdigest()
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "&#13;").split("\n"))
    return PageFrame(name, f"id: {name}\nevent: page\n{lines}\n".encode())


def interval_seconds(costs_seconds: float, *, load: float = 0.0) -> float:
    """Return the pause between two renderings when all pages that are looked at cost so much together.

    `load`: the part of the time in which the server's loop is busy, 0 to 1.
    """
    share = SHARE - (SHARE - BUSY_SHARE) * min(max(load, 0.0), 1.0)
    return min(max(INTERVAL_SECONDS, costs_seconds / share), LONGEST_INTERVAL_SECONDS)


class LoopLoad:
    """How busy the loop's thread is, measured between two calls at least a second apart."""

    def __init__(self, monotonic: Callable[[], float], cpu_seconds: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._cpu_seconds = cpu_seconds
        self._since = (monotonic(), cpu_seconds())
        self._load = 0.0

    def now(self) -> float:
        """Return the part of the time in which it computed, 0 to 1."""
        at, cpu = self._monotonic(), self._cpu_seconds()
        seconds = at - self._since[0]
        if seconds >= INTERVAL_SECONDS:
            self._load = min((cpu - self._since[1]) / seconds, 1.0)
            self._since = (at, cpu)
        return self._load


class LivePages:
    """The pages that are looked at now. Lives in the server's loop."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        cpu_seconds: Callable[[], float] = thread_cpu_seconds,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Args:
        monotonic: seconds that never go back.
        cpu_seconds: the CPU time of the loop's thread.
        pause: waits for so many seconds.
        """
        self.now = monotonic
        self._load = LoopLoad(monotonic, cpu_seconds)
        self.pause = pause
        self._pages: dict[tuple[str, ...], _LivePage] = {}
        self._places = Places(MAX_VIEWERS)
        self.turn = asyncio.Lock()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End all streams, so that the server's stop is quick."""
        self._stopped.set()
        for page in self._pages.values():
            page.changed.set()

    def take_seat(
        self, key: tuple[str, ...], render: Rendering, *, viewer: str | None = None, is_admin: bool = False
    ) -> "Seat | None":
        """Return a place among the viewers of a page, to be left at last; None: all are taken, or all of the viewer's.

        Args:
            key: equal for viewers that see the same page with the same rights.
            render: makes the page.
            viewer: the viewer's token, for the places that it may have; None where there are none.
        """
        if self._stopped.is_set() or self._places.refusal(viewer, is_admin=is_admin or viewer is None):
            return None
        page = self._pages.setdefault(key, _LivePage(self, key, render))
        self._places.take(viewer)
        page.viewers += 1
        page.start()
        return Seat(self, page, viewer)

    def end_streams(self) -> None:
        """End all streams: their browsers connect again, and their rights are looked up anew."""
        for page in list(self._pages.values()):
            page.is_over = True
            self.retire(page)
            page.wake_viewers()

    def recheck_sessions(self) -> None:
        """Have all streams look at whether their sessions go on."""
        for page in self._pages.values():
            page.wake_viewers()

    def leave(self, page: "_LivePage", viewer: str | None) -> None:
        """Give a place back."""
        self._places.leave(viewer)
        page.viewers -= 1
        if not page.viewers:
            page.end()
            if self._pages.get(page.key) is page:
                del self._pages[page.key]

    def retire(self, page: "_LivePage") -> None:
        """Let later viewers begin anew: the page could not be made, or rights have changed."""
        if self._pages.get(page.key) is page:
            del self._pages[page.key]

    @property
    def is_stopped(self) -> bool:
        """Return whether the server stops."""
        return self._stopped.is_set()

    @property
    def interval_seconds(self) -> float:
        """Return the pause between two renderings of a page now."""
        return interval_seconds(sum(page.cost_seconds for page in self._pages.values()), load=self._load.now())


class Seat:
    """The place of one viewer at a page."""

    def __init__(self, pages: LivePages, page: "_LivePage", viewer: str | None) -> None:
        self._pages = pages
        self._page = page
        self._viewer = viewer
        self._is_left = False

    def leave(self) -> None:
        """Give the place back. Once is enough, more often is allowed."""
        if not self._is_left:
            self._is_left = True
            self._pages.leave(self._page, self._viewer)

    async def events(
        self, *, seen: str, seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the page whenever it has changed, and comments in between; ends with the server, or the page.

        Args:
            seen: the id of the page that the viewer has, as its `Last-Event-ID`; "" for none.
            seconds: how long its session lasts; the stream says when it is over.
            is_over: returns whether the session has ended before that.
        """
        page, pages = self._page, self._pages
        ends_at = pages.now() + min(seconds, MAX_STREAM_SECONDS)
        yield RETRY
        while not pages.is_stopped and not page.has_failed:
            if is_over():
                yield _OVER % b"session"
                return
            if page.is_over:
                return
            if page.frame is not None and page.frame.id != seen:
                seen = page.frame.id
                yield page.frame.event
                continue
            left = ends_at - pages.now()
            if left <= 0:
                if seconds <= MAX_STREAM_SECONDS:
                    yield _OVER % b"session"
                return
            try:
                async with asyncio.timeout(min(HEARTBEAT_SECONDS, left)):
                    await page.changed.wait()
            except TimeoutError:
                yield ALIVE


class _LivePage:
    """One page with its viewers."""

    def __init__(self, pages: LivePages, key: tuple[str, ...], render: Rendering) -> None:
        self.key = key
        self.viewers = 0
        self._html = ""
        self.frame: PageFrame | None = None
        self.has_failed = False
        self.is_over = False
        self._costs_seconds: deque[float] = deque(maxlen=COSTS_KEPT)
        self.changed = asyncio.Event()
        self._pages = pages
        self._render = render
        self._task: asyncio.Task[None] | None = None

    @property
    def cost_seconds(self) -> float:
        """Return what a rendering costs: the least of late, as others use the machine too."""
        return min(self._costs_seconds, default=0.0)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while True:
            try:
                async with self._pages.turn:  # one at a time, so that the time it takes is its own
                    began = self._pages.now()
                    html = await self._render()
                    self._costs_seconds.append(self._pages.now() - began)
            except Exception:  # noqa: BLE001 - the streams end; their viewers ask again and are told why
                self.has_failed = True
                self._pages.retire(self)
                self.wake_viewers()
                return
            if self.frame is None or html != self._html:
                self._html = html
                self.frame = frame_of(html)
                self.wake_viewers()
            await self._pages.pause(self._pages.interval_seconds)

    def wake_viewers(self) -> None:
        """Wake the viewers that wait now; those that come later look at the page itself."""
        self.changed.set()
        self.changed = asyncio.Event()
