"""Calls to a server: retried within limits until the outcome is known; a problem response raises its error.

A call is retried if it was not sent or the store was unavailable. If its response was lost, a `safe` call is retried,
as it may run twice, and a `keyed` call, as the store applies it once: it keeps the answer to each session's last call
(ADR 28). A `once` call is not. With several servers, the next one is tried at once, also when one is silent for 4 s
and answers no probe either (ADR 56). See ADR 5.
"""

import math
import random as random_source
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Literal, NoReturn, cast
from urllib.parse import quote

from pydantic_core import from_json

from queue_core.client.http.problem_types import error_of
from queue_core.client.http.transport import HttpResponse, NotSentError, ResponseLostError, Transport, parse_address
from queue_core.clock import Clock, SystemClock
from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError, OutcomeUnknownError, QueueError, StoreUnavailableError
from queue_core.limits import check_text, check_timeout_seconds, is_number, shown_value
from queue_core.process import forking
from queue_core.verbs.wire import Json, body_bytes

LONG_BODY_BYTES = 1 << 20
SLOW_BYTES_PER_SECOND = 4 << 20
"""A request with a longer body may take longer, as if it was sent and taken in at this speed."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class KnownServer:
    """One server.

    Args:
        head: the part of a request's head after the path.
    """

    url: str
    transport: Transport
    head: str


class Servers:
    """The servers of one URL, or of several joined by commas. Thread-safe."""

    def __init__(self, url: str, *, token: str | None, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Raises `InvalidSettingError`."""
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        authorization += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._all: list[KnownServer] = []
        for one in urls_of(url):
            transport = Transport(parse_address(one))
            head = f" HTTP/1.1\r\nhost: {transport.address.host_header}\r\n{authorization}"
            self._all.append(KnownServer(one, transport, head))
        self._current = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def current(self) -> KnownServer:
        """The server to call."""
        return self._all[self._current]

    def fail_over(self, server: KnownServer) -> None:
        """Use the next server from now on, unless another thread has moved on from `server` already."""
        with self._lock:
            if self._all[self._current] is server:
                self._current = (self._current + 1) % len(self._all)

    def renew_after_fork(self) -> None:
        """Open new connections in the child of a fork."""
        self._lock = Lock()
        for server in self._all:
            server.transport.renew_after_fork()

    def close(self) -> None:
        """Close the connections; calls in other threads fail."""
        for server in self._all:
            server.transport.close()

    def interrupt(self) -> None:
        """Make calls in other threads lose their responses."""
        for server in self._all:
            server.transport.interrupt()


def urls_of(url: str) -> list[str]:
    """Return the distinct URLs of a comma-separated list in order. Raises `InvalidSettingError` for an empty one."""
    urls = [one.strip() for one in url.split(",")]
    if not all(urls):
        raise InvalidSettingError(f"not a list of servers: {masked(url)!r}; write http://a:7878,http://b:7878")
    return list(dict.fromkeys(urls))


MAX_TRIES = 1_000
MAX_PAUSE_SECONDS = 3_600.0
Repeat = Literal["safe", "once", "keyed"]
Patience = Literal["short", "long"]


@dataclass(frozen=True, slots=True)
class Retries:
    """The limits on retries. Pauses between tries are drawn from [0, longest).

    Args:
        tries: tries per server.
        timeouts: tries per server that may time out; use 1 where a person waits at a terminal.
    """

    tries: int = 6
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 2.0
    timeouts: int = 6

    def pause_seconds(self, attempt: int, *, draw: float) -> float:
        """Return the pause before try `attempt` + 1, with full jitter; `draw` is from [0, 1)."""
        return draw * min(self.longest_pause_seconds, self.first_pause_seconds * 2.0**attempt)


def check_retries(retries: Retries) -> None:
    """Raise `InvalidSettingError` unless each limit is in its range."""
    for name in ("tries", "timeouts"):
        number = getattr(retries, name)
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_TRIES:
            raise InvalidSettingError(f"{name} must be a whole number in [1, {MAX_TRIES}]: {shown_value(number)}")
    for name in ("first_pause_seconds", "longest_pause_seconds"):
        seconds = getattr(retries, name)
        if not is_number(seconds) or not 0 <= seconds <= MAX_PAUSE_SECONDS:
            raise InvalidSettingError(
                f"{name} must be a number in [0, {MAX_PAUSE_SECONDS:.0f}] s: {shown_value(seconds)}"
            )


