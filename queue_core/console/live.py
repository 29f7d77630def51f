"""Pages that follow what happens: each is rendered once a second for all its viewers, and not at all without any."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

INTERVAL_SECONDS: Final = 1.0
HEARTBEAT_SECONDS: Final = 15.0
"""Seconds without a change after which a viewer's connection is written to, so that a dead one is noticed."""
MAX_VIEWERS: Final = 100
"""Connections that follow pages, at most; further viewers reload their page now and then."""

Rendering = Callable[[], Awaitable[str]]


class LivePages:
    """The pages that are looked at now. Lives in the server's loop."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, ...], _LivePage] = {}
        self._viewers = 0
        self._is_stopped = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Return whether there are as many viewers as there may be."""
        return self._viewers >= MAX_VIEWERS

    def stop(self) -> None:
        """End all streams, so that the server's stop is quick."""
        self._is_stopped.set()
        for page in self._pages.values():
            page.changed.set()

    async def follow(self, key: tuple[str, ...], render: Rendering) -> AsyncIterator[str | None]:
        """Yield a page whenever it has changed, until `stop`; None after a silence.

        `key`: equal for viewers that see the same page with the same rights; `render` makes it.
        """
        page = self._pages.setdefault(key, _LivePage(render))
        self._viewers += 1
        page.viewers += 1
        page.start()
        seen = ""
        try:
            while not self._is_stopped.is_set():
                if page.failure is not None:
                    return
                if page.html and page.html != seen:
                    seen = page.html
                    yield seen
                    continue
                page.changed.clear()
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await page.changed.wait()
                except TimeoutError:
                    yield None
        finally:
            self._viewers -= 1
            page.viewers -= 1
            if not page.viewers:
                page.end()
                self._pages.pop(key, None)


class _LivePage:
    """One page with its viewers."""

    def __init__(self, render: Rendering) -> None:
        self.viewers = 0
        self.html = ""
        self.failure: Exception | None = None
        self.changed = asyncio.Event()
        self._render = render
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while True:
            try:
                html = await self._render()
            except Exception as error:  # noqa: BLE001 - the streams end, and their viewers ask again
                self.failure = error
                self.changed.set()
                return
            if html != self.html:
                self.html = html
                self.changed.set()
            await asyncio.sleep(INTERVAL_SECONDS)
