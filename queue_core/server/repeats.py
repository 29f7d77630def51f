"""Adds without names made repeatable: a client numbers them, and the last outcome of each client is remembered.

A key is `run/session/number/attempt`. A session has one add under way, so one outcome each is enough, however long a
client takes to ask again. Memory ends with the server: a repeat that meets another run is told that nobody knows. Where
several servers share a store, that remembers too (`kept_adds.py`), and keys of every run are right.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from queue_core.errors import InvalidRequestError, OutcomeUnknownError, QueueError
from queue_core.http_api.problem_types import STALE_KEY
from queue_core.server.problems import Problem
from queue_core.server.turns import Done
from queue_core.store import ClientCall

MAX_SESSIONS = 20_000


@dataclass(slots=True)
class _Last:
    """A session's last add: its outcome once there is one, and who asks for it meanwhile."""

    number: int
    asking: list[Done] = field(default_factory=list)
    outcome: object = None


class Repeats:
    """The sessions of one run of a server."""

    def __init__(self, run: str, *, kept_by_store: bool = False) -> None:
        """`kept_by_store`: several servers share the store, which is to remember too."""
        self.run = run
        self._kept_by_store = kept_by_store
        self._sessions: dict[str, _Last] = {}
        self._has_forgotten = False

    def once(self, key: bytes, start: Callable[[ClientCall | None, Done], None], done: Done) -> None:
        """Call `start` unless this key was seen; `done` gets the one outcome either way.

        `start` is given the call for the store to remember, if it is to. Raises `Problem` for a key of another run,
        `OutcomeUnknownError` when that is a repeat.
        """
        session, number, attempt = self._parse(key)
        last = self._sessions.get(session)
        if last is not None and number <= last.number:
            self._answer_again(last, number, done)
            return
        if last is None and attempt and self._has_forgotten and not self._kept_by_store:
            raise OutcomeUnknownError("this session was forgotten: whether the add took effect is not known")
        new = _Last(number, [done])
        self._sessions.pop(session, None)
        self._sessions[session] = new
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
            self._has_forgotten = True
        call = ClientCall(session, number, is_repeat=attempt > 0) if self._kept_by_store else None
        start(call, lambda outcome: self._told(session, new, outcome))

    def _parse(self, key: bytes) -> tuple[str, int, int]:
        try:
            run, session, number, attempt = key.decode("ascii").split("/")
            parsed = session[:64], int(number), int(attempt)
        except ValueError:
            raise InvalidRequestError("an idempotency key is `run/session/number/attempt`; leave it out") from None
        if run == self.run or self._kept_by_store:
            return parsed
        if parsed[2]:
            raise OutcomeUnknownError(
                "the server was started anew since this add was first sent: whether it took effect is not known; "
                "tasks with names can always be added again"
            )
        raise Problem(412, "the key is of another run of this server; nothing was done", STALE_KEY)

    def _answer_again(self, last: _Last, number: int, done: Done) -> None:
        if number < last.number:
            raise InvalidRequestError(f"add {number} of this session is over: {last.number} is the last")
        if last.outcome is None:
            last.asking.append(done)
        else:
            done(last.outcome)

    def _told(self, session: str, last: _Last, outcome: object) -> None:
        is_unknown = isinstance(outcome, OutcomeUnknownError) and not self._kept_by_store
        if isinstance(outcome, QueueError) and not is_unknown:
            if self._sessions.get(session) is last:
                del self._sessions[session]  # it had no effect, so a repeat may try; or the store tells what it had
        else:
            last.outcome = outcome
        asking, last.asking = last.asking, []
        for done in asking:
            done(outcome)
