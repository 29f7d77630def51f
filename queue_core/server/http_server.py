"""uvicorn as a part of something larger: stopped by a call, seldom awake while idle, and no caller is lost to it."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from queue_core.server.http_connection import HttpConnection

TICK_SECONDS: Final = 1.0
"""How often an idle server wakes, for the date of its answers and the time of its connections."""
_ACCEPTING_TAKES: Final = 3
"""Rounds of asyncio's loop from a connection that is accepted to its protocol that knows."""


class HttpServer(uvicorn.Server):
    """Made in its loop. It lets signals be, and ends waiting calls before it waits for them."""

    def __init__(
        self, config: uvicorn.Config, *, started: Callable[[], None], stopping: Callable[[], None] = lambda: None
    ) -> None:
        """Args:
        started: called when it listens.
        stopping: called before it waits for the requests under way: ends those that wait for something.
        """
        super().__init__(config)
        self._end_waiting = stopping
        self._tell_started = started
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._tell_started()

    async def main_loop(self) -> None:
        """As uvicorn does, which looks ten times a second whether it was stopped."""
        while not await self.on_tick(counter=0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopped.wait()

    async def on_tick(self, counter: int) -> bool:
        """Count the second for every connection, too."""
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.tick()
        return await super().on_tick(counter)

    def stop(self) -> None:
        """Leave the main loop; from any thread, or a signal handler."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody wait, then wait for everybody."""
        self._end_waiting()
        for listening in sockets or []:
            self._loop.remove_reader(listening)
        for _ in range(_ACCEPTING_TAKES):  # a server closed meanwhile leaves the caller's socket to nobody
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's."""
        yield
