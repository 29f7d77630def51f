"""The stream of a page as a response: its viewer's place is given back however the connection ends."""

from collections.abc import Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from queue_core.console import guard
from queue_core.console.live import Seat

STREAM_HEADERS = {**guard.PAGE_HEADERS, "x-accel-buffering": "no"}
"""nginx passes on a stream at once that says so, whatever its settings."""


class PageStream(StreamingResponse):
    """A seat's page, as server-sent events."""

    def __init__(self, seat: Seat, *, seen: str, seconds: float, is_over: Callable[[], bool]) -> None:
        """`seen`, `seconds`, `is_over`: see `Seat.events`."""
        events = seat.events(seen=seen, seconds=seconds, is_over=is_over)
        super().__init__(events, media_type="text/event-stream", headers=STREAM_HEADERS)
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._seat.leave()
