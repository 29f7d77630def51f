"""The fast path: from uvicorn's parser to the verb and back in one write, without an ASGI task (ADR 6).

It costs a third of the ASGI path. Regular endpoints, and what is unusual (a second request before the first is
answered, `Expect: 100-continue`), take uvicorn's path to the application.
"""

import asyncio
import select
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from queue_core.server.base.bodies.body_limit import BodyLimit
from queue_core.server.base.problems import Problem
from queue_core.server.callers.auth import Headers, Ticket
from queue_core.server.fast_path import (
    IDEMPOTENCY_HEADER,
    JSON_TYPE,
    LONG_BODY_BYTES,
    FastEndpoint,
    FastRequest,
    FastVerbs,
    Reply,
)
from queue_core.server.http.connections import LINGER_SECONDS, Connections
from queue_core.server.http.http_connection import MAX_UNREAD_BYTES, HttpConnection
from queue_core.server.leases.call import LeaseCall
from queue_core.server.state import ServerState

PREFIX = b"/v1/queues/"
HANG_UP_EVENTS = select.POLLRDHUP | select.POLLHUP | select.POLLERR
"""Events of `poll` which say that the client closed its connection."""
MAX_KNOWN_BYTES = 2 << 10
"""Size of a head that is remembered; a longer one is parsed each time, as thousands of connections each keep one."""
MAX_KEY_BYTES = 128
"""Size of an `Idempotency-Key` behind a known head, at most."""
END_OF_HEAD = b"\r\n\r\n"
KEY_LINE = b"\r\nidempotency-key: "


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The head of a request, recognised by its bytes when it comes again on its connection (ADR 6).

    A worker that goes from task to task sends one head for hours; only the `Idempotency-Key` at its end changes.

    Args:
        head: the head up to the key, or to its end where there is none.
        tail_bytes: the number of bytes after the key: the end of the head, and the body.
        headers: the parsed headers, without the key.
    """

    head: bytes
    tail_bytes: int
    headers: Headers
    is_keyed: bool
    ticket: Ticket = field(default_factory=Ticket, init=False, repr=False, compare=False)

    def read(self, data: bytes) -> tuple[bytes | None, bytes] | None:
        """Return the key and the body of a request that has this head; None if `data` is anything else."""
        if not data.startswith(self.head):
            return None
        begin, end = len(self.head), len(data) - self.tail_bytes
        if not begin <= end <= begin + MAX_KEY_BYTES:
            return None
        if data.find(b"\r", begin) != end or not data.startswith(END_OF_HEAD, end):
            return None
        return data[begin:end] if self.is_keyed else None, data[end + len(END_OF_HEAD) :]


def known_head(data: bytes, headers: Headers, *, body_bytes: int) -> KnownHead | None:
    """Return the head of a request that has just been parsed; None if it can't be recognised again.

    Args:
        data: the bytes that have arrived.
        headers: the headers of the request.
        body_bytes: the length of its body. With more bytes behind the head, the body came in chunks, or more requests
            follow.
    """
    end = data.find(END_OF_HEAD, 0, MAX_KNOWN_BYTES)
    if end < 0 or end + len(END_OF_HEAD) + body_bytes != len(data):
        return None
    key_at = data.rfind(KEY_LINE, 0, end)
    is_keyed = key_at >= 0 and b"\r" not in data[key_at + len(KEY_LINE) : end]
    if not is_keyed and any(name == IDEMPOTENCY_HEADER for name, _ in headers):
        return None
    head = data[: key_at + len(KEY_LINE) if is_keyed else end]
    return KnownHead(
        head, len(data) - end, [header for header in headers if header[0] != IDEMPOTENCY_HEADER], is_keyed=is_keyed
    )


class FastCycle(RequestResponseCycle):
    """A request on the fast path; has the attributes that uvicorn expects of a request under way."""

    message_event = asyncio.Event()
    """Set by uvicorn when the caller hangs up. Nothing waits for it here, so one serves all."""

    def __init__(self, endpoint: FastEndpoint, verb: str, queue: str, headers: Headers, *, keep_alive: bool) -> None:
        self.endpoint = endpoint
        self.verb = verb
        self.queue = queue
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.is_admitted = False
        self.is_refused = False
        """The refusal of its token is delayed: nothing more is done for it."""
        self.reserved_bytes = 0
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.call: LeaseCall | None = None


class FastProtocol(HttpConnection):
    """A connection with the fast path."""

    fast_verbs: FastVerbs
    fast_endpoints: Mapping[bytes, FastEndpoint]
    """The wings' endpoints, by their paths."""
    body_limit: BodyLimit
    usual_head: tuple[object, bytes] = (None, b"")
    """The head of nearly every answer, and uvicorn's headers that it was made of."""
    known: tuple[KnownHead, FastEndpoint, str, str] | None = None
    """The head of the last request that came alone, with its endpoint, verb and queue."""

    def data_received(self, data: bytes) -> None:
        """Start a request at once if its head is known; parse everything else."""
        before = self.cycle
        if not self.is_between or self.rest or (before is not None and not before.response_complete):
            super().data_received(data)
        elif self.known is not None and (found := self.known[0].read(data)) is not None:
            (head, endpoint, verb, queue), (key, body) = self.known, found
            cycle = self.cycle = FastCycle(endpoint, verb, queue, head.headers, keep_alive=True)
            cycle.more_body = False
            self._start(cycle, body, key=key, ticket=head.ticket)
        else:
            super().data_received(data)
            self._learn(data, before)

    def _learn(self, data: bytes, before: object) -> None:
        """Remember the head of a request that has just been parsed, if it was admitted and arrived whole."""
        cycle = self.cycle
        if cycle is before or not isinstance(cycle, FastCycle):
            return
        if cycle.keep_alive and cycle.is_admitted and self.is_between:
            head = known_head(data, cycle.headers, body_bytes=len(cycle.body))
            if head is not None:
                self.known = head, cycle.endpoint, cycle.verb, cycle.queue

    def begin(self) -> None:
        """Choose the path. On the fast one the caller is admitted, or refused, before any of the body is collected."""
        cycle = self._fast_cycle()
        if cycle is None:
            super().begin()
            return
        self.cycle = cycle
        try:
            cycle.reserved_bytes = cycle.endpoint.admit(cycle.verb, cycle.headers, self.body_length)
        except Exception as error:  # noqa: BLE001 - the top of a request
            self._refuse(cycle, error)
            return
        cycle.is_admitted = True
        if self.body_length is not None and self.body_length > self.body_limit.bytes:
            problem = self.body_limit.refusal(self.body_length)
            if problem is not None:
                self._refuse(cycle, problem)

    def on_body(self, body: bytes) -> None:
        """Collect the body; refuse one that is too large as soon as that is known."""
        cycle = self.cycle
        if not self.is_begun or not isinstance(cycle, FastCycle):
            super().on_body(body)
            return
        self.count_body(len(body))
        if cycle.is_refused:
            return
        if cycle.response_complete:
            self.discard_body(len(body))
            return
        size = len(cycle.body) + len(body)
        if size > self.body_limit.bytes and (problem := self.body_limit.refusal(size)) is not None:
            self._refuse(cycle, problem)
        else:
            cycle.body += body

    def on_message_complete(self) -> None:
        """Start the request, which has arrived whole."""
        cycle = self.cycle
        if not self.is_begun or not isinstance(cycle, FastCycle):
            super().on_message_complete()
            return
        self.is_between = True
        cycle.more_body = False
        if cycle.response_complete or cycle.is_refused:
            return
        if len(cycle.body) <= LONG_BODY_BYTES:
            self._start(cycle, bytes(cycle.body))
        else:  # which takes long to copy
            body, cycle.body = cycle.body, bytearray()
            self._start(cycle, body)

    def _start(
        self, cycle: FastCycle, body: bytes | bytearray, *, key: bytes | None = None, ticket: Ticket | None = None
    ) -> None:
        cycle.call = cycle.endpoint.start(
            FastRequest(
                cycle.verb,
                cycle.queue,
                cycle.headers,
                body,
                id(self),
                partial(self._reply, cycle),
                self._is_gone,
                key,
                ticket,
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the call of a caller that hung up. A lease that was answered stays granted: it may have been read."""
        cycle = self.cycle
        super().connection_lost(exc)
        if isinstance(cycle, FastCycle) and not cycle.response_complete:
            self._free(cycle)
            if cycle.call is not None:
                self.fast_verbs.cancel(cycle.call)

    def _refuse(self, cycle: FastCycle, error: Exception) -> None:
        """Answer, and drop the body: if it is small, the connection can be used again."""
        is_short = (self.body_length or 0) <= MAX_UNREAD_BYTES and len(cycle.body) <= MAX_UNREAD_BYTES
        cycle.keep_alive = cycle.keep_alive and is_short
        self._reply(cycle, cycle.endpoint.refuse(error))
        cycle.body.clear()

    def linger(self, *, seconds: int = LINGER_SECONDS) -> None:
        """See `HttpConnection.linger`; no head is recognised any more."""
        self.known = None
        super().linger(seconds=seconds)

    def refuse_bytes(self, problem: Problem) -> None:
        """See `HttpConnection.refuse_bytes`; the answer is of the API's own kind."""
        cycle = self.cycle
        if not self.is_begun or not isinstance(cycle, FastCycle) or cycle.response_complete:
            super().refuse_bytes(problem)
            return
        cycle.keep_alive = False
        self._refuse(cycle, problem)

    def forget_caller(self) -> None:
        """See `HttpConnection.forget_caller`: the next head is parsed, and its token looked at."""
        self.known = None

    def _free(self, cycle: FastCycle) -> None:
        if cycle.reserved_bytes:
            cycle.endpoint.free(cycle.reserved_bytes)
            cycle.reserved_bytes = 0

    def _fast_cycle(self) -> FastCycle | None:
        url = self.url
        is_wings = url in self.fast_endpoints
        if not (is_wings or url.startswith(PREFIX)) or self.parser.get_method() != b"POST":
            return None
        if self.expect_100_continue:
            return None
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        if is_wings:
            return FastCycle(self.fast_endpoints[url], "", "", self.headers, keep_alive=keep_alive)
        queue, _, verb = url[len(PREFIX) :].decode("latin-1").partition("/")
        if verb not in FastVerbs.VERBS or "%" in queue or "?" in queue:
            return None
        return FastCycle(self.fast_verbs, verb, queue, self.headers, keep_alive=keep_alive)

    def _slow(self, cycle: FastCycle, reply: Reply) -> bool:
        """Count a refused token; returns whether its answer is delayed."""
        seconds = self.shared.guesses.refused(self.client[0] if self.client is not None else "")
        if seconds is None:
            cycle.keep_alive = False
        if not seconds:
            return False
        cycle.is_refused = True
        plain = replace(reply, is_token_refused=False)

        def answer() -> None:
            self.shared.guesses.answered()
            self._reply(cycle, plain)

        self.loop.call_later(seconds, answer)
        return True

    def _reply(self, cycle: FastCycle, reply: Reply) -> None:
        if cycle.disconnected or cycle.response_complete or self.transport.is_closing():
            return
        defaults = self.server_state.default_headers
        if reply.is_token_refused and _shows_token(cycle) and self._slow(cycle, reply):
            return
        if reply.status != 200 or reply.headers or reply.media_type is not JSON_TYPE or not cycle.keep_alive:
            head = head_of(reply, defaults, keep_alive=cycle.keep_alive)
        else:
            if self.usual_head[0] is not defaults:  # a new date, once a second
                type(self).usual_head = (defaults, head_of(reply, defaults, keep_alive=True))
            head = self.usual_head[1]
        self.transport.write(b"%b%d\r\n\r\n%b" % (head, len(reply.body), reply.body))
        cycle.response_complete = True
        cycle.call = None  # breaks a reference cycle, which the garbage collector would have to find
        if cycle.reserved_bytes:
            self._free(cycle)
        if not cycle.keep_alive:
            if cycle.more_body:
                self.linger()
            else:
                self.transport.close()
        self.on_response_complete()

    def _is_gone(self) -> bool:
        """Return whether the caller hung up, from its socket: the loop may not know yet. Any thread may call this."""
        if self.transport.is_closing():
            return True
        poller = select.poll()
        try:
            poller.register(cast("int", self.transport.get_extra_info("socket").fileno()), HANG_UP_EVENTS)
        except ValueError:
            return True  # closed a moment ago
        return bool(poller.poll(0))


def _shows_token(cycle: FastCycle) -> bool:
    """Return whether a refused request has shown a token: App Engine's clients always send one, in the message."""
    return cycle.is_admitted or any(name == b"authorization" for name, _ in cycle.headers)


def head_of(reply: Reply, defaults: list[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """Return the head of an answer, up to the size of its body."""
    parts = [STATUS_LINE[reply.status]]
    for name, value in (*defaults, *reply.headers):
        parts += (name, b": ", value, b"\r\n")
    parts += (b"content-type: ", reply.media_type, b"\r\n")
    if not keep_alive:
        parts.append(b"connection: close\r\n")
    parts.append(b"content-length: ")
    return b"".join(parts)


def fast_protocol_class(core: ServerState, connections: Connections) -> type[FastProtocol]:
    """Return the protocol class of one server: uvicorn takes a class."""

    own_paths = {path.encode(): endpoint for path, endpoint in core.fast_endpoints.items()}

    class ServerProtocol(FastProtocol):
        shared = connections
        fast_verbs = core.fast_verbs
        fast_endpoints = own_paths
        body_limit = core.body_limit

    return ServerProtocol
