"""Every path of the API in one table: what it takes, what it answers, who may call it, and what it does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel, TypeAdapter

from queue_core.http_api.values import Json
from queue_core.server import answers, handlers, wire
from queue_core.server.core import ServerCore
from queue_core.server.handlers import Call
from queue_core.stats import QueueStats
from queue_core.store import Storage
from queue_core.task import QueueSpec

Handler = Callable[[ServerCore, Call], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A member of the query string."""

    name: str
    schema: Json
    description: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    Args:
        permission: a verb of `auth.NEEDED`, or None for everybody.
        handler: None for the verbs that `hot` serves, and for what is served beside the queues (`also`).
        operation: its id, where neither handler nor path names it.
    """

    method: str
    path: str
    summary: str
    permission: str | None
    handler: Handler | None
    takes: type[wire.Wire] | None
    answers: type[BaseModel] | TypeAdapter[QueueStats] | TypeAdapter[QueueSpec] | TypeAdapter[Storage]
    query: tuple[Parameter, ...] = ()
    operation: str = ""

    @property
    def name(self) -> str:
        """The operation's id: the handler's name, or the verb's."""
        return self.operation or (self.handler.__name__ if self.handler else self.path.rpartition("/")[2])


_TAGS = (
    Parameter("tag", {"type": "array", "items": {"type": "string"}}, "Only these tags."),
    Parameter("kind", {"enum": ["any", "tags", "untagged", "oldest"]}, "As in the body of a lease."),
)
_AFTER = Parameter("after", {"type": "integer", "minimum": 0}, "The `cursor` of the answer before.")
_LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many at most.")
_AFTER_TAG = Parameter("after", {"type": "string", "minLength": 1}, "The last tag of the page before.")
_PREFIX = Parameter("prefix", {"type": "string"}, "Only those whose names begin so.")
_LIMIT_WORKERS = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 10000}, "How many at most.")
_FOLLOW = Parameter("follow", {"enum": ["true"]}, "Go on for ever, as server-sent events.")

_QUEUE = "/v1/queues/{queue}"
_WORKER = "/v1/workers/{worker}"


def _post(path: str, summary: str, handler: Handler, takes: type[wire.Wire], answer: type[BaseModel]) -> Endpoint:
    verb = path.rpartition("/")[2]
    permission = "workers" if path.startswith(_WORKER) else verb
    return Endpoint("POST", path, summary, permission, handler, takes, answer)


def _hot(verb: str, summary: str, takes: type[wire.Wire], answer: type[BaseModel]) -> Endpoint:
    return Endpoint("POST", f"{_QUEUE}/{verb}", summary, verb, None, takes, answer)


ENDPOINTS = (
    _hot("add", "Add tasks; durable when answered.", wire.AddRequest, answers.AddedTasks),
    _hot("lease", "Lease tasks, waiting for them if asked to.", wire.LeaseRequest, answers.Leases),
    _hot("exchange", "Delete finished tasks and lease the next.", wire.ExchangeRequest, answers.Exchanged),
    _hot("renew", "Move the ends of leases.", wire.RenewRequest, answers.RenewedLeases),
    _hot("delete", "Delete finished tasks, and add what follows from them.", wire.DeleteRequest, answers.AddedTasks),
    _post(f"{_QUEUE}/release", "Give leases back.", handlers.release, wire.ReleaseRequest, answers.ReleasedLeases),
    _post(
        f"{_QUEUE}/delete-by-name",
        "Delete tasks whoever holds them.",
        handlers.delete_by_name,
        wire.NamesRequest,
        answers.NameOutcomes,
    ),
    _post(f"{_QUEUE}/purge", "Delete all tasks, or all dead ones.", handlers.purge, wire.PurgeRequest, answers.Count),
    _post(f"{_QUEUE}/pause", "Grant no more leases.", handlers.pause, wire.Nothing, answers.Done),
    _post(f"{_QUEUE}/resume", "Grant leases again.", handlers.resume, wire.Nothing, answers.Done),
    _post(f"{_QUEUE}/redrive", "Make dead tasks ready.", handlers.redrive, wire.RedriveRequest, answers.Count),
    _post(f"{_QUEUE}/peek", "Look at tasks.", handlers.peek, wire.PeekRequest, answers.TaskPage),
    _post(f"{_QUEUE}/observe", "All for scaling.", handlers.observe, wire.ObserveRequest, answers.ObservationOut),
    Endpoint("GET", f"{_QUEUE}/stats", "Counts and totals.", "stats", handlers.stats, None, answers.STATS, _TAGS),
    Endpoint(
        "GET",
        f"{_QUEUE}/tags",
        "Counts per tag.",
        "stats",
        handlers.tag_stats,
        None,
        answers.TagCounts,
        (_AFTER_TAG, _LIMIT),
    ),
    Endpoint("GET", "/v1/queues", "All queues.", "queues", handlers.list_queues, None, answers.QueueListReply),
    Endpoint("GET", _QUEUE, "A queue's settings.", "queues", handlers.show_queue, None, answers.SPEC),
    Endpoint("PUT", _QUEUE, "Create or set.", "set-queue", handlers.set_queue, wire.QueueSettings, answers.Created),
    Endpoint("DELETE", _QUEUE, "Drop it and its tasks.", "set-queue", handlers.delete_queue, None, answers.Count),
    Endpoint(
        "GET",
        "/v1/storage",
        "The limit of all payloads, and what they come to; without a limit nothing is counted.",
        "queues",
        handlers.show_storage,
        None,
        answers.STORAGE,
    ),
    Endpoint(
        "PUT", "/v1/storage", "Limit all payloads.", "set-queue", handlers.set_storage, wire.StorageLimit, answers.Done
    ),
    _post(f"{_WORKER}/retire", "Fence a worker.", handlers.retire_worker, wire.RetireRequest, answers.Retired),
    _post(
        f"{_WORKER}/release",
        "Give back all that a dead worker holds.",
        handlers.release_worker,
        wire.Nothing,
        answers.ReleasedLeases,
    ),
    Endpoint(
        "GET",
        f"{_QUEUE}/workers",
        "Workers that this server has heard of lately.",
        "stats",
        handlers.heard_workers,
        None,
        answers.HeardWorkers,
        (_PREFIX, _LIMIT_WORKERS),
    ),
    Endpoint(
        "POST",
        "/v1/observe",
        "All for scaling several queues.",
        "observe",
        handlers.observe_many,
        wire.ObserveManyRequest,
        answers.ObservationsOut,
    ),
    _post("/v1/lead", "Take or keep a lead.", handlers.lead, wire.LeadRequest, answers.Held),
    _post("/v1/backup", "Copy an SQLite store beside itself.", handlers.backup, wire.Nothing, answers.BackedUp),
    _post("/v1/wait", "Sleep until there is work.", handlers.wait, wire.WaitRequest, answers.ReadyQueue),
    Endpoint(
        "GET",
        "/v1/events",
        "Recent lifecycle events.",
        "events",
        handlers.recent_events,
        None,
        answers.EventsOut,
        (_AFTER, _LIMIT, _FOLLOW),
    ),
    Endpoint("GET", "/livez", "Whether the process answers.", None, handlers.live, None, answers.Health),
    Endpoint("GET", "/readyz", "Whether the store takes changes.", None, handlers.ready, None, answers.Health),
)
