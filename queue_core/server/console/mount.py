"""The paths of the console and the manual on a listener, behind its guard against foreign hosts. Both are read when
somebody looks."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from queue_core.console import load_console
from queue_core.server.callers.auth import Authorizer
from queue_core.server.fast_path import reply_of

if TYPE_CHECKING:
    from queue_core.console.app import Console
    from queue_core.console.manual.pages import ManualPages

ENTRY = "console/"
"""Where the console is, below a listener's address."""


class ConsoleMount:
    """The console of one listener. Lives in its loop."""

    def __init__(self, authorizer: Authorizer, make: Callable[[], "Console"], *, manual: Path | None = None) -> None:
        """Make the routes' state; nothing is read before somebody looks.

        Args:
            make: makes the console.
            manual: the file of the manual's site; None: the package's own.
        """
        self._authorizer = authorizer
        self._make = make
        self._console: Console | None = None
        self._archive = manual
        self._manual: ManualPages | None = None

    def routes(self) -> list[BaseRoute]:
        """Return the routes: the console, the manual, and `/`, which sends browsers to the console."""
        return [
            Route("/console", _slash, methods=["GET"]),
            Mount("/console", self._serve),
            Route("/docs", _slash_of_manual, methods=["GET"]),
            Mount("/docs", self._serve_manual),
            Route("/", _browser_entry, methods=["GET"]),
        ]

    def end_sessions(self) -> None:
        """End the console's streams of sessions that are over."""
        if self._console is not None:
            self._console.end_sessions()

    def stop(self) -> None:
        """End the console's streams, so that the listener's stop is quick."""
        if self._console is not None:
            self._console.stop()

    @property
    def console(self) -> "Console":
        """Return the console."""
        if self._console is None:
            self._console = self._make()
        return self._console

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if self._console is None:
            await asyncio.to_thread(load_console)
        await self.console.app(scope, receive, send)

    async def _serve_manual(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = self._refusal(scope)
        if response is None:
            if self._manual is None:
                from queue_core.console.manual.archive import ARCHIVE
                from queue_core.console.manual.pages import ManualPages

                self._manual = ManualPages(self._archive or ARCHIVE)
            response = await self._manual.response(Request(scope, receive))
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that comes by a foreign name or from a foreign page; None: it is welcome."""
        try:
            self._authorizer.check_host_and_origin(scope["headers"])
        except Exception as error:  # noqa: BLE001 - the top of a request
            reply = reply_of(error)
            headers = {name.decode(): value.decode() for name, value in reply.headers}
            return Response(reply.body, reply.status, headers, media_type=reply.media_type.decode())
        return None


async def _slash(_request: Request) -> Response:
    """Add the slash that the pages' relative links need; the address is relative, so that it holds behind a prefix."""
    return RedirectResponse(ENTRY, status_code=307)


async def _slash_of_manual(_request: Request) -> Response:
    """Add the slash, as `_slash` does."""
    return RedirectResponse("docs/", status_code=307)


async def _browser_entry(request: Request) -> Response:
    """Send browsers to the console."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(ENTRY, status_code=302)
    raise HTTPException(404)
