"""Bounds on the connections of one listener: how many there are, how long each may take, and what is logged of them."""

import asyncio
import errno
import resource
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from queue_core.server import events

HEAD_SECONDS: Final = 10
"""From the first byte of a head (of a new connection: from its begin) to the last."""

IDLE_SECONDS: Final = 75
"""Between an answer and the next request; clients of ours let go of a connection before (`http_api/transport.py`)."""

BODY_WINDOW_SECONDS: Final = 10

MIN_BODY_RATE: Final = 1 << 10
"""Bytes a second of a body, on average over each window; a link of 1990 is quicker."""

LINGER_SECONDS: Final = 30

MAX_DROPPED_BYTES: Final = 256 << 20
"""How long and how much of what follows a last answer is read and dropped: most clients read no answer before they
have sent all of their request, and one whose connection is closed meanwhile may never see it (RFC 9112, 9.6)."""

REFUSED_SECONDS: Final = 2
"""The same for a connection over the limit."""

MAX_REFUSED: Final = 32
"""Connections over the limit that are answered at a time; more are closed without an answer."""

MAX_CONNECTIONS: Final = 50_000

MIN_CONNECTIONS: Final = 16

MIN_SPARE_FILES: Final = 64
"""Descriptors that are left for the store, workers and logs, at least; a quarter of all where that is more."""

LOG_SECONDS: Final = 10.0
"""One event of a kind in so many seconds: a client must not be able to fill the log."""

ACCEPTED_AT_ONCE: Final = 16
"""Connections taken in one turn of the loop, at most. asyncio goes on after a refusal, reports each of so many, and
tries as often again: with the length of the kernel's queue it would do nothing else any more."""

RECOVERED_SECONDS: Final = 3.0
"""So long without another refusal, and there is room again."""

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger()


def max_connections_for(files: int) -> int:
    """How many connections a process with so many descriptors takes."""
    return min(MAX_CONNECTIONS, max(MIN_CONNECTIONS, files - max(MIN_SPARE_FILES, files // 4)))


class Connections:
    """What the connections of one listener share. Lives in its loop."""

    def __init__(self, now: Callable[[], float], *, most: int | None = None) -> None:
        """Args:
        now: the loop's time, in seconds.
        most: connections at once; chosen by the process's limit of descriptors when left out.
        """
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = max_connections_for(files) if most is None else most
        self._now = now
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, event: str, **told: object) -> None:
        """Log an event that a client caused, unless one of its kind was logged just now."""
        now = self._now()
        last = self._logged_at.get(event)
        if last is not None and now - last < LOG_SECONDS:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        self._logged_at[event] = now
        left_out = self._left_out.pop(event, 0)
        log.warning(event, **told, **({"left_out": left_out} if left_out else {}))

    def over_limit(self) -> None:
        """Log that a connection is refused."""
        fix = "raise LimitNOFILE, or ulimit -n; look for clients that leave connections open"
        self.warn(events.CONNECTION_REFUSED, limit=self.most, fix=fix)


class AcceptErrors:
    """Hears of a loop's errors. Belongs to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._refused_at = 0.0
        self._is_refusing = False
        loop.set_exception_handler(self._heard)

    def _heard(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        if not (
            isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR and "accept" in str(context.get("message"))
        ):
            told = str(context.get("message", ""))
            log.error(events.LOOP_FAILED, message=told, exc_info=error if isinstance(error, Exception) else None)
            return
        self._refused_at = loop.time()
        if self._is_refusing:
            return
        self._is_refusing = True
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        log.error(events.CONNECTIONS_REFUSED, error=error.strerror, limit=limit, fix="raise LimitNOFILE, or ulimit -n")
        loop.call_later(RECOVERED_SECONDS, self._look)

    def _look(self) -> None:
        left = self._refused_at + RECOVERED_SECONDS - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._look)
            return
        self._is_refusing = False
        log.info(events.CONNECTIONS_ACCEPTED)
