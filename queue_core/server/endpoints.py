"""The table of all endpoints: path, request, response, permission and handler of each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import get_type_hints

from queue_core.http_api.values import Json
from queue_core.server import handlers, schedules, schemas, search
from queue_core.server.fast_path import MAX_PLAIN_BODY_BYTES
from queue_core.server.handlers import EndpointCall
from queue_core.server.leases import reports
from queue_core.server.schemas import Response, response
from queue_core.server.state import ServerState

Handler = Callable[[ServerState, EndpointCall], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query string."""

    name: str
    schema: Json
    description: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    Args:
        permission: a verb of `auth.REQUIRED_ROLES`, or None for everybody.
        handler: None for the verbs of the fast path, and for `extensions.ReadOnlyRoute`.
        operation: the operation's id, where neither handler nor path names it.
        max_body_bytes: size of a body, where it is no verb of the fast path.
    """

    method: str
    path: str
    summary: str
    permission: str | None
    handler: Handler | None
    takes: type[schemas.RequestBody] | None
    answers: Response
    query: tuple[Parameter, ...] = ()
    operation: str = ""
    max_body_bytes: int = MAX_PLAIN_BODY_BYTES

    @property
    def name(self) -> str:
        """The operation's id: the handler's name, or the verb's."""
        return self.operation or (self.handler.__name__ if self.handler else self.path.rpartition("/")[2])


_TAGS = (
    Parameter("tag", {"type": "array", "items": {"type": "string"}}, "Only these tags."),
    Parameter("kind", {"enum": ["any", "tags", "untagged", "oldest"]}, "As in the body of a lease."),
)
_AFTER = Parameter("after", {"type": "integer", "minimum": 0}, "The `cursor` of the previous answer.")
_LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many at most.")
_AFTER_TAG = Parameter("after", {"type": "string", "minLength": 1}, "The last tag of the page before.")
_PREFIX = Parameter("prefix", {"type": "string"}, "Only workers whose names start with this.")
_LIMIT_WORKERS = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 10000}, "How many at most.")
_FOLLOW = Parameter("follow", {"enum": ["true"]}, "Go on for ever, as server-sent events.")

_QUEUE = "/v1/queues/{queue}"
_WORKER = "/v1/workers/{worker}"
_SCHEDULE = "/v1/schedules/{schedule}"


def _regular(
    method: str,
    path: str,
    summary: str,
    permission: str | None,
    handler: Handler,
    takes: type[schemas.RequestBody] | None = None,
    query: tuple[Parameter, ...] = (),
    max_body_bytes: int = MAX_PLAIN_BODY_BYTES,
) -> Endpoint:
    """Return an endpoint whose response is the return type of its handler."""
    answers = response(get_type_hints(handler)["return"])
    return Endpoint(method, path, summary, permission, handler, takes, answers, query, max_body_bytes=max_body_bytes)


def _post(path: str, summary: str, handler: Handler, takes: type[schemas.RequestBody]) -> Endpoint:
    permission = "workers" if path.startswith(_WORKER) else path.rpartition("/")[2]
    return _regular("POST", path, summary, permission, handler, takes)


def _fast(verb: str, summary: str, takes: type[schemas.RequestBody], answers: type) -> Endpoint:
    return Endpoint("POST", f"{_QUEUE}/{verb}", summary, verb, None, takes, response(answers))