@dataclass(slots=True)
class Session:
    """A session numbers calls, one at a time.

    Args:
        sent_at: when the present call was first sent.
        sent: the body that it was sent with, by which the server knows a repeat.
    """

    name: str
    number: int = 0
    sent_at: float | None = None
    sent: bytes | None = None

    def key(self, *, now: float) -> str:
        """Return the present call's `Idempotency-Key`."""
        age_seconds = 0 if self.sent_at is None else max(1, math.ceil(now - self.sent_at))
        return f"{self.name}/{self.number}/{age_seconds}"


class HttpCaller:
    """Calls one of several servers. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        retries: Retries,
        timeout_seconds: float,
        headers: Mapping[str, str] = NO_HEADERS,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random_source.random,
        clock: Clock | None = None,
    ) -> None:
        """Raises `InvalidSettingError` for a number out of range.

        Args:
            url: of a server, or of several joined by commas.
            timeout_seconds: how long a response may take, besides `wait_seconds`.
            headers: sent with each request.
        """
        check_timeout_seconds(timeout_seconds)
        check_retries(retries)
        self.url = url
        self._servers = Servers(url, token=token, headers=headers)
        self._retries = retries
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock or SystemClock()
        self._sessions: deque[Session] = deque()
        self._is_closed = False
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """Drop the parent's sockets and sessions in the child of a fork, as call numbers must not be used by both."""
        self._sessions = deque()
        self._servers.renew_after_fork()

    def post(
        self,
        path: str,
        body: Json,
        *,
        repeat: Repeat,
        wait_seconds: float = 0.0,
        patience: Patience = "long",
        session: Session | None = None,
    ) -> Json:
        """POST a body and return the response's JSON; the server may wait for `wait_seconds`."""
        return self.call(
            "POST", path, body, repeat=repeat, wait_seconds=wait_seconds, patience=patience, session=session
        )

    def get(self, path: str) -> Json:
        """GET a path and return the response's JSON."""
        return self.call("GET", path, None, repeat="safe")

    def call(
        self,
        method: str,
        path: str,
        body: Json | None,
        *,
        repeat: Repeat,
        wait_seconds: float = 0.0,
        patience: Patience = "long",
        session: Session | None = None,
    ) -> Json:
        """Make a `request` and return the response's JSON. Also raises the error of a problem response."""
        return read(
            self.request(
                method, path, body, repeat=repeat, wait_seconds=wait_seconds, patience=patience, session=session
            )
        )

    def request(
        self,
        method: str,
        path: str,
        body: Json | None,
        *,
        repeat: Repeat,
        wait_seconds: float = 0.0,
        patience: Patience = "long",
        session: Session | None = None,
    ) -> HttpResponse:
        """Send a request until there is a response or no try is left.

        Args:
            patience: `short`, for callers that retry by themselves: try an unavailable store, and one that does not
                answer in time, once through each server.
            session: numbers this call, for a caller that may have sent it before; else one of this object's own does.

        Raises `StoreUnavailableError` when there is no response and nothing was changed, `OutcomeUnknownError` when the
        request may have taken effect.
        """
        own_session = self._take_session() if repeat == "keyed" and session is None else None
        session = session or own_session
        data = _data_of(body, session)
        is_in_doubt = session is not None and session.sent_at is not None
        ends_at = self._clock.monotonic() + wait_seconds
        tries = self._retries.tries * len(self._servers)
        timeouts_left = self._retries.timeouts * len(self._servers)
        for attempt in range(1, tries + 1):
            server = self._servers.current
            is_last = attempt == tries
            sent_at = self._clock.monotonic()
            if wait_seconds and body is not None and session is not None and session.sent_at is not None:
                wait_seconds = max(0.0, ends_at - sent_at)
                data = body_bytes({**body, "wait_seconds": wait_seconds})
            try:
                response = self._send(server, method, path, data, session, wait_seconds)
            except NotSentError as error:
                self._servers.fail_over(server)
                timeouts_left -= error.is_timeout
                if is_last or not timeouts_left or self._is_closed:
                    raise self._unreachable(error, is_in_doubt=is_in_doubt) from error
            except ResponseLostError as error:
                self._servers.fail_over(server)
                is_in_doubt = True
                _record_sent(session, sent_at, data)
                goes_on = patience == "long" or attempt < len(self._servers)
                timeouts_left -= error.is_timeout if goes_on else error.is_timeout * timeouts_left
                if is_last or not timeouts_left or repeat == "once" or self._is_closed:
                    raise self._unanswered(method, path, error) from error
            else:
                if response.status != 503:
                    return self._completed(response, own_session)
                self._servers.fail_over(server)
                is_unknown = isinstance(_problem(response), OutcomeUnknownError)
                if is_unknown:
                    _record_sent(session, sent_at, data)
                may_repeat = repeat != "once" and (is_unknown or patience == "long" or attempt < len(self._servers))
                if is_last or not may_repeat:
                    if is_in_doubt and not is_unknown:
                        _raise_in_doubt(response)
                    return self._completed(response, own_session)
                is_in_doubt = is_in_doubt or is_unknown
            self._pause(attempt)
        raise AssertionError("the last try returns or raises")

    def _completed(self, response: HttpResponse, session: Session | None) -> HttpResponse:
        """Make the session available for the next call, as this one is over."""
        if session is not None:
            self._sessions.append(session)
        return response

    def close(self) -> None:
        """Close the connections; calls in other threads fail."""
        self._is_closed = True
        self._servers.close()

    def _pause(self, attempt: int) -> None:
        """Pause before the next round of tries; within a round, the next server is tried at once."""
        rounds, others = divmod(attempt, len(self._servers))
        if not others:
            self._sleep(self._retries.pause_seconds(rounds - 1, draw=self._jitter()))

    def _send(
        self, server: KnownServer, method: str, path: str, data: bytes, session: Session | None, wait_seconds: float
    ) -> HttpResponse:
        head = f"{method} {path}{server.head}"
        if method != "GET":
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        if session is not None:  # last: the server's fast path relies on equal heads before it (ADR 6)
            head += f"idempotency-key: {session.key(now=self._clock.monotonic())}\r\n"
        request = head.encode("ascii") + b"\r\n" + data
        timeout_seconds = self._timeout_seconds + wait_seconds
        if len(data) > LONG_BODY_BYTES:
            timeout_seconds += len(data) / SLOW_BYTES_PER_SECOND
        return server.transport.request(request, timeout_seconds=timeout_seconds, watches=len(self._servers) > 1)

    def _take_session(self) -> Session:
        try:
            session = self._sessions.pop()
        except IndexError:
            session = Session(secrets.token_hex(8))
        session.number += 1
        session.sent_at = session.sent = None
        return session

    def _unanswered(self, method: str, path: str, error: ResponseLostError) -> StoreUnavailableError:
        problem = f"{method} {path} was sent to {masked(self.url)} and not answered ({error})"
        if method == "GET" and error.is_timeout:
            return StoreUnavailableError(f"{problem}: is it a Towline server, and is it overloaded or stopped?")
        if method == "GET" and self.url.startswith("http://"):
            problem += "; the URL of a server with TLS begins with https://"
        return OutcomeUnknownError(f"{problem}: it may have taken effect; check before repeating")

    def _unreachable(self, error: NotSentError, *, is_in_doubt: bool) -> StoreUnavailableError:
        if is_in_doubt:
            return OutcomeUnknownError(
                f"{masked(self.url)} became unreachable ({error}) after a change was sent: it may have taken effect; "
                "check before repeating"
            )
        return StoreUnavailableError(
            f"can't reach {masked(self.url)}: {error}; is `towline serve` or `towline up` running?"
        )


