"""A verb as a value: its arguments, and once for all what it does, who may call it and how it travels.

The facades make these values (`client.queue`), and three kinds of callers carry them out: `client.local_calls` in a
store that this program opened, `client.http_calls` at a server, and `server.v1.verb_endpoints` in the server's own
store. ADR 133.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast, get_args

from typing_extensions import is_typeddict

from queue_core.clock import Instant
from queue_core.task import StoredTask, TagFilter
from queue_core.verbs import ClientCall
from queue_core.verbs.change_verbs import Selector
from queue_core.verbs.roles import Access, Role
from queue_core.verbs.wire import STATE_NAMES, Json, tags_json

if TYPE_CHECKING:
    from queue_core.unit.pieces import RunPiece
    from queue_core.unit.service import Operation
    from queue_core.unit.unit_of_work import UnitOfWork

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Verb(Generic[R]):
    """A call of one verb. Subclasses have its arguments as fields; `Query` and `Change` say what kind it is.

    An argument that `path` names travels there, the others as members of the body, or of the query of a GET. What a
    member is to people stands in its field's metadata, as pydantic's `Field` takes it.
    """

    method: ClassVar[Literal["GET", "POST", "PUT", "DELETE"]] = "POST"
    path: ClassVar[str]
    summary: ClassVar[str]
    """The sentence of the HTTP reference."""
    operation: ClassVar[str]
    """Its id in the OpenAPI document."""
    permission: ClassVar[str]
    """The verb of `server.auth.REQUIRED_ROLES`; several may share one."""
    role: ClassVar[Role]
    """The roles that allow it; one of them is enough."""
    access: ClassVar[Access | None] = None
    """What it needs in its queue's acl; None: it concerns the whole store."""
    whole_store: ClassVar[str] = ""
    """What of the whole store it shows or changes, where its permission is one for some queues."""
    request: ClassVar[tuple[str, str]] = ("", "")
    """The name of its request's body in the OpenAPI document, and what that is; "": an empty object."""
    answers: ClassVar[type]
    """The form of the response: a `TypedDict` with the result as its only member, or the result's own dataclass."""
    patience: ClassVar[Literal["short", "long"]] = "long"
    """How long a client tries: see `HttpCaller.request`."""

    @property
    def is_keyed(self) -> bool:
        """Return whether a client numbers the call, so that it takes effect once; else it may run twice."""
        return False

    def check(self) -> None:
        """Raise `InvalidRequestError` for a number or a text out of range: clients ask before they send it."""

    def sentence(self, result: R, now: Instant) -> str:
        """Return what a person is told at a terminal or in the console, once it took effect."""
        raise NotImplementedError

    def body(self) -> Json | None:
        """Return its request's body: the members in order, a tag filter as `kind` and `tags`; None: it has none."""
        if self.method in ("GET", "DELETE"):
            return None
        body: Json = {}
        for name in body_members(type(self)):
            match getattr(self, name):
                case TagFilter() as tags:
                    body |= tags_json(tags)
                case frozenset() as states:
                    body[name] = [STATE_NAMES[state] for state in sorted(states)]
                case member:
                    body[name] = member
        return body

    @classmethod
    def result_of(cls, answer: Json) -> R:
        """Return the result that a server's response has. A form without members has none."""
        if not is_typeddict(cls.answers):
            return cast("R", cls.answers(**answer))
        key = answer_key(cls)
        return cast("R", answer[key] if key else None)

    @classmethod
    def answer_of(cls, result: R) -> object:
        """Return a server's response that has the result."""
        if not is_typeddict(cls.answers):
            return result
        key = answer_key(cls)
        return {key: result} if key else {}


@dataclass(frozen=True, slots=True)
class Query(Verb[R]):
    """A verb that changes nothing."""

    def run(self, work: "UnitOfWork") -> R:
        """Carry it out inside one transaction that only reads."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Change(Verb[R]):
    """A verb that changes something; it takes effect once, however often a client sends it (ADR 46)."""

    audit: ClassVar[str] = ""
    """What an operator's log says was done; "": workers and supervisors call it all the time."""
    handles_payloads: ClassVar[bool] = False
    """Whether one run handles as many payloads as a piece of a purge does, and shares no group commit."""
    tries: ClassVar[int] = 1
    """Attempts of a local call that another program's change refuses; a client's are its `Retries`."""

    @property
    def is_keyed(self) -> bool:
        """See `Verb.is_keyed`."""
        return True

    @property
    def in_pieces(self) -> bool:
        """Return whether it is to be run in one transaction after the other, until it returns 0."""
        return False

    def run(self, work: "UnitOfWork", by: str) -> R:
        """Carry it out inside one transaction; `by`: the caller, as records of what it deleted have it."""
        raise NotImplementedError

    def audit_facts(self, result: R) -> Mapping[str, object] | None:
        """Return what the log says of the change; None: nothing was changed."""
        return {"tasks": result} if type(result) is int else {}


@dataclass(frozen=True, slots=True)
class ChangeTasks(Change[int]):
    """A change of those tasks of a queue that a selector means, each by a pure function; its result is their number."""

    event: ClassVar[str]
    """What is recorded of each task that was changed."""

    queue: str

    def selector(self) -> Selector:
        """Return which tasks are meant."""
        raise NotImplementedError

    def transition(self, task: StoredTask, *, now: Instant) -> StoredTask:
        """Return what becomes of one; the same object: it stays as it is."""
        raise NotImplementedError

    def run(self, work: "UnitOfWork", _by: str) -> int:
        """See `Change.run`."""
        self.check()
        now = work.now
        return work.apply(self.queue, self.selector(), lambda task, _: self.transition(task, now=now), event=self.event)


@dataclass(frozen=True, slots=True)
class ReadStep(Generic[R]):
    """A step that changes nothing."""

    operation: "Operation[R]"


@dataclass(frozen=True, slots=True)
class WriteStep(Generic[R]):
    """A step that changes something in one transaction."""

    operation: "Operation[R]"


@dataclass(frozen=True, slots=True)
class InPieces:
    """A step of one transaction after the other; its result is how many tasks they changed."""

    run: "RunPiece"


Steps: TypeAlias = Generator[ReadStep[Any] | WriteStep[Any] | InPieces, Any, R]
"""Yields one step after the other, is sent the result of each, and returns the verb's."""


@dataclass(frozen=True, slots=True)
class Stepwise(Verb[R]):
    """A verb of several transactions, which other callers' come between."""

    def steps(self, by: str, call: ClientCall | None) -> Steps[R]:
        """Return its steps; `call`: the client's, where it takes effect once."""
        raise NotImplementedError


def result_type(kind: type[Verb[R]]) -> type[R]:
    """Return the type of a verb's result: that of its nearest base, as in `Change[int]`."""
    bases = (base for each in kind.__mro__ for base in vars(each).get("__orig_bases__", ()))
    return cast("type[R]", next(given[0] for base in bases if (given := get_args(base))))


def answer_key(kind: type[Verb[R]]) -> str | None:
    """Return the member of a response that has the result; None: it has no member, or is the result itself."""
    members = list(kind.answers.__annotations__) if is_typeddict(kind.answers) else []
    return members[0] if members else None


def path_members(kind: type[Verb[R]]) -> tuple[str, ...]:
    """Return the arguments that a verb's path names."""
    return tuple(name for _, name, _, _ in Formatter().parse(kind.path) if name)


def body_members(kind: type[Verb[R]]) -> tuple[str, ...]:
    """Return the other arguments, in order."""
    return tuple(field.name for field in fields(kind) if field.name not in path_members(kind))
