"""One HTTP/1.1 connection: uvicorn's, with bounds on the memory and time that a stranger can make it take.

A request to change to another protocol is ignored. Time is counted in ticks of a second by the server's one sweep.
"""

import asyncio
import contextlib
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from queue_core.server.base import events
from queue_core.server.base.problems import MEDIA_TYPE, Problem, given_twice, refusal
from queue_core.server.callers.auth import ANONYMOUS_ADMIN, Principal
from queue_core.server.http import connections as bounds
from queue_core.server.http.connections import Connections
from queue_core.server.http.head_bounds import MAX_HEADERS, MAX_MEDIA_TYPE_BYTES, head_refusal
from queue_core.server.http.in_flight import FREE_BYTES
from queue_core.server.http.reading import PIECE_BYTES, READ_BYTES, TURN_REQUESTS, WAITING_REQUESTS, HeldFlow

MAX_HEAD_BYTES: Final = 64 << 10
"""Bytes of a head, and of trailers and the extensions of chunks."""
MAX_UNREAD_BYTES: Final = 64 << 10
"""Bytes of a refused body that are read to keep the connection; with more of them it is closed."""
_GIVEN_ONCE: Final = frozenset({b"authorization", b"content-type", b"content-length", b"idempotency-key", b"origin"})
"""Headers of which a request has one: with two nobody knows which was meant, and a proxy may have checked the other."""
_RECORDED_HEADERS: Final = _GIVEN_ONCE | {b"host", b"transfer-encoding", b"expect"}
"""Headers on whose values or number the bounds depend."""
_RETRY: Final = ((b"retry-after", b"1"),)
_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})
"""Headers that ask for another protocol."""


