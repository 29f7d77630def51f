"""One call to a server: sent again within bounds until its outcome is known; its problem raised as its error.

Sent again is anything that was not sent, or was refused because the store is away; `SAFE` verbs, which come to the same
when done twice; and `KEYED` ones, which take effect once however often they are sent and through whichever server, as
the store keeps the answer to each session's last call (see `server/idempotency.py`). A `ONCE` verb, once sent and not
answered is never sent again. Where several servers are known, the next one is tried at once.
"""

import math
import random as random_source
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Literal, NoReturn, cast
from urllib.parse import quote

from pydantic_core import from_json

from queue_core.clock import Clock, SystemClock
from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError, OutcomeUnknownError, QueueError, StoreUnavailableError
from queue_core.http_api.problem_types import error_of
from queue_core.http_api.transport import HttpResponse, NotSentError, ResponseLostError, Transport, parse_address
from queue_core.http_api.values import Json, body_bytes
from queue_core.limits import check_text
from queue_core.process import forking


@dataclass(slots=True, eq=False)
class KnownServer:
    """One of them.

    Args:
        head: what follows a request's path.
    """

    url: str
    transport: Transport
    head: str


class Servers:
    """The servers of one URL, or of several joined by commas; used from any number of threads."""

    def __init__(self, url: str, *, token: str | None) -> None:
        """Raises `InvalidSettingError`."""
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
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
        """The one to ask."""
        return self._all[self._current]

    def leave(self, server: KnownServer) -> None:
        """It was no help: ask the next one from now on, unless somebody else has moved on already."""
        with self._lock:
            if self._all[self._current] is server:
                self._current = (self._current + 1) % len(self._all)

    def renew_after_fork(self) -> None:
        """In the child of a fork: ask each server anew over a connection of its own."""
        self._lock = Lock()
        for server in self._all:
            server.transport.renew_after_fork()

    def close(self) -> None:
        """Close the connections; calls in other threads end."""
        for server in self._all:
            server.transport.close()


def urls_of(url: str) -> list[str]:
    """The URLs in a comma-separated list, in order and each once. Raises `InvalidSettingError` for an empty one."""
    urls = [one.strip() for one in url.split(",")]
    if not all(urls):
        raise InvalidSettingError(f"not a list of servers: {masked(url)!r}; write http://a:7878,http://b:7878")
    return list(dict.fromkeys(urls))


Repeat = Literal["safe", "once", "keyed"]
Patience = Literal["short", "long"]


@dataclass(frozen=True, slots=True)
class Retries:
    """When to give up: after so many tries of every server. Pauses between them are drawn from [0, longest).

    Args:
        silences: tries that may end because the time for an answer was over; whoever waits at a terminal takes 1.
    """

    tries: int = 6
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 2.0
    silences: int = 6

    def pause_seconds(self, attempt: int, *, draw: float) -> float:
        """Before try `attempt` + 1, with full jitter; `draw` is from [0, 1)."""
        return draw * min(self.longest_pause_seconds, self.first_pause_seconds * 2.0**attempt)


@dataclass(slots=True)
class Session:
    """Numbers the calls of one thread at a time; `sent_at`: when the present one was first sent."""

    name: str
    number: int = 0
    sent_at: float | None = None

    def key(self, *, now: float) -> str:
        """Return the present call's `Idempotency-Key`."""
        age_seconds = 0 if self.sent_at is None else max(1, math.ceil(now - self.sent_at))
        return f"{self.name}/{self.number}/{age_seconds}"


