"""The form of every request and response: the OpenAPI document is made from it.

Requests are strict models, and the values they stand for. Only their form is checked here; ranges are checked by
`limits`, whose messages name them, inside the verb. Responses are typed dictionaries of the queue's own values.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from queue_core import limits
from queue_core.api import Observation, ObservationQuery
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.http_api.values import STATE_NAMES, STATES, StateName, payload_json
from queue_core.stats import FinishedLease, HeardWorker, TagStats
from queue_core.store import Added, Deletion, Page, Renewed
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState

Whole = Annotated[int, Field(ge=0, le=limits.MAX_INTEGER)]


# -- requests -------------------------------------------------------------------------------------------------------


class RequestBody(BaseModel):
    """A request body: unknown members are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def keys(self) -> int:
        """How many keys its objects have, as they were parsed."""
        return len(self.__pydantic_fields_set__)

    def colons(self) -> int:
        """How many colons there are in its texts, where they often have some."""
        return 0


class Tagged(RequestBody):
    """Which tags: none given is any; `untagged`, or `oldest` for a batch of one tag."""

    kind: Literal["any", "tags", "untagged", "oldest"] | None = Field(
        None, description="`any`, `tags` (those listed), `untagged`, or `oldest`: all of the oldest task's tag."
    )
    tags: tuple[str, ...] = Field((), description="Only tasks with one of these tags.", strict=False)

    def filter(self) -> TagFilter:
        """As a value. Raises `InvalidRequestError` for a contradiction."""
        return tag_filter(self.kind, self.tags)


class TaskIn(RequestBody):
    """A task to add. `payload` is base64; `text` is the same for plain text. At most one of `eta` and the delay."""

    payload: str | None = Field(None, description="Base64, at most 1 MiB of bytes.", examples=["aGVsbG8="])
    text: str | None = Field(None, description="The payload as text, instead of `payload`.", examples=["hello"])
    name: str | None = Field(None, description="Makes the add idempotent.", examples=["invoice-2024-001"])
    tag: str | None = Field(None, examples=["resize"])
    eta: Whole | None = Field(None, description="Microseconds since the epoch; at most 30 days ahead.")
    delay_seconds: float | None = Field(None, description="In [0, 2592000].")
    queue: str | None = Field(None, description="Only in `then`: another queue to add to.")
    max_leases: int | None = Field(
        None, description=f"The task's own bound, in [1, {limits.MAX_LEASES}]; the queue's when left out."
    )

    def value(self) -> NewTask:
        """As a value. Raises `InvalidRequestError` for bytes that are not base64."""
        return NewTask(
            self._bytes(),
            self.name,
            self.tag,
            None if self.eta is None else Instant(self.eta),
            self.delay_seconds,
            self.queue,
            self.max_leases,
        )

    def _bytes(self) -> bytes:
        if self.payload is None:
            return b"" if self.text is None else self.text.encode()
        if self.text is not None:
            raise InvalidRequestError("a task has `payload` (base64) or `text`, not both")
        try:
            return b64decode(self.payload, validate=True)
        except (Base64Error, ValueError) as error:
            raise InvalidRequestError(f"payload is not base64: {error}; give plain text as `text`") from None


class AddRequest(RequestBody):
    """Tasks to add, all or none."""

    tasks: list[TaskIn] = Field(description=f"At most {limits.MAX_TASKS_PER_ADD}.")

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + _count_keys(self.tasks)


class LeaseBody(Tagged):
    """What to lease."""

    count: int = Field(1, description=f"In [1, {limits.MAX_TASKS_PER_LEASE}].", examples=[1])
    seconds: float | None = Field(None, description="In [0, 604800]; the queue's own when left out.", examples=[60])
    worker: str = Field("", description="Who holds the leases; at most 200 characters.")
    wait_seconds: float = Field(0.0, description="In [0, 300]: how long to wait for a task.", examples=[0])

    def colons(self) -> int:
        """See `RequestBody.colons`."""
        return self.worker.count(":")


class DeletionIn(RequestBody):
    """A finished lease, and what to add in the same step."""

    token: str
    then: tuple[TaskIn, ...] = Field((), strict=False)

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + _count_keys(self.then)

    def value(self) -> Deletion:
        """As a value."""
        return Deletion(self.token, tuple(task.value() for task in self.then)) if self.then else Deletion(self.token)


class ExchangeRequest(LeaseBody):
    """Finished leases, then what to lease next."""

    deletions: tuple[DeletionIn, ...] = Field((), strict=False)

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + sum([deletion.keys() for deletion in self.deletions])


class DeleteRequest(RequestBody):
    """Finished leases: as bare tokens, or with what to add."""

    tokens: tuple[str, ...] = Field((), strict=False)
    deletions: tuple[DeletionIn, ...] = Field((), strict=False)

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + sum([deletion.keys() for deletion in self.deletions])

    def values(self) -> list[Deletion]:
        """As values."""
        return [Deletion(token) for token in self.tokens] + [deletion.value() for deletion in self.deletions]


class RenewRequest(RequestBody):
    """Leases whose ends are to be moved."""

    tokens: list[str]
    seconds: float | None = Field(None, description="From now, in [0, 604800]; the queue's own when left out.")