def _data_of(body: Json | None, session: Session | None) -> bytes:
    """Return the body of a request as it is sent; that of the first try where this may be a repeat."""
    if session is not None and session.sent is not None:
        return session.sent
    return b"" if body is None else body_bytes(body)


def _raise_in_doubt(response: HttpResponse) -> NoReturn:
    """Raise for a request that failed now but may have taken effect when it was sent before."""
    raise OutcomeUnknownError(
        f"{_problem(response)}; it was sent before and may have taken effect then: check before repeating"
    )


def _record_sent(session: Session | None, sent_at: float, data: bytes) -> None:
    """Mark a call that may have taken effect as a repeat, as old as its first try, with the body of that."""
    if session is not None and session.sent_at is None:
        session.sent_at, session.sent = sent_at, data


def quoted(name: str) -> str:
    """Return a name as one segment of a path. Raises `InvalidRequestError` for text that is not UTF-8."""
    check_text("name", name)
    return quote(name, safe="") or "%20"


def read(response: HttpResponse) -> Json:
    """Return a response's JSON. Raises the error of a problem response, or of one that is no Towline server's."""
    if response.status >= 300:
        raise _problem(response)
    try:
        return cast("Json", from_json(response.body))
    except ValueError:
        raise _problem(response) from None


def _problem(response: HttpResponse) -> QueueError:
    try:
        problem = from_json(response.body)
    except ValueError:
        problem = {"detail": f"the response {response.status} is not JSON: is this a Towline server?"}
    return error_of(problem if isinstance(problem, dict) else {}, status=response.status)
