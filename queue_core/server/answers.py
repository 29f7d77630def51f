"""What answers look like, for the OpenAPI document: `http_api.values` writes them, a test holds the two together."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from queue_core.server.wire import StateName
from queue_core.stats import FinishedLease, LiveLease, QueueStats, WaitingTask
from queue_core.store import Added, Renewed, Storage
from queue_core.task import QueueSpec


class Answer(BaseModel):
    """A response body."""

    model_config = ConfigDict(extra="forbid")


class AddedTasks(Answer):
    """One outcome per task, in order."""

    added: list[Added]


class LeaseOut(Answer):
    """A lease with its payload."""

    queue: str
    name: str
    tag: str | None
    payload: str = Field(description="Base64.")
    token: str
    worker: str
    lease_number: int
    leased_at: int
    expires_at: int
    ready_at: int
    added_at: int


class Leases(Answer):
    """What was leased; nothing when there was nothing."""

    leases: list[LeaseOut]


class Exchanged(Leases):
    """What was leased, and the tokens that were no longer current."""

    lost: list[str]


class RenewedLeases(Answer):
    """Leases and their new ends."""

    renewed: list[Renewed]


class ReleasedLeases(Answer):
    """What was given back."""

    released: list[FinishedLease]


class NameOutcomes(Answer):
    """One outcome per name, in order."""

    outcomes: list[Literal["deleted", "unknown", "tombstoned"]]


class Count(Answer):
    """How many."""

    count: int


class Done(Answer):
    """It is so."""


class TaskOut(Answer):
    """A task as it stands."""

    id: int
    name: str
    named: bool
    queue: str
    tag: str | None
    payload: str = Field(description="Base64, cut to `payload_bytes`.")
    state: StateName
    eta: int
    added_at: int
    ready_at: int
    leases: int
    leased_at: int
    worker: str
    reason: str
    max_leases: int | None = Field(description="The task's own bound; null: its queue's.")


class TaskPage(Answer):
    """Some tasks in id order, and where the next page begins."""

    tasks: list[TaskOut]
    next_after: int | None


class QueueListReply(Answer):
    """All queues by name."""

    queues: list[QueueSpec]


class Created(Answer):
    """Whether the queue is new."""

    created: bool


class TagCount(Answer):
    """The counts of one tag; null is untagged."""

    tag: str | None
    stats: QueueStats


class TagCounts(Answer):
    """Counts per tag."""

    tags: list[TagCount]


class SamplesOut(Answer):
    """Finished leases after the cursor that was asked for."""

    finished: list[FinishedLease]
    cursor: int
    missed: bool


class HeardWorkerOut(Answer):
    """A worker that asked for leases: how long ago it was last heard of, 0 while it asks."""

    worker: str
    silent_seconds: float
    waits: bool
    hung_up: bool


class ObservationOut(Answer):
    """What a scaling decision needs."""

    now: int
    stats: QueueStats
    waiting: list[WaitingTask]
    samples: SamplesOut
    live: list[LiveLease]
    seen: dict[str, int]
    heard: list[HeardWorkerOut] | None
    upcoming: list[WaitingTask]


class ObservationsOut(Answer):
    """One for each look, in their order; null for a queue that does not exist."""

    observations: list[ObservationOut | None]


class HeardWorkers(Answer):
    """Workers that this server has heard of lately, those silent for longest first."""

    workers: list[HeardWorkerOut]


class Retired(Answer):
    """False when the worker holds a lease."""

    retired: bool


class Held(Answer):
    """Whether the lead is yours."""

    held: bool


class BackedUp(Answer):
    """A copy of the store that was checked: its file on the server's host, its size and its tasks."""

    file: str
    size_bytes: int
    tasks: int


class ReadyQueue(Answer):
    """A queue that has work, or null when the time was up."""

    queue: str | None


class EventsOut(Answer):
    """Events after the cursor that was asked for, oldest first."""

    events: list[dict[str, object]]
    cursor: int
    missed: bool


class Health(Answer):
    """How the server is."""

    status: Literal["ok"]
    run: str = Field(description="Another one after each start.")


class ProblemOut(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


STATS = TypeAdapter(QueueStats)
SPEC = TypeAdapter(QueueSpec)
STORAGE = TypeAdapter(Storage)