class ReleaseRequest(RequestBody):
    """Leases to give back."""

    tokens: list[str]
    delay_seconds: float | None = Field(None, description="In [0, 2592000]; the queue's back-off when left out.")
    charge: Literal["counted", "uncounted"] = "counted"
    dead_reason: str = Field("", description="Makes the tasks dead at once.")


class NamesRequest(RequestBody):
    """Tasks by name."""

    names: list[str]


class PurgeRequest(Tagged):
    """What to purge."""

    dead: Literal["keep", "only"] = "keep"


class RedriveRequest(Tagged):
    """Dead tasks, by name or by tag."""

    names: list[str] | None = None


class PeekRequest(Tagged):
    """What to look at."""

    states: frozenset[StateName] = Field(frozenset(STATES), strict=False)
    names: list[str] | None = None
    after: Whole = Field(0, description="`next_after` of the page before.")
    limit: int = Field(100, description=f"In [1, {limits.MAX_PEEK_TASKS}].", examples=[100])
    payload_bytes: int = Field(0, ge=0, le=limits.MAX_PAYLOAD_BYTES, description="Payloads are cut to this.")

    def wanted(self) -> frozenset[TaskState]:
        """The states as values."""
        return frozenset(STATES[name] for name in self.states)


class ObserveRequest(Tagged):
    """What a supervisor asks."""

    after: Whole = Field(0, description="`samples.cursor` of the observation before.")
    workers: tuple[Annotated[str, Field(max_length=limits.MAX_WORKER_CHARACTERS)], ...] = Field(
        (), max_length=10_000, strict=False
    )
    ahead_seconds: float = Field(0.0, description="In [0, 2592000]: how far ahead tasks to come are told.")


class LookRequest(ObserveRequest):
    """A queue, and what is params of it."""

    queue: str

    def look(self) -> ObservationQuery:
        """As a value."""
        return ObservationQuery(self.queue, self.filter(), self.after, self.workers, self.ahead_seconds)


class ObserveManyRequest(RequestBody):
    """What a supervisor of many pools asks at once."""

    looks: list[LookRequest] = Field(max_length=limits.MAX_LOOKS_PER_CALL)


class LeadRequest(RequestBody):
    """Who wants to lead what."""

    name: str = Field(min_length=1, max_length=limits.MAX_WORKER_CHARACTERS)
    holder: str = Field(min_length=1, max_length=limits.MAX_WORKER_CHARACTERS)
    seconds: float = Field(ge=0, le=limits.MAX_LEASE_SECONDS)


class WaitFor(Tagged):
    """A queue, and which of its tasks."""

    queue: str


class WaitRequest(RequestBody):
    """What to wait for."""

    queues: list[WaitFor] = Field(min_length=1, max_length=1000)
    wait_seconds: float = Field(0.0, description="In [0, 300].", examples=[0])


class QueueBody(RequestBody):
    """How a queue is to be set; what is left out gets its default."""

    lease_seconds: float = 60.0
    max_lease_seconds: float = limits.MAX_LEASE_SECONDS
    max_leases: int | None = None
    retry_min_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    on_exhausted: Literal["dead", "delete"] = "dead"
    name_retention_seconds: float = Field(limits.NAME_RETENTION_SECONDS, ge=0, le=10 * 365 * 86_400.0)
    lease_calls_per_second: int | None = Field(
        None, description="Lease calls that the front doors of App Engine and Cloud Tasks grant; null: no bound."
    )
    user_emails: tuple[str, ...] = Field((), description="Who may use the tasks through these doors.", strict=False)
    writer_emails: tuple[str, ...] = Field((), description="Who may insert tasks there.", strict=False)
    mode: Literal["pull", "push"] = Field(
        "pull",
        description="`push`: a push queue of App Engine's, known by name; its front door refuses pull calls on it.",
    )

    def value(self, name: str) -> QueueSpec:
        """As a value."""
        return QueueSpec(name, **self.model_dump())


class StorageLimit(RequestBody):
    """How much the payloads of all tasks may come to."""

    limit_bytes: int | None = Field(ge=0, le=limits.MAX_STORAGE_BYTES, description="null: no limit.")


class RetireRequest(RequestBody):
    """What is done to a worker that holds a lease: nothing, or it finishes what it holds and gets no more."""

    busy: Literal["keep", "finish"] = "keep"


class EmptyBody(RequestBody):
    """An empty object."""


def _count_keys(tasks: Sequence[TaskIn]) -> int:
    return sum([len(task.__pydantic_fields_set__) for task in tasks])


def tag_filter(kind: str | None, tags: tuple[str, ...]) -> TagFilter:
    """The filter that was meant. Raises `InvalidRequestError` for a contradiction."""
    if kind is None:
        return TagFilter("tags", tuple(dict.fromkeys(tags))) if tags else ANY
    if kind in ("any", "untagged"):
        if tags:
            raise InvalidRequestError(f"kind {kind} goes without tags: {len(tags)} given; leave out one of the two")
        return ANY if kind == "any" else UNTAGGED
    if kind == "tags" and not tags:
        raise InvalidRequestError("kind tags needs at least one tag; leave it out for all tasks")
    return TagFilter.oldest(*tags) if kind == "oldest" else TagFilter.of(*tags)


