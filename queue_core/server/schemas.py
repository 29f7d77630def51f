"""The form of every request and response: the OpenAPI document is generated from it.

Requests are strict models of the queue's own values. Only their form is checked here; ranges are checked by `limits`,
inside the verb, with messages that name them. Responses are typed dictionaries of those values.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Literal, NotRequired, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, with_config
from pydantic_core import CoreSchema
from typing_extensions import TypedDict

from queue_core import limits
from queue_core.admission import Rate, TagLimits
from queue_core.attempts.attempt import Attempt
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.limits import MAX_HEADERS_BYTES
from queue_core.rare_fields import has_rare_fields, rare_json
from queue_core.stats import WorkerActivity
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, Progress, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import Added, Deletion, Observation, ObservationQuery, Page, Renewed
from queue_core.verbs.wire import STATE_NAMES, STATES, StateName, payload_json

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})

Whole = Annotated[int, Field(ge=0, le=limits.MAX_INTEGER)]


# -- requests -------------------------------------------------------------------------------------------------------


def _fail_fast(schema: object) -> None:
    """Set this in all lists of a schema."""
    if isinstance(schema, dict):
        if schema.get("type") in _LISTS:
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)
    elif isinstance(schema, list):
        for part in schema:
            _fail_fast(part)


class RequestBody(BaseModel):
    """A request body: unknown members are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make each list end at its first error: one with a million of them is refused as fast as one with one."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    def keys(self) -> int:
        """Return how many keys its objects have, as they were parsed."""
        return len(self.__pydantic_fields_set__)

    def colons(self) -> int:
        """Return how many colons there are in its texts, where they often have some."""
        return 0


class Tagged(RequestBody):
    """A filter by tag. None given: all tasks; `untagged`; or `oldest` for a batch of one tag."""

    kind: Literal["any", "tags", "untagged", "oldest"] | None = Field(
        None, description="`any`, `tags` (those listed), `untagged`, or `oldest`: all of the oldest task's tag."
    )
    tags: tuple[str, ...] = Field((), description="Only tasks with one of these tags.", strict=False)

    def filter(self) -> TagFilter:
        """Return it as a value. Raises `InvalidRequestError` for a contradiction."""
        return ANY if self.kind is None and not self.tags else tag_filter(self.kind, self.tags)