ENDPOINTS = (
    _fast("add", "Add tasks; durable when answered.", schemas.AddRequest, schemas.AddedTasks),
    _fast("lease", "Lease tasks, waiting for them as long as `wait_seconds` says.", schemas.LeaseBody, schemas.Leases),
    _fast("exchange", "Delete finished tasks and lease the next.", schemas.ExchangeRequest, schemas.Exchanged),
    _fast("renew", "Renew leases.", reports.RenewRequest, schemas.RenewedLeases),
    _fast("delete", "Delete finished tasks, and add follow-up tasks.", schemas.DeleteRequest, schemas.AddedTasks),
    _post(f"{_QUEUE}/release", "Release leases.", handlers.release, reports.ReleaseRequest),
    _post(
        f"{_QUEUE}/delete-by-name",
        "Delete tasks by name, leased or not.",
        handlers.delete_by_name,
        schemas.NamesRequest,
    ),
    _post(f"{_QUEUE}/purge", "Delete all tasks, or all dead ones.", handlers.purge, schemas.PurgeRequest),
    _post(f"{_QUEUE}/pause", "Grant no more leases.", handlers.pause, schemas.EmptyBody),
    _post(f"{_QUEUE}/resume", "Grant leases again.", handlers.resume, schemas.EmptyBody),
    _post(f"{_QUEUE}/redrive", "Make dead tasks ready.", handlers.redrive, schemas.RedriveRequest),
    _post(f"{_QUEUE}/peek", "Show tasks.", handlers.peek, schemas.PeekRequest),
    _post(f"{_QUEUE}/search", "Find tasks, by what they went through.", search.search, search.SearchRequest),
    _post(
        f"{_QUEUE}/release-matching",
        "Give back leases of all that match.",
        search.release_matching,
        search.ChangeRequest,
    ),
    _post(f"{_QUEUE}/redrive-matching", "Redrive all that match.", search.redrive_matching, search.ChangeRequest),
    _post(f"{_QUEUE}/postpone-matching", "Postpone all that match.", search.postpone_matching, search.PostponeRequest),
    _post(
        f"{_QUEUE}/retag-matching",
        "Give all that match and are not leased another tag.",
        search.retag_matching,
        search.RetagRequest,
    ),
    _post(f"{_QUEUE}/delete-matching", "Delete all that match.", search.delete_matching, search.ChangeRequest),
    _post(f"{_QUEUE}/history", "Show ended leases.", handlers.history, reports.HistoryRequest),
    _post(
        f"{_QUEUE}/observe",
        "Return what scaling a pool needs: counts, leases, samples, workers.",
        handlers.observe,
        schemas.ObserveRequest,
    ),
    _regular("GET", f"{_QUEUE}/stats", "Return counts and totals of a queue.", "stats", handlers.stats, query=_TAGS),
    _regular(
        "GET", f"{_QUEUE}/tags", "Return counts of each tag.", "stats", handlers.tag_stats, query=(_AFTER_TAG, _LIMIT)
    ),
    _regular("GET", "/v1/queues", "List all queues with their settings.", "queues", handlers.list_queues),
    _regular(
        "GET", "/v1/stats", "Return counts and totals of all queues, at one instant.", "stats", handlers.all_stats
    ),
    _regular("GET", "/v1/me", "Return the role and the email of the caller's token.", "stats", handlers.me),
    _regular("GET", _QUEUE, "Return a queue's settings.", "queues", handlers.show_queue),
    _regular(
        "PUT", _QUEUE, "Create a queue, or change its settings.", "declare-queue", handlers.set_queue, schemas.QueueBody
    ),
    _regular("DELETE", _QUEUE, "Delete a queue and its tasks.", "set-queue", handlers.delete_queue),
    _regular(
        "GET",
        "/v1/storage",
        "Return the limit on all payloads and their size; without a limit they are not counted.",
        "queues",
        handlers.show_storage,
    ),
    _regular(
        "PUT",
        "/v1/storage",
        "Limit the payloads of all tasks together.",
        "set-queue",
        handlers.set_storage,
        schemas.StorageLimit,
    ),
    _post(
        f"{_WORKER}/retire",
        "Fence a worker: it is granted no more leases.",
        handlers.retire_worker,
        schemas.RetireRequest,
    ),
    _post(
        f"{_WORKER}/release",
        "Release all leases of a dead worker.",
        handlers.release_worker,
        reports.ReleaseWorkerRequest,
    ),
    _regular(
        "GET",
        f"{_QUEUE}/workers",
        "List workers that called this server lately.",
        "stats",
        handlers.worker_activity,
        query=(_PREFIX, _LIMIT_WORKERS),
    ),
    _post(
        "/v1/observe",
        "Return what scaling needs, of several queues at once.",
        handlers.observe_many,
        schemas.ObserveManyRequest,
    ),
    _post("/v1/lead", "Take or keep a lead.", handlers.lead, schemas.LeadRequest),
    _regular(
        "POST",
        "/v1/registrations/workers",
        "Keep facts of a worker that no supervisor started.",
        "register-worker",
        handlers.register_worker,
        handlers.RegisterRequest,
    ),
    _regular(
        "GET",
        "/v1/present-workers",
        "List the workers that lease from the queues, supervised or not.",
        "stats",
        handlers.present_workers,
    ),
    _regular(
        "GET",
        "/v1/registrations/{kind}",
        "List registrations of a kind: which supervisors there are.",
        "registrations",
        handlers.registrations,
    ),
    _regular(
        "POST",
        "/v1/registrations/{kind}",
        "Keep facts of a program for a while.",
        "register",
        handlers.register,
        handlers.RegisterRequest,
    ),
    _post("/v1/backup", "Copy an SQLite store beside itself.", handlers.backup, schemas.EmptyBody),
    _post(
        "/v1/vacuum",
        "Return the unused pages of an SQLite store to the file system.",
        handlers.vacuum,
        schemas.EmptyBody,
    ),
    _regular(
        "GET",
        "/v1/schedules",
        "List all schedules, with their next and last ticks.",
        "schedules",
        schedules.list_schedules,
    ),
    _regular(
        "PUT",
        "/v1/schedules",
        "Declare all schedules of a supervisor.",
        "declare-schedules",
        schedules.declare_schedules,
        schedules.DeclareSchedulesRequest,
        max_body_bytes=schedules.MAX_BODY_BYTES,
    ),
    _post("/v1/schedules/add-ticks", "Add the tasks of due ticks.", schedules.add_ticks, schemas.EmptyBody),
    _post(f"{_SCHEDULE}/run", "Add a task of a schedule now.", schedules.run_schedule, schemas.EmptyBody),
    _post(f"{_SCHEDULE}/pause", "Add no more ticks.", schedules.pause_schedule, schemas.EmptyBody),
    _post(f"{_SCHEDULE}/resume", "Add ticks again.", schedules.resume_schedule, schemas.EmptyBody),
    _post("/v1/wait", "Wait until a task is ready.", handlers.wait, schemas.WaitRequest),
    _regular(
        "GET",
        "/v1/events",
        "Return recent lifecycle events, or follow them as a stream.",
        "events",
        handlers.recent_events,
        query=(_AFTER, _LIMIT, _FOLLOW),
    ),
    _regular("GET", "/livez", "Tell whether the process answers.", None, handlers.live),
    _regular("GET", "/readyz", "Tell whether the store takes changes.", None, handlers.ready),
)