class HttpConnection(HttpToolsProtocol):
    """uvicorn's protocol with bounds."""

    shared: Connections
    flow: HeldFlow

    rest: memoryview = memoryview(b"")
    """Bytes that were read and are parsed in a later turn."""
    is_next_turn = False
    """Return whether a turn that goes on with them is under way, or is to come."""
    turn_requests = 0
    """Requests that were begun in this turn."""
    is_between = True
    """Return whether the parser is between two requests, so that the next bytes start one."""
    is_in_head = False
    is_ending = False
    """Return whether the last answer was written: what arrives is dropped until the client closes."""
    asks_upgrade = False
    is_begun = False
    """Return whether the arriving request was begun: then `cycle` is its own, not that of the request before."""
    body_length: int | None = 0
    """The length of the body as the head declares it; None in chunks."""
    body_bytes = 0
    """Bytes of the body that have arrived."""
    ticks = 0
    """Seconds since the connection, its request or its silence began."""
    host_count = 0
    given: tuple[bytes, ...] = ()
    """The headers of `_GIVEN_ONCE` in the arriving head."""
    given_twice = ""
    is_understood = False
    """Return whether the last bytes had the end of a head or a part of a body in them."""
    window_bytes = 0
    """Bytes of a body in the present window."""
    unparsed_bytes = 0
    """Bytes since the last complete head or part of a body."""
    dropped_bytes = 0
    arrived_bytes = 0
    """Bytes of the request that is not answered yet."""
    held_bytes = 0
    """Those of them that are counted in the budget of all connections."""
    caller: Principal | None = None
    """Whose they are; None: a stranger's, or not looked at yet."""
    unsent_bytes = 0
    over_limit: int | None = None
    """How many connections were over the limit as this one was accepted, where TLS below has counted it."""
    seconds_left = bounds.LINGER_SECONDS

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.held: dict[int | None, int] = {}
        """The bytes that are counted, by caller; None: strangers'."""

    # -- reading -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse; refuse what is not HTTP, and a head that is too large."""
        if self.is_ending:
            self._drop(len(data))
            return
        self.arrived_bytes += len(data)
        if self.rest:  # TLS hands over what it has
            self.rest = memoryview(bytes(self.rest) + data)
        else:
            self._parse(memoryview(data))

    def _parse(self, data: memoryview) -> None:
        """Parse as much as one turn may, and keep the rest."""
        at = self.turn_requests = 0
        while at < len(data) and not self._is_enough(at):
            piece = data[at : at + self._piece_bytes()]
            at += self._feed(piece)
            if self.is_ending or self.transport.is_closing():
                return
        self._defer(data[at:])
        if self.arrived_bytes - self.held_bytes > FREE_BYTES:
            self._reserve_bytes()

    def _is_enough(self, count: int) -> bool:
        """Return whether a turn ends after so many bytes."""
        return count >= READ_BYTES or self.turn_requests >= TURN_REQUESTS or len(self.pipeline) >= WAITING_REQUESTS

    def _piece_bytes(self) -> int:
        """Return how many bytes are parsed before the counts are looked at: the rest of a body is no request."""
        if self._is_in_body and self.body_length:
            return min(max(self.body_length - self.body_bytes, PIECE_BYTES), READ_BYTES)
        return PIECE_BYTES

    def _feed(self, piece: memoryview) -> int:
        """Parse a piece; returns how many of its bytes were parsed."""
        count = len(piece)
        self.unparsed_bytes += count
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            count = upgrade.args[0]
            self._feed_head_again()
        except httptools.HttpParserError as error:
            self._refuse_broken(error)
        if self.is_understood:
            self.is_understood = False
            self.unparsed_bytes = count if self.is_in_head else 0
        elif self.unparsed_bytes > MAX_HEAD_BYTES and not self.is_ending:
            self._refuse_head()
        return count

    def _defer(self, rest: memoryview) -> None:
        """Keep what is for a later turn: the next, or one after an answer where enough requests wait for theirs."""
        had, self.rest = bool(self.rest), rest
        self.is_next_turn = False
        if rest:
            self.arrived_bytes = max(self.arrived_bytes, len(rest))
            self.flow.hold()
            if len(self.pipeline) < WAITING_REQUESTS:
                self._schedule_parse()
        elif had:
            self.flow.release()

    def _schedule_parse(self) -> None:
        if not self.is_next_turn:
            self.is_next_turn = True
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        """Parse what was kept."""
        if self.rest and not self.is_ending and not self.transport.is_closing():
            self._parse(self.rest)

    def _reserve_bytes(self) -> None:
        """Count what has arrived of a request in the budget of all; refuse the request where it has no room there.

        One that has arrived whole is under way already.
        """
        count = self.arrived_bytes - self.held_bytes - FREE_BYTES
        if self.is_begun and self.caller is None:
            self.caller = self.shared.caller_of(self.headers)
        caller = self.caller if self.is_begun else None
        key = None if caller is None else id(caller)
        is_admin = caller is not None and caller.is_admin
        in_flight = self.shared.in_flight
        problem = in_flight.refusal(count, key, is_admin=is_admin, is_alone=caller is ANONYMOUS_ADMIN)
        if problem and not self.is_between:
            self.shared.warn(events.REQUEST_REFUSED, reason=problem)
            self.refuse_bytes(refusal(503, "too-many-bytes", f"{problem}: try again in 1 s", headers=_RETRY))
            return
        in_flight.take(count, key)
        self.held_bytes += count
        self.held[key] = self.held.get(key, 0) + count

    def refuse_bytes(self, problem: Problem) -> None:
        """Refuse a request of which no more is read."""
        self.end(problem)

    def unreserve_bytes(self) -> None:
        """Count the bytes of the request no more."""
        if self.held:
            for key, count in self.held.items():
                self.shared.in_flight.leave(count, key)
            self.held.clear()
        self.arrived_bytes = self.held_bytes = 0
        self.caller = None

    def _feed_head_again(self) -> None:
        """Parse the head that asked for another protocol as if it had not."""
        if self.is_ending or self.transport.is_closing():
            return
        head = self._head_without_upgrade()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(head)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse_broken(error)

    def _head_without_upgrade(self) -> bytes:
        """Return the request's head as if it asked for no other protocol, which a server may ignore (RFC 9110, 7.8).

        The parser takes all that follows such a head for the other protocol, a body too.
        """
        parts = [b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            kept = value
            if name in _UPGRADE_HEADERS:
                continue
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join([token for token in tokens if token.lower() not in _UPGRADE_HEADERS])
            parts.append(b"%b: %b\r\n" % (name, kept))
        return b"".join([*parts, b"\r\n"])

    def on_message_begin(self) -> None:
        """Reset the counts."""
        self.turn_requests += 1
        self.is_between = False
        self.is_in_head = True
        self.asks_upgrade = self.is_begun = False
        self.given, self.given_twice = (), ""
        self.host_count = self.body_length = self.body_bytes = self.dropped_bytes = self.ticks = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header, and the values that the bounds need; a trailer is ignored, and what is over the bound."""
        if not self.is_in_head or len(self.headers) > MAX_HEADERS:
            return
        name = name.lower()
        if name in _RECORDED_HEADERS:
            self._record_header(name, value)
        self.headers.append((name, value))

    def _record_header(self, name: bytes, value: bytes) -> None:
        if name in _GIVEN_ONCE:
            if name in self.given:
                self.given_twice = name.decode().title()
            self.given += (name,)
        if name == b"host":
            self.host_count += 1
        elif name == b"content-length":
            self.body_length = int(value)
        elif name == b"transfer-encoding":
            self.body_length = None
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        """Check the head, then begin the request, unless the last answer was written."""
        self.is_in_head = False
        self.is_understood = True
        self.window_bytes = self.ticks = 0
        if self.is_ending or self.transport.is_closing():
            return
        refused = head_refusal(self.url, self.headers) if self.unparsed_bytes > MAX_MEDIA_TYPE_BYTES else None
        if self.unparsed_bytes > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            self._refuse_head()
        elif refused is not None:
            self.end(refused)
        elif self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self.end(refusal(501, "no-proxy", "this server is no proxy: CONNECT is not taken"))
            self.asks_upgrade = True
        elif self.host_count != 1 and (self.host_count or self.parser.get_http_version() != "1.0"):
            detail = f"a request must have one Host header: {self.host_count} given"
            self.end(refusal(400, "bad-host", detail))
        elif self.given_twice:
            self.end(given_twice(self.given_twice))
        else:
            self.is_begun = True
            self.begin()

    def begin(self) -> None:
        """Start the request whose head is complete."""
        super().on_headers_complete()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        """Count a part of a body, and pass it on unless the request was answered."""
        self.count_body(len(body))
        if self.is_ending:
            self._drop(len(body))
        elif self.is_begun and self.cycle.response_complete:
            self.discard_body(len(body))
        elif not self.asks_upgrade:
            super().on_body(body)

    def count_body(self, count: int) -> None:
        """Count a part of a body."""
        self.is_understood = True
        self.window_bytes += count
        self.body_bytes += count

    def discard_body(self, count: int) -> None:
        """Drop a part of a body after the answer; the connection of a long one ends."""
        self.dropped_bytes += count
        if self.dropped_bytes > MAX_UNREAD_BYTES:
            self.linger()

    def on_message_complete(self) -> None:
        """Pass on that the request has arrived whole."""
        if self.asks_upgrade or self.is_ending:
            return
        self.is_between = True
        super().on_message_complete()

    # -- answering ---------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Wait for the next request. Unlike uvicorn's, this needs no timer per connection: see `tick`."""
        self.server_state.total_requests += 1
        if self.arrived_bytes:
            self.unreserve_bytes()
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # as it is while reading is not wanted
            self.flow.resume_reading()
        self.ticks = 0
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self.rest:
            self._schedule_parse()

    def end(self, problem: Problem) -> None:
        """Refuse, and end the connection; without an answer where the one before is not written yet."""
        cycle = self.cycle
        if self.is_ending or self.transport.is_closing():
            return
        if cycle is not None and not cycle.response_complete:
            if not self.is_begun or self.pipeline or getattr(cycle, "response_started", False):
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        body = problem.body()
        parts = [STATUS_LINE[problem.status]]
        for name, value in (*self.server_state.default_headers, *problem.headers):
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"content-type: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (MEDIA_TYPE, len(body)))
        self.transport.write(b"".join([*parts, body]))
        self.linger()

    def linger(self, *, seconds: int = bounds.LINGER_SECONDS) -> None:
        """Write no more; drop what still arrives until the client closes, for `seconds` at most."""
        self.is_ending = True
        self.is_begun = False
        self.rest = memoryview(b"")
        self.unreserve_bytes()
        self.seconds_left = seconds
        self.ticks = 0
        with contextlib.suppress(OSError):  # the client closed meanwhile
            self.flow.release()
            self.flow.resume_reading()
            if self.transport.can_write_eof():  # asyncio's TLS can't close one direction
                self.transport.write_eof()

    def _drop(self, count: int) -> None:
        self.dropped_bytes += count
        if self.dropped_bytes > bounds.MAX_DROPPED_BYTES:
            self.transport.abort()

    def _refuse_head(self) -> None:
        self.end(refusal(431, "head-too-large", f"the head of a request must be at most {MAX_HEAD_BYTES} bytes"))

    def _refuse_broken(self, error: Exception) -> None:
        reason = str(error.__context__ or error)[:200]
        self.shared.warn(events.REQUEST_MALFORMED, error=reason)
        self.end(refusal(400, "malformed-request", f"this is not HTTP/1.1: {reason}"))

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def _is_in_body(self) -> bool:
        return not self.is_between and not self.is_in_head

    def tick(self) -> None:
        """Count a second, and end what has taken too long."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self.unsent_bytes:  # an answer is being sent
            self.unsent_bytes = unsent
            self.ticks = 0
        self.ticks += 1
        cycle = self.cycle
        if self.is_ending or self.transport.is_closing():
            if self.ticks > self.seconds_left:
                self.transport.abort()
        elif self._is_in_body:
            self._tick_body()
        elif cycle is not None and not cycle.response_complete:
            self.ticks = 0  # the server is at work
        elif self.is_in_head:
            if self.ticks > bounds.HEAD_SECONDS:
                self._time_out("head", f"the head of a request must be here within {bounds.HEAD_SECONDS} s")
        elif self.ticks > (bounds.HEAD_SECONDS if cycle is None else bounds.IDLE_SECONDS):
            self.transport.close()

    def _tick_body(self) -> None:
        if self.cycle is not None and self.cycle.response_complete:
            if self.ticks > bounds.LINGER_SECONDS:
                self.transport.abort()
        elif self.flow.read_paused:
            self.ticks = self.window_bytes = 0  # the server is at work
        elif self.ticks >= bounds.BODY_WINDOW_SECONDS:
            if self.window_bytes < bounds.BODY_WINDOW_SECONDS * bounds.MIN_BODY_RATE:
                rate = f"{bounds.MIN_BODY_RATE} bytes a second"
                self._time_out("body", f"the body of a request must come with at least {rate}")
            self.ticks = self.window_bytes = 0

    def _time_out(self, part: str, detail: str) -> None:
        self.shared.warn(events.REQUEST_TIMED_OUT, part=part)
        self.end(refusal(408, "too-slow", detail))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Refuse a connection over the limit."""
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # of asyncio's sockets
        over = self.shared.enter() if self.over_limit is None else self.over_limit
        if over <= 0:
            return
        self.shared.over_limit()
        if over > bounds.MAX_REFUSED:
            self.transport.abort()
            return
        detail = f"{self.shared.most} connections are open, which is this server's limit; try again later"
        self.end(refusal(503, "too-many-connections", detail, headers=_RETRY))
        self.linger(seconds=bounds.REFUSED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more, and what has arrived."""
        self.rest = memoryview(b"")
        self.unreserve_bytes()
        if self.over_limit is None:
            self.shared.leave()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Return whether it has asked for nothing for some time: its client has the next step."""
        is_waiting = self.is_between or self.is_in_head
        is_done = self.cycle is None or self.cycle.response_complete
        return is_waiting and is_done and not self.is_ending and self.ticks >= bounds.IDLE_TICKS

    def forget_caller(self) -> None:
        """Forget who was admitted: tokens have changed."""

    def make_room(self) -> bool:
        """Close if it is still idle; returns whether it was."""
        if not self.is_idle or self.transport.is_closing():
            return False
        self.transport.abort()
        return True

    def timeout_keep_alive_handler(self) -> None:
        """Do nothing: see `tick`."""

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: there is no timer."""
