"""One call to a server: sent again where a repeat is harmless, within bounds; its problem raised as the error it tells.

What is harmless: anything that was not sent, or was refused because the store is away; `SAFE` verbs, which come to the
same when done twice; adds, which carry a key (see `server/repeats.py`). A `ONCE` verb that was sent and not answered is
never repeated: it might lease twice. Where several servers are known, the next one is tried at once.
"""

import random as random_source
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import quote

from pydantic_core import from_json, to_json

from queue_core.building import builder
from queue_core.errors import OutcomeUnknownError, QueueError, StoreUnavailableError
from queue_core.http_api.problem_types import STALE_KEY, error_of
from queue_core.http_api.servers import Server, Servers
from queue_core.http_api.transport import Answer, AnswerLostError, NotSentError
from queue_core.http_api.values import Json
from queue_core.stores.urls import masked

Repeat = Literal["safe", "once", "keyed"]


@dataclass(frozen=True, slots=True)
class Retries:
    """When to give up: after so many tries of every server. Pauses between them are drawn from [0, longest)."""

    tries: int = 6
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 2.0

    def pause_seconds(self, attempt: int, *, draw: float) -> float:
        """Before try `attempt` + 1, with full jitter; `draw` is from [0, 1)."""
        return draw * min(self.longest_pause_seconds, self.first_pause_seconds * 2.0**attempt)


@dataclass(slots=True)
class Session:
    """Numbers the adds of one thread at a time.

    `run` is the server's run that the present number was first sent to. Its repeats name that run too, whatever other
    threads have learned since: only so does a later run know that they are repeats. `repeats`: as its server says.
    """

    name: str
    number: int = 0
    run: str | None = None
    repeats: str = "run"


@dataclass(frozen=True, slots=True)
class Called:
    """What came back, and whether an earlier try may have taken effect already."""

    answer: Answer
    was_ambiguous: bool = False

    def json(self) -> Json:
        """The answer's JSON. Raises the error that a problem tells of."""
        return _read(self.answer)


new_called = builder(Called)


