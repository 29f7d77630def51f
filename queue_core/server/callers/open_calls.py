"""Calls that stay open at a server: each takes a place, or is refused with an answer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from queue_core.process.places import Places
from queue_core.server.base.problems import refusal
from queue_core.server.callers.auth import ANONYMOUS_ADMIN, Principal
from queue_core.verbs.roles import WORK

_RETRY: Final = ((b"retry-after", b"1"),)


def place_key(caller: Principal) -> int | None:
    """Return by what a caller's places are counted: its token. None at a server without tokens."""
    return None if caller is ANONYMOUS_ADMIN else id(caller)


def check_place(places: Places, key: int | None, caller: Principal, *, name: str, what: str) -> None:
    """Raise `Problem` where a caller has no place.

    Args:
        key: by which the caller's are counted; None: only those of all are.
        name: the problem's name.
        what: the calls, in the plural.
    """
    problem = places.refusal(key, is_admin=caller.is_admin)
    if problem:
        raise refusal(503, name, f"too many {what}: {problem}; end one, or try again in 1 s", headers=_RETRY)


@contextmanager
def a_long_wait(places: Places, caller: Principal) -> Iterator[None]:
    """Hold a place while a call waits. Raises `Problem` where there is none.

    Workers are not told apart: a whole fleet waits with one token.
    """
    key = None if caller.role & WORK else place_key(caller)
    check_place(places, key, caller, name="too-many-waiting", what="calls that wait")
    places.take(key)
    try:
        yield
    finally:
        places.leave(key)


class OpenStream(StreamingResponse):
    """A stream of server-sent events in a place, which is given back however the connection ends."""

    def __init__(self, events: AsyncIterator[bytes], places: Places, caller: Principal) -> None:
        """Take a place. Raises `Problem` where there is none."""
        key = place_key(caller)
        check_place(places, key, caller, name="too-many-followers", what="connections that follow events")
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        places.take(key)
        self._places, self._key, self._caller = places, key, caller  # the caller is kept, and so its key is its own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.leave(self._key)
