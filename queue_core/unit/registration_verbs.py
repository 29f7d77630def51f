"""The verbs of registrations.

Those of one kind are one record (ADR 40) beside the schedules' (ADR 38): every store has it, and whoever changes it
second at the same time is refused and tries again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from queue_core.clock import after
from queue_core.errors import InvalidRequestError
from queue_core.unit.verb import Change, Query
from queue_core.verbs import answers, roles
from queue_core.verbs.registration import (
    MAX_REGISTRATIONS,
    Registration,
    check_kind,
    check_registration,
    decode,
    encode,
)
from queue_core.verbs.wire import Json, many_of

if TYPE_CHECKING:
    from queue_core.unit.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class Register(Change[None]):
    """Keep small facts of a program under its name for so long, in place of earlier ones; 0 seconds end it."""

    path = "/v1/registrations/{kind}"
    permission, role = "register", roles.ADMINISTER
    answers = answers.Done
    tries = 5

    kind: str
    name: str
    facts: Mapping[str, str]
    seconds: float

    def check(self) -> None:
        check_registration(self.kind, self.name, self.facts, seconds=self.seconds)

    def run(self, work: "UnitOfWork", _by: str) -> None:
        register(work, self.kind, self.name, self.facts, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class ListRegistrations(Query[list[Registration]]):
    """Return the facts of that kind that are kept now, by name."""

    method = "GET"
    path = "/v1/registrations/{kind}"
    permission, role, access = "registrations", roles.READ, "look"
    answers = answers.RegistrationList

    kind: str

    def run(self, work: "UnitOfWork") -> list[Registration]:
        return registrations(work, self.kind)

    @classmethod
    def result_of(cls, answer: Json) -> list[Registration]:
        return many_of(Registration, answer["registrations"])


def register(work: "UnitOfWork", kind: str, name: str, facts: Mapping[str, str], *, seconds: float) -> None:
    """Keep these facts under a name for so long, in place of earlier ones; 0 seconds end a registration.

    Raises `StoreUnavailableError` when another caller registers at the same time: then it may be repeated.
    """
    check_registration(kind, name, facts, seconds=seconds)
    last = work.transaction.last_answer(_session(kind))
    known = decode(last and last[1], now=work.now)
    if seconds == 0 and name not in known:
        return
    known[name] = Registration(name, facts, after(work.now, seconds))
    if len(known) > MAX_REGISTRATIONS:
        raise InvalidRequestError(f"a store keeps at most {MAX_REGISTRATIONS:,} {kind}: {len(known):,}")
    kept = {one.name: one for one in known.values() if one.until > work.now}
    number = last[0] + 1 if last else 1
    work.transaction.keep_answer(_session(kind), number, encode(kept), now=work.now, kept="always")


def registrations(work: "UnitOfWork", kind: str) -> list[Registration]:
    """Return the registrations of a kind that hold now, by name."""
    check_kind(kind)
    last = work.transaction.last_answer(_session(kind))
    known = decode(last and last[1], now=work.now)
    return [known[name] for name in sorted(known)]


def _session(kind: str) -> str:
    return f":registrations:{kind}"


OTHERS: Final = (Register, ListRegistrations)
"""Those whose endpoints are written by hand."""