class TaskIn(RequestBody):
    """A task to add. `payload` is base64; `text` is the same for plain text. At most one of `eta` and the delay."""

    payload: str | None = Field(None, description="Base64 of `max_payload_bytes` at most.", examples=["aGVsbG8="])
    text: str | None = Field(None, description="The payload as text, instead of `payload`.", examples=["hello"])
    name: str | None = Field(None, description="Makes the add idempotent.", examples=["invoice-2024-001"])
    tag: str | None = Field(None, examples=["resize"])
    eta: Whole | None = Field(None, description="Microseconds since the epoch; at most `max_eta_seconds` ahead.")
    delay_seconds: float | None = Field(None, description="In [0, `max_eta_seconds`].")
    queue: str | None = Field(None, description="Another queue to add to, in the same transaction.")
    max_leases: int | None = Field(
        None, description=f"The task's own bound, in [1, {limits.MAX_LEASES}]; the queue's when left out."
    )
    headers: dict[str, str] | None = Field(
        None,
        description=f"Texts by name, at most {MAX_HEADERS_BYTES} bytes together; names of `A-Z a-z 0-9 _ . -`.",
        examples=[{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}],
    )
    priority: int = Field(0, description=f"In [0, {limits.MAX_PRIORITY}]; a higher one is leased before all lower.")

    def value(self) -> NewTask:
        """Return it as a value. Raises `InvalidRequestError` for bytes that are not base64."""
        return NewTask(
            self._bytes(),
            self.name,
            self.tag,
            None if self.eta is None else Instant(self.eta),
            self.delay_seconds,
            self.queue,
            self.max_leases,
            self.headers,
            self.priority,
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
    """The tasks to lease."""

    count: int = Field(1, description=f"In [1, {limits.MAX_TASKS_PER_LEASE}].", examples=[1])
    seconds: float | None = Field(None, description="In [0, 604800]; the queue's own when left out.", examples=[60])
    worker: str = Field("", description="Holder of the leases; at most 200 characters.")
    wait_seconds: float = Field(0.0, description="In [0, 300]: how long to wait for a task.", examples=[0])

    def colons(self) -> int:
        """See `RequestBody.colons`."""
        return self.worker.count(":")


class DeletionIn(RequestBody):
    """A finished lease, and tasks to add in the same transaction."""

    token: str
    then: tuple[TaskIn, ...] = Field((), strict=False)

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        own = len(self.__pydantic_fields_set__)
        return own + _count_keys(self.then) if self.then else own

    def value(self, token: str) -> Deletion:
        """Return it as a value, with the token of the store."""
        return Deletion(token, tuple(task.value() for task in self.then)) if self.then else Deletion(token)


class ExchangeRequest(LeaseBody):
    """Finished leases, and the tasks to lease next."""

    deletions: tuple[DeletionIn, ...] = Field((), strict=False)

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + sum(map(DeletionIn.keys, self.deletions))


class DeleteRequest(RequestBody):
    """Finished leases: as bare tokens, or with tasks to add."""

    tokens: tuple[str, ...] = Field((), strict=False)
    deletions: tuple[DeletionIn, ...] = Field((), strict=False)

    def keys(self) -> int:
        """See `RequestBody.keys`."""
        return len(self.__pydantic_fields_set__) + sum(map(DeletionIn.keys, self.deletions))

    def values(self) -> list[Deletion]:
        """Return them as values."""
        return [Deletion(token) for token in self.tokens] + [one.value(one.token) for one in self.deletions]


class PeekRequest(Tagged):
    """The tasks to show."""

    states: frozenset[StateName] = Field(frozenset(STATES), strict=False)
    names: list[str] | None = None
    after: Whole = Field(0, description="`next_after` of the page before.")
    limit: int = Field(100, description=f"In [1, {limits.MAX_PEEK_TASKS}].", examples=[100])
    payload_bytes: int = Field(0, ge=0, le=limits.LARGEST_PAYLOAD_BYTES, description="Payloads are cut to this.")

    def wanted(self) -> frozenset[TaskState]:
        """Return the states as values."""
        return frozenset(STATES[name] for name in self.states)


class ObserveRequest(Tagged):
    """The parts of an observation that a supervisor needs."""

    after: Whole = Field(0, description="`samples.cursor` of the observation before.")
    workers: tuple[Annotated[str, Field(max_length=limits.MAX_WORKER_CHARACTERS)], ...] = Field(
        (), max_length=10_000, strict=False
    )
    ahead_seconds: float = Field(0.0, description="In [0, 2592000]: how far ahead upcoming tasks are listed.")


class LookRequest(ObserveRequest):
    """A queue, and the parts of its observation."""

    queue: str

    def value(self) -> ObservationQuery:
        """Return it as a value."""
        return ObservationQuery(self.queue, self.filter(), self.after, self.workers, self.ahead_seconds)


class ObserveManyRequest(RequestBody):
    """The observations that a supervisor of many pools needs at once."""

    looks: list[LookRequest] = Field(max_length=limits.MAX_LOOKS_PER_CALL)


class WaitFor(Tagged):
    """A queue, and a filter by tag."""

    queue: str


class WaitRequest(RequestBody):
    """The queues to wait for."""

    queues: list[WaitFor] = Field(min_length=1, max_length=1000)
    wait_seconds: float = Field(0.0, description="In [0, 300].", examples=[0])


class RateBody(RequestBody):
    """A token bucket."""

    per_second: float = Field(description="Leases a second, on average.", examples=[10])
    burst: int = Field(1, description="Leases at once, at most.")

    def value(self) -> Rate:
        """Return it as a value."""
        return Rate(self.per_second, self.burst)


class TagLimitsBody(RequestBody):
    """The limits of each tag of a queue; untagged tasks have none."""

    max_in_flight: int | None = Field(None, description="Leases of a tag that are held at a time; null: any number.")
    rate: RateBody | None = Field(None, description="Leases granted of a tag; null: any number.")
    fair: bool = Field(default=False, description="Tags take turns; otherwise the oldest task is leased first.")

    def value(self) -> TagLimits:
        """Return them as a value."""
        return TagLimits(self.max_in_flight, None if self.rate is None else self.rate.value(), self.fair)


class QueueBody(RequestBody):
    """The settings of a queue; those left out get their defaults."""

    lease_seconds: float = 60.0
    max_lease_seconds: float = limits.MAX_LEASE_SECONDS
    max_leases: int | None = None
    retry_min_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    on_exhausted: Literal["dead", "delete"] = "dead"
    name_retention_seconds: float = Field(limits.NAME_RETENTION_SECONDS, ge=0, le=10 * 365 * 86_400.0)
    lease_calls_per_second: int | None = Field(None, description="Lease calls granted over Google's APIs; null: any.")
    user_emails: tuple[str, ...] = Field((), description="Users of its tasks over these APIs.", strict=False)
    writer_emails: tuple[str, ...] = Field((), description="Users that may insert tasks over these APIs.", strict=False)
    mode: Literal["pull", "push"] = Field("pull", description="`push`: a push queue of App Engine's, known by name.")
    history_keep: int = Field(10_000, description="Ended leases that its history finds; 0: none.")
    history_seconds: float = Field(86_400.0, description="For how long it finds them.")
    max_in_flight: int | None = Field(None, description="Leases that are held at a time; null: any number.")
    rate: RateBody | None = Field(None, description="Leases granted; null: any number.")
    per_tag: TagLimitsBody = Field(default_factory=TagLimitsBody.model_construct, description="The limits of each tag.")
    max_payload_bytes: int = Field(limits.MAX_PAYLOAD_BYTES, description="Size of a payload, 1 to 64 MiB.")
    max_eta_seconds: float = Field(limits.MAX_ETA_SECONDS, description="How far ahead an eta may be, 30 d to 10 years.")
    label: str = Field("", description="The name that people know it by, where its own is another.")

    def value(self, name: str) -> QueueSpec:
        """Return them as a value."""
        settings = {field: getattr(self, field) for field in QueueBody.model_fields}
        settings["rate"] = None if self.rate is None else self.rate.value()
        settings["per_tag"] = self.per_tag.value()
        return QueueSpec(name, **settings)


class EmptyBody(RequestBody):
    """An empty object."""


def _count_keys(tasks: Sequence[TaskIn]) -> int:
    return sum([len(task.__pydantic_fields_set__) + (len(task.headers) if task.headers else 0) for task in tasks])


def tag_filter(kind: str | None, tags: tuple[str, ...]) -> TagFilter:
    """Return the filter of a request. Raises `InvalidRequestError` for a contradiction."""
    if kind is None:
        return TagFilter("tags", tuple(dict.fromkeys(tags))) if tags else ANY
    if kind in ("any", "untagged"):
        if tags:
            raise InvalidRequestError(f"kind {kind} takes no tags: {len(tags)} given; leave out one of the two")
        return ANY if kind == "any" else UNTAGGED
    if kind == "tags" and not tags:
        raise InvalidRequestError("kind tags needs at least one tag; leave it out for all tasks")
    return TagFilter.oldest(*tags) if kind == "oldest" else TagFilter.of(*tags)


# -- responses ------------------------------------------------------------------------------------------------------


class Response:
    """The form of a response: writes its JSON, and is part of the OpenAPI document."""

    def __init__(self, form: type) -> None:
        self.adapter: TypeAdapter[object] = TypeAdapter(form)
        self.json: Callable[[object], bytes] = partial(self.adapter.serializer.to_json, warnings=False)
        """Returns the body of a response; a warning would be of a whole number where a float may be."""


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
    headers: NotRequired[Annotated[dict[str, str], Field(description="Those of the task; left out: none.")]]
    checkpoint: NotRequired[Annotated[str, Field(description="Base64; left out: no lease before left one.")]]


def lease_out(lease: Lease, token: str) -> LeaseOut:
    """Return a lease as clients get it, with its sealed token."""
    shown: LeaseOut = {
        "queue": lease.queue,
        "name": lease.name,
        "tag": lease.tag,
        "payload": payload_json(lease.payload),
        "token": token,
        "worker": lease.worker,
        "lease_number": lease.lease_number,
        "leased_at": lease.leased_at,
        "expires_at": lease.expires_at,
        "ready_at": lease.ready_at,
        "added_at": lease.added_at,
    }
    if has_rare_fields(lease):
        shown.update(cast("LeaseOut", rare_json(lease)))
    if lease.checkpoint is not None:
        shown["checkpoint"] = payload_json(lease.checkpoint)
    return shown


class Leases(TypedDict):
    """The leased tasks; empty when there were none."""

    leases: list[LeaseOut]


class Exchanged(TypedDict):
    """The leased tasks, and the tokens that were no longer current."""

    leases: list[LeaseOut]
    lost: tuple[str, ...]
    added: NotRequired[
        Annotated[list[Added], Field(description="One outcome per task of `then`, in order; left out: there was none.")]
    ]


class RenewedLeases(TypedDict):
    """Leases and their new ends."""

    renewed: list[Renewed]


class TaskOut(TypedDict):
    """A task and its state."""

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
    headers: NotRequired[Annotated[dict[str, str], Field(description="Left out: none.")]]
    attempts: NotRequired[
        Annotated[list[Attempt], Field(description="Its last leases that ended without its work being done.")]
    ]
    progress: NotRequired[Annotated[Progress, Field(description="The last report of its handler.")]]
    checkpoint_bytes: NotRequired[Annotated[int, Field(description="The size of its checkpoint.")]]
    checkpoint: NotRequired[Annotated[str, Field(description="Base64, whole.")]]
    priority: NotRequired[Annotated[int, Field(description="Left out: 0.")]]


def task_out(task: StoredTask) -> TaskOut:
    """Return a task as clients get it, without its token and its fences."""
    shown: TaskOut = {
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
    if has_rare_fields(task):
        shown.update(cast("TaskOut", rare_json(task)))
    if task.attempts:
        shown["attempts"] = list(task.attempts)
    if task.progress is not None:
        shown["progress"] = task.progress
    if task.checkpoint is not None:
        shown["checkpoint_bytes"] = len(task.checkpoint)
        shown["checkpoint"] = payload_json(task.checkpoint)
    if task.priority:
        shown["priority"] = task.priority
    return shown


class TaskPage(TypedDict):
    """Some tasks in id order, and where the next page begins."""

    tasks: list[TaskOut]
    next_after: int | None


def page_out(page: Page) -> TaskPage:
    """Return a page as clients get it."""
    return {"tasks": [task_out(task) for task in page.tasks], "next_after": page.next_after}


class ObservationsOut(TypedDict):
    """One observation per query, in order; null for a queue that does not exist."""

    observations: list[Observation | None]


class WorkerActivities(TypedDict):
    """Workers that called this server lately, those silent for longest first."""

    workers: list[WorkerActivity]


class BackedUp(TypedDict):
    """A copy of the store that was checked: its file on the server's host, its size and its tasks."""

    file: str
    size_bytes: int
    tasks: int


class Vacuumed(TypedDict):
    """The size of the store's file before its unused pages were returned to the file system, and after."""

    size_bytes_before: int
    size_bytes: int


class ReadyQueue(TypedDict):
    """A queue that has a ready task, or null when the time was up."""

    queue: str | None


class EventsOut(TypedDict):
    """Events after the requested cursor, oldest first."""

    events: list[dict[str, object]]
    cursor: int
    missed: bool


class Health(TypedDict):
    """The health of the server."""

    status: Annotated[
        Literal["ok", "degraded"],
        Field(description="degraded: ready, and slower or larger than it should be; see `reasons`."),
    ]
    run: Annotated[str, Field(description="Another one after each start.")]
    serves: Annotated[NotRequired[str], Field(description="Digests of its store, for clients with a settings file.")]
    reasons: Annotated[NotRequired[list[str]], Field(description="Why it is degraded, each with what ends it.")]


@with_config(ConfigDict(extra="allow"))
class ProblemOut(TypedDict):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