class HttpCaller:
    """Calls one server of those it knows; used from any number of threads."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        retries: Retries,
        timeout_seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random_source.random,
        clock: Clock | None = None,
    ) -> None:
        """Args:
        url: of a server, or of several joined by commas.
        timeout_seconds: how long an answer may take, beside the time it was asked to wait.
        """
        self.url = url
        self._servers = Servers(url, token=token)
        self._retries = retries
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock or SystemClock()
        self._sessions: deque[Session] = deque()
        self._is_closed = False
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """In the child of a fork: sockets and sessions are the parent's; a call number used by both is one call."""
        self._sessions = deque()
        self._servers.renew_after_fork()

    def post(
        self, path: str, body: Json, *, repeat: Repeat, wait_seconds: float = 0.0, patience: Patience = "long"
    ) -> Json:
        """POST; `wait_seconds` is how long the server was asked to wait. The answer's JSON."""
        return self.call("POST", path, body, repeat=repeat, wait_seconds=wait_seconds, patience=patience)

    def get(self, path: str) -> Json:
        """GET."""
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
    ) -> Json:
        """See `ask`; the answer's JSON. Raises the error that a problem tells of, too."""
        return read(self.ask(method, path, body, repeat=repeat, wait_seconds=wait_seconds, patience=patience))

    def ask(
        self,
        method: str,
        path: str,
        body: Json | None,
        *,
        repeat: Repeat,
        wait_seconds: float = 0.0,
        patience: Patience = "long",
    ) -> HttpResponse:
        """Ask until there is an answer or no try is left.

        Args:
            patience: `short`: a store that is away is asked for once through each server, and no answer that was lost
                late is asked for again: the caller tries again by itself.

        Raises `StoreUnavailableError` when there is no answer, and nothing was
        changed; `OutcomeUnknownError` if the request may have had its effect.
        """
        data = b"" if body is None else body_bytes(body)
        session = self._take_session() if repeat == "keyed" else None
        is_in_doubt = False
        ends_at = self._clock.monotonic() + wait_seconds
        tries = self._retries.tries * len(self._servers)
        silences_left = self._retries.silences * len(self._servers)
        for attempt in range(1, tries + 1):
            server = self._servers.current
            is_last = attempt == tries
            sent_at = self._clock.monotonic()
            if wait_seconds and body is not None and session is not None and session.sent_at is not None:
                wait_seconds = max(0.0, ends_at - sent_at)
                data = body_bytes({**body, "wait_seconds": wait_seconds})
            try:
                answer = self._send(server, method, path, data, session, wait_seconds)
            except NotSentError as error:
                self._servers.leave(server)
                silences_left -= error.is_silence
                if is_last or not silences_left or self._is_closed:
                    raise self._unreachable(error, is_in_doubt=is_in_doubt) from error
            except ResponseLostError as error:
                self._servers.leave(server)
                is_in_doubt = True
                _note_sent(session, sent_at)
                silences_left -= error.is_silence if patience == "long" else error.is_silence * silences_left
                if is_last or not silences_left or repeat == "once" or self._is_closed:
                    raise self._unanswered(method, path, error) from error
            else:
                if answer.status != 503:
                    return self._settled(answer, session)
                self._servers.leave(server)
                is_unknown = isinstance(_problem(answer), OutcomeUnknownError)
                if is_unknown:
                    _note_sent(session, sent_at)
                may_repeat = repeat != "once" and (is_unknown or patience == "long" or attempt < len(self._servers))
                if is_last or not may_repeat:
                    if is_in_doubt and not is_unknown:
                        _doubted(answer)
                    return self._settled(answer, session)
                is_in_doubt = is_in_doubt or is_unknown
            self._pause(attempt)
        raise AssertionError("the last try returns or raises")

    def _settled(self, answer: HttpResponse, session: Session | None) -> HttpResponse:
        """The session may number the next call: what became of this one is known, or never will be."""
        if session is not None:
            self._sessions.append(session)
        return answer

    def close(self) -> None:
        """Close the connections; calls in other threads end."""
        self._is_closed = True
        self._servers.close()

    def _pause(self, attempt: int) -> None:
        """Before the next round: the other servers are tried at once."""
        rounds, others = divmod(attempt, len(self._servers))
        if not others:
            self._sleep(self._retries.pause_seconds(rounds - 1, draw=self._jitter()))

    def _send(
        self, server: KnownServer, method: str, path: str, data: bytes, session: Session | None, wait_seconds: float
    ) -> HttpResponse:
        head = f"{method} {path}{server.head}"
        if method != "GET":
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        if session is not None:  # last: all before it is the same from call to call, which a server makes use of
            head += f"idempotency-key: {session.key(now=self._clock.monotonic())}\r\n"
        request = head.encode("ascii") + b"\r\n" + data
        return server.transport.ask(request, timeout_seconds=self._timeout_seconds + wait_seconds)

    def _take_session(self) -> Session:
        try:
            session = self._sessions.pop()
        except IndexError:
            session = Session(secrets.token_hex(8))
        session.number += 1
        session.sent_at = None
        return session

    def _unanswered(self, method: str, path: str, error: ResponseLostError) -> StoreUnavailableError:
        told = f"{method} {path} was sent to {masked(self.url)} and not answered ({error})"
        if method == "GET" and error.is_silence:
            return StoreUnavailableError(f"{told}: is it a Towline server, and is it overloaded or stopped?")
        return OutcomeUnknownError(f"{told}: it may have taken effect; look before repeating")

    def _unreachable(self, error: NotSentError, *, is_in_doubt: bool) -> StoreUnavailableError:
        if is_in_doubt:
            return OutcomeUnknownError(
                f"{masked(self.url)} went away ({error}) after it was sent a change: it may have taken effect; look "
                "before repeating"
            )
        return StoreUnavailableError(
            f"can't reach {masked(self.url)}: {error}; is `towline serve` or `towline up` running?"
        )


def _doubted(answer: HttpResponse) -> NoReturn:
    """Nothing was done this time; before, it may have been."""
    raise OutcomeUnknownError(
        f"{_problem(answer)}; it was sent before and may have taken effect then: look before repeating"
    )


def _note_sent(session: Session | None, sent_at: float) -> None:
    """The call may have taken effect: from now on it is a repeat, as old as its first try."""
    if session is not None and session.sent_at is None:
        session.sent_at = sent_at


def quoted(name: str) -> str:
    """A name as one segment of a path. Raises `InvalidRequestError` for text that is not UTF-8."""
    check_text("name", name)
    return quote(name, safe="") or "%20"


def read(answer: HttpResponse) -> Json:
    """An answer's JSON. Raises the error that a problem tells of."""
    if answer.status >= 400:
        raise _problem(answer)
    return cast("Json", from_json(answer.body))


def _problem(answer: HttpResponse) -> QueueError:
    try:
        problem = from_json(answer.body)
    except ValueError:
        problem = {"detail": f"the answer {answer.status} is not JSON: is this a Towline server?"}
    return error_of(problem if isinstance(problem, dict) else {}, status=answer.status)