class Caller:
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
        self._sessions: deque[Session] = deque()

    def post(self, path: str, body: Json, *, repeat: Repeat, wait_seconds: float = 0.0) -> Called:
        """POST; `wait_seconds` is how long the server was asked to wait."""
        return self.call("POST", path, body, repeat=repeat, wait_seconds=wait_seconds)

    def get(self, path: str) -> Json:
        """GET."""
        return self.call("GET", path, None, repeat="safe").json()

    def call(self, method: str, path: str, body: Json | None, *, repeat: Repeat, wait_seconds: float = 0.0) -> Called:
        """Ask until there is an answer or no try is left.

        Raises `StoreUnavailableError` when there is none: `OutcomeUnknownError` if the request may have had its effect.
        """
        data = b"" if body is None else to_json(body)
        session = self._take_session() if repeat == "keyed" else None
        was_ambiguous = False
        tries = self._retries.tries * len(self._servers)
        for attempt in range(1, tries + 1):
            server = self._servers.current
            is_last = attempt == tries
            try:
                answer = self._send(server, method, path, data, session, wait_seconds, is_repeat=was_ambiguous)
            except NotSentError as error:
                self._servers.leave(server)
                if is_last:
                    raise self._unreachable(error, was_ambiguous=was_ambiguous) from error
                if session is not None and not was_ambiguous:
                    session.run = None  # nobody has seen the key yet
                self._pause(attempt)
                continue
            except AnswerLostError as error:
                self._servers.leave(server)
                if is_last or repeat == "once":
                    raise _unknown(method, path, error) from error
                was_ambiguous = True
                self._pause(attempt)
                continue
            if answer.status == 412 and session is not None and not was_ambiguous and _is_stale(answer):
                _forget_run(server, session)
                continue
            if answer.status == 503:
                self._servers.leave(server)
                is_unknown = isinstance(_problem(answer), OutcomeUnknownError)
                if not is_last and self._may_repeat(repeat, session, attempt, is_unknown=is_unknown):
                    was_ambiguous = was_ambiguous or is_unknown
                    self._pause(attempt)
                    continue
                if was_ambiguous and not is_unknown:  # nothing was done this time; before, it may have been
                    raise OutcomeUnknownError(
                        f"{_problem(answer)}; it was sent before and may have taken effect then: look before repeating"
                    )
            if session is not None:
                self._sessions.append(session)
            return new_called(answer, was_ambiguous)
        raise StoreUnavailableError(
            f"{masked(self.url)} is started anew again and again: nothing was done; try again later"
        )

    def close(self) -> None:
        """Close the connections; calls in other threads end."""
        self._servers.close()

    def _pause(self, attempt: int) -> None:
        """Before the next round: the other servers are tried at once."""
        rounds, others = divmod(attempt, len(self._servers))
        if not others:
            self._sleep(self._retries.pause_seconds(rounds - 1, draw=self._jitter()))

    def _may_repeat(self, repeat: Repeat, session: Session | None, attempt: int, *, is_unknown: bool) -> bool:
        """Whether a refusal for now is worth another try: not when a change may have happened behind it, unless it is
        known again. A lease is asked of every server once: who leases has a patience of its own."""
        if repeat == "safe":
            return True
        if session is not None:
            return not is_unknown or session.repeats == "store"
        return not is_unknown and attempt < len(self._servers)

    def _send(
        self,
        server: Server,
        method: str,
        path: str,
        data: bytes,
        session: Session | None,
        wait_seconds: float,
        *,
        is_repeat: bool,
    ) -> Answer:
        head = f"{method} {path}{server.head}"
        if session is not None:
            if session.run is None:
                session.run, session.repeats = self._known_run(server), server.repeats
            head += f"idempotency-key: {session.run}/{session.name}/{session.number}/{int(is_repeat)}\r\n"
        if method != "GET":
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        request = head.encode("ascii") + b"\r\n" + data
        return server.transport.ask(request, timeout_seconds=self._timeout_seconds + wait_seconds)

    def _take_session(self) -> Session:
        try:
            session = self._sessions.pop()
        except IndexError:
            session = Session(secrets.token_hex(8))
        session.number += 1
        session.run = None
        return session

    def _known_run(self, server: Server) -> str:
        run = server.run
        if run is None:
            try:
                answer = server.transport.ask(
                    f"GET /livez{server.head}\r\n".encode("ascii"), timeout_seconds=self._timeout_seconds
                )
            except AnswerLostError as error:
                raise NotSentError(str(error)) from error  # the add itself was not sent
            told = _read(answer)
            run = server.run = str(told["run"])
            server.repeats = str(told.get("repeats", "run"))
        return run

    def _unreachable(self, error: NotSentError, *, was_ambiguous: bool) -> StoreUnavailableError:
        if was_ambiguous:
            return OutcomeUnknownError(
                f"{masked(self.url)} went away ({error}) after it was sent a change: it may have taken effect; look "
                "before repeating"
            )
        return StoreUnavailableError(
            f"can't reach {masked(self.url)}: {error}; is `towline serve` or `towline up` running?"
        )


def quoted(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="") or "%20"


def _is_stale(answer: Answer) -> bool:
    return cast("Json", from_json(answer.body)).get("type") == STALE_KEY


def _forget_run(server: Server, session: Session) -> None:
    """The run is over and the add was not done there: both start anew, unless another thread has already."""
    if server.run == session.run:
        server.run = None
    session.run = None


def _read(answer: Answer) -> Json:
    if answer.status >= 400:
        raise _problem(answer)
    return cast("Json", from_json(answer.body))


def _problem(answer: Answer) -> QueueError:
    try:
        problem = from_json(answer.body)
    except ValueError:
        problem = {"detail": f"the answer {answer.status} is not JSON: is this a Towline server?"}
    return error_of(problem if isinstance(problem, dict) else {}, status=answer.status)


def _unknown(method: str, path: str, error: AnswerLostError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{method} {path} was sent and not answered ({error}): it may have taken effect; look before repeating"
    )
