"""Bounds on the connections of a listener: their number, the time each may take, and how often they are logged."""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from queue_core.log import get_logger
from queue_core.process.descriptors import file_limit, max_connections_for
from queue_core.server.base import events
from queue_core.server.callers.auth import Headers, Principal
from queue_core.server.http.guesses import Guesses
from queue_core.server.http.in_flight import BytesInFlight

HEAD_SECONDS: Final = 10
"""Seconds for a request's head: from its first byte (of a new connection: from its start) to the last."""
IDLE_SECONDS: Final = 75
"""Seconds between an answer and the next request; our clients close theirs earlier (`client/http/transport.py`)."""
BODY_WINDOW_SECONDS: Final = 10
"""Seconds over which the rate of a body is measured."""
MIN_BODY_RATE: Final = 1 << 10
"""Bytes a second of a body, at least, on average over each window."""
LINGER_SECONDS: Final = 30
"""Seconds for which a connection is read after its last answer. Most clients read no answer before they have sent
all of their request, and would miss that of a connection closed meanwhile (RFC 9112, 9.6)."""
MAX_DROPPED_BYTES: Final = 256 << 20
"""Bytes that are read, and dropped, after a last answer."""
REFUSED_SECONDS: Final = 2
"""The same as `LINGER_SECONDS` for a connection over the limit."""
MAX_REFUSED: Final = 32
"""Connections over the limit that are answered at a time; further ones are closed without an answer."""
IDLE_TICKS: Final = 2
"""Seconds without a request, or with a part of a head, after which a connection makes room for another where as many
are open as the listener takes."""
HANDSHAKE_PATIENCE_SECONDS: Final = 1.0
"""The same for a TLS handshake."""
LOG_SECONDS: Final = 10.0
"""Seconds between two log entries of one event: a client must not be able to fill the log."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections accepted in one round of the loop. asyncio tries all of them again after a failure, and reports each:
with the length of the kernel's queue it would do nothing else."""
RECOVERED_SECONDS: Final = 3.0
"""Seconds without another failure after which connections are accepted again."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` when descriptors or memory have run out."""

log = get_logger()


class Connections:
    """State shared by the connections of one listener. Lives in its loop.

    A connection counts from when it is accepted. Where as many are open as there may be, one that asks for nothing
    makes room for the next: else whoever opens connections and is silent would lock all others out (ADR 93).
    """

    def __init__(self, now: Callable[[], float], *, most: int | None = None) -> None:
        """Args:
        now: returns the loop's time, in seconds.
        most: connections at once; chosen by the process's limit of descriptors when left out.
        """
        self.most = max_connections_for(file_limit()) if most is None else most
        self.in_flight = BytesInFlight()
        self.caller_of: Callable[[Headers], Principal | None] = lambda _headers: None
        """Returns the caller of a request by its head; None for a stranger."""
        self.open = 0
        """Connections that were accepted and are not closed yet."""
        self._idle: list[Callable[[], bool]] = []
        self._handshakes: dict[object, tuple[float, Callable[[], None]]] = {}
        self._now = now
        self.guesses = Guesses(now, partial(self.warn, events.TOKEN_REFUSED))
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def enter(self) -> int:
        """Count a connection that was accepted; returns how many there are over the limit."""
        self.open += 1
        over = self.open - self.most
        return over - 1 if over > 0 and self._make_room() else max(over, 0)

    def leave(self) -> None:
        """Count a connection no more: it was closed."""
        self.open -= 1

    def handshake_begins(self, who: object, abort: Callable[[], None]) -> None:
        """Note a TLS handshake; `abort` closes its connection."""
        self._handshakes[who] = self._now(), abort

    def handshake_ends(self, who: object) -> None:
        """Forget a handshake. Once is enough, more often is allowed."""
        self._handshakes.pop(who, None)

    @property
    def is_full(self) -> bool:
        """Return whether connections are to say that they are idle: see `have_idle`."""
        return self.open >= self.most

    def have_idle(self, closers: Sequence[Callable[[], bool]]) -> None:
        """Take connections that may make room, those that were idle for longest last.

        Each closes its own and returns whether it was still idle.
        """
        self._idle = list(closers)

    def _make_room(self) -> bool:
        """Close one connection that asks for nothing; returns whether there was one."""
        oldest = next(iter(self._handshakes.items()), None)
        if oldest is not None and self._now() - oldest[1][0] >= HANDSHAKE_PATIENCE_SECONDS:
            del self._handshakes[oldest[0]]
            oldest[1][1]()
            return True
        while self._idle:
            if self._idle.pop()():
                return True
        return False

    def warn(self, event: str, **values: object) -> None:
        """Log an event that a client caused, unless the same event was logged just now."""
        now = self._now()
        last = self._logged_at.get(event)
        if last is not None and now - last < LOG_SECONDS:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        self._logged_at[event] = now
        left_out = self._left_out.pop(event, 0)
        log.warning(event, **values, **({"left_out": left_out} if left_out else {}))

    def over_limit(self) -> None:
        """Log that a connection is refused."""
        fix = "raise LimitNOFILE, or ulimit -n; look for clients that leave connections open"
        self.warn(events.CONNECTION_REFUSED, limit=self.most, fix=fix)


class AcceptErrors:
    """Logs when no descriptor is left for another connection: once, and once more when that is over.

    Callers wait meanwhile in the kernel's queue of connections; asyncio tries again every second. It is the exception
    handler of its loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._refused_at = 0.0
        self._is_refusing = False
        loop.set_exception_handler(self._handle)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        if not (
            isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR and "accept" in str(context.get("message"))
        ):
            message = str(context.get("message", ""))
            log.error(events.LOOP_FAILED, message=message, exc_info=error if isinstance(error, Exception) else None)
            return
        self._refused_at = loop.time()
        if self._is_refusing:
            return
        self._is_refusing = True
        limit = file_limit()
        log.error(events.CONNECTIONS_REFUSED, error=error.strerror, limit=limit, fix="raise LimitNOFILE, or ulimit -n")
        loop.call_later(RECOVERED_SECONDS, self._check_recovered)

    def _check_recovered(self) -> None:
        left = self._refused_at + RECOVERED_SECONDS - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._check_recovered)
            return
        self._is_refusing = False
        log.info(events.CONNECTIONS_ACCEPTED)
