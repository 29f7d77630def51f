"""The table of all endpoints: path, request, response, permission and handler of each."""

from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from queue_core.server import schemas
from queue_core.server.fast_path import MAX_PLAIN_BODY_BYTES
from queue_core.server.leases import reports
from queue_core.server.schemas import response
from queue_core.server.v1 import handlers, schedules, search
from queue_core.server.v1.endpoint import Endpoint, Handler, Parameter
from queue_core.server.v1.verb_endpoints import Served, endpoint_of
from queue_core.unit import queue_verbs, store_verbs
from queue_core.unit.queue_verbs import Peek, ReadStats, ReadTagStats
from queue_core.unit.store_verbs import DeleteQueue, Observe, ReleaseWorker, RetireWorker
from queue_core.unit.verb import Verb

_TAGS = (
    Parameter("tag", {"type": "array", "items": {"type": "string"}}, "Only these tags."),
    Parameter("kind", {"enum": ["any", "tags", "untagged", "oldest"]}, "As in the body of a lease."),
)
_AFTER = Parameter("after", {"type": "integer", "minimum": 0}, "The `cursor` of the previous answer.")
_LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many at most.")
_AFTER_TAG = Parameter("after", {"type": "string", "minLength": 1}, "The last tag of the page before.")
_PREFIX = Parameter("prefix", {"type": "string"}, "Only workers whose names start with this.")
_LIMIT_WORKERS = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 10000}, "How many at most.")
_FOLLOW = Parameter("follow", {"enum": ["true"]}, "Continue for ever, as server-sent events.")

_QUEUE = "/v1/queues/{queue}"


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
    permission = path.rpartition("/")[2]
    return _regular("POST", path, summary, permission, handler, takes)


def _fast(verb: str, summary: str, takes: type[schemas.RequestBody], answers: type) -> Endpoint:
    return Endpoint("POST", f"{_QUEUE}/{verb}", summary, verb, None, takes, response(answers))


_SERVED: Mapping[type[Verb[Any]], Served[Any]] = {
    ReadStats: Served(query=_TAGS),
    ReadTagStats: Served(query=(_AFTER_TAG, _LIMIT)),
    Peek: Served(
        schemas.PeekRequest,
        handlers.read_peek,
        answers=schemas.TaskPage,
        out=lambda _core, _verb, page: schemas.page_out(page),
    ),
    Observe: Served(schemas.ObserveRequest, handlers.read_observe, out=handlers.with_lease_calls),
    DeleteQueue: Served(then=handlers.forget_queue),
    RetireWorker: Served(then=handlers.wake_retired),
    ReleaseWorker: Served(
        reports.ReleaseWorkerRequest,
        lambda call: ReleaseWorker(call.path["worker"], call.read(reports.ReleaseWorkerRequest).value()),
        then=handlers.wake_released,
    ),
}
"""The parts of some verbs' endpoints that only the server knows."""


def _of_verbs(kinds: Iterable[type[Verb[Any]]]) -> list[Endpoint]:
    return [endpoint_of(kind, _SERVED.get(kind, Served())) for kind in kinds]


ENDPOINTS = (
    _fast("add", "Add tasks; durable when answered.", schemas.AddRequest, schemas.AddedTasks),
    _fast("lease", "Lease tasks, waiting for them as long as `wait_seconds` says.", schemas.LeaseBody, schemas.Leases),
    _fast("exchange", "Delete finished tasks and lease the next.", schemas.ExchangeRequest, schemas.Exchanged),
    _fast("renew", "Renew leases.", reports.RenewRequest, schemas.RenewedLeases),
    _fast("delete", "Delete finished tasks, and add follow-up tasks.", schemas.DeleteRequest, schemas.AddedTasks),
    _post(f"{_QUEUE}/release", "Release leases.", handlers.release, reports.ReleaseRequest),
    *_of_verbs(queue_verbs.SERVED),
    *_of_verbs((Peek,)),
    *search.ENDPOINTS,
    *_of_verbs((Observe,)),
    _regular("GET", "/v1/queues", "List all queues with their settings.", "queues", handlers.list_queues),
    _regular(
        "GET", "/v1/stats", "Return counts and totals of all queues, at one instant.", "stats", handlers.all_stats
    ),
    _regular("GET", "/v1/me", "Return the role and the email of the caller's token.", "stats", handlers.me),
    _regular("GET", _QUEUE, "Return a queue's settings.", "queues", handlers.show_queue),
    _regular(
        "PUT", _QUEUE, "Create a queue, or change its settings.", "declare-queue", handlers.set_queue, schemas.QueueBody
    ),
    *_of_verbs(store_verbs.SERVED),
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
    *schedules.ENDPOINTS,
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