# -- responses ------------------------------------------------------------------------------------------------------


class Response:
    """A response's form: writes its JSON, and is part of the OpenAPI document."""

    def __init__(self, form: type) -> None:
        self.adapter: TypeAdapter[object] = TypeAdapter(form)
        self._to_json = self.adapter.serializer.to_json

    def json(self, value: object) -> bytes:
        """Return the body of a response."""
        return self._to_json(value, warnings=False)  # such as of a whole number where a float may be


@cache
def response(form: type) -> Response:
    """Return the one `Response` of that form."""
    return Response(form)


class AddedTasks(TypedDict):
    """One outcome per task, in order."""

    added: list[Added]


class LeaseOut(TypedDict):
    """A lease with its payload."""

    queue: str
    name: str
    tag: str | None
    payload: Annotated[str, Field(description="Base64.")]
    token: str
    worker: str
    lease_number: int
    leased_at: int
    expires_at: int
    ready_at: int
    added_at: int


def lease_out(lease: Lease) -> LeaseOut:
    """A lease as it is answered with."""
    return {
        "queue": lease.queue,
        "name": lease.name,
        "tag": lease.tag,
        "payload": payload_json(lease.payload),
        "token": lease.token,
        "worker": lease.worker,
        "lease_number": lease.lease_number,
        "leased_at": lease.leased_at,
        "expires_at": lease.expires_at,
        "ready_at": lease.ready_at,
        "added_at": lease.added_at,
    }


class Leases(TypedDict):
    """What was leased; nothing when there was nothing."""

    leases: list[LeaseOut]


class Exchanged(TypedDict):
    """What was leased, and the tokens that were no longer current."""

    leases: list[LeaseOut]
    lost: tuple[str, ...]


class RenewedLeases(TypedDict):
    """Leases and their new ends."""

    renewed: list[Renewed]


class ReleasedLeases(TypedDict):
    """What was given back."""

    released: list[FinishedLease]


class NameOutcomes(TypedDict):
    """One outcome per name, in order."""

    outcomes: list[Literal["deleted", "unknown", "tombstoned"]]


class Count(TypedDict):
    """How many."""

    count: int


class Done(TypedDict):
    """It is so."""


class TaskOut(TypedDict):
    """A task as it stands."""

    id: int
    name: str
    named: bool
    queue: str
    tag: str | None
    payload: Annotated[str, Field(description="Base64, cut to `payload_bytes`.")]
    state: StateName
    eta: int
    added_at: int
    ready_at: int
    leases: int
    leased_at: int
    worker: str
    reason: str
    max_leases: Annotated[int | None, Field(description="The task's own bound; null: its queue's.")]


def task_out(task: StoredTask) -> TaskOut:
    """A task as it is shown; its token and its fences stay here."""
    return {
        "id": task.id,
        "name": task.shown_name,
        "named": task.name is not None,
        "queue": task.queue,
        "tag": task.tag,
        "payload": payload_json(task.payload),
        "state": STATE_NAMES[task.state],
        "eta": task.eta,
        "added_at": task.added_at,
        "ready_at": task.ready_at,
        "leases": task.leases,
        "leased_at": task.leased_at,
        "worker": task.worker,
        "reason": task.reason,
        "max_leases": task.max_leases,
    }


class TaskPage(TypedDict):
    """Some tasks in id order, and where the next page begins."""

    tasks: list[TaskOut]
    next_after: int | None


def page_out(page: Page) -> TaskPage:
    """A page as it is answered with."""
    return {"tasks": [task_out(task) for task in page.tasks], "next_after": page.next_after}


class QueueListReply(TypedDict):
    """All queues by name."""

    queues: list[QueueSpec]


class Created(TypedDict):
    """Whether the queue is new."""

    created: bool


class TagCounts(TypedDict):
    """Counts per tag; null is untagged."""

    tags: list[TagStats]


class ObservationsOut(TypedDict):
    """One for each look, in their order; null for a queue that does not exist."""

    observations: list[Observation | None]


class HeardWorkers(TypedDict):
    """Workers that this server has heard of lately, those silent for longest first."""

    workers: list[HeardWorker]


class Retired(TypedDict):
    """False when the worker holds a lease."""

    retired: bool


class Held(TypedDict):
    """Whether the lead is yours."""

    held: bool


class BackedUp(TypedDict):
    """A copy of the store that was checked: its file on the server's host, its size and its tasks."""

    file: str
    size_bytes: int
    tasks: int


class ReadyQueue(TypedDict):
    """A queue that has work, or null when the time was up."""

    queue: str | None


class EventsOut(TypedDict):
    """Events after the cursor that was params for, oldest first."""

    events: list[dict[str, object]]
    cursor: int
    missed: bool


class Health(TypedDict):
    """How the server is."""

    status: Literal["ok"]
    run: Annotated[str, Field(description="Another one after each start.")]


@with_config(ConfigDict(extra="allow"))
class ProblemOut(TypedDict):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
