"""Raw calls of App Engine's task queue service, without Google's client."""

from collections.abc import Mapping, Sequence

from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import decode, encode
from queue_core.google.appengine.schema import MessageTable, ProtoRecord
from tests.support.servers import QUEUE, Reply, RunningServer

NAME = QUEUE.encode()
NOWHERE = b"nowhere"
HEADERS = (("content-type", "application/octet-stream"),)
ANSWERS: Mapping[str, MessageTable] = {
    "Add": messages.ADD_RESPONSE,
    "BulkAdd": messages.BULK_ADD_RESPONSE,
    "QueryAndOwnTasks": messages.LEASE_RESPONSE,
    "ModifyTaskLease": messages.MODIFY_RESPONSE,
    "Delete": messages.DELETE_RESPONSE,
    "FetchQueueStats": messages.STATS_RESPONSE,
    "FetchQueues": messages.QUEUES_RESPONSE,
    "QueryTasks": messages.TASKS_RESPONSE,
    "FetchTask": messages.TASK_RESPONSE,
}
TAKES: Mapping[str, MessageTable] = {
    "Add": messages.ADD_REQUEST,
    "QueryAndOwnTasks": messages.LEASE_REQUEST,
    "ModifyTaskLease": messages.MODIFY_REQUEST,
    "Delete": messages.DELETE_REQUEST,
    "PurgeQueue": messages.QUEUE_REQUEST,
    "FetchQueueStats": messages.STATS_REQUEST,
    "FetchQueues": messages.QUEUES_REQUEST,
    "QueryTasks": messages.TASKS_REQUEST,
    "FetchTask": messages.TASK_REQUEST,
    "PauseQueue": messages.PAUSE_REQUEST,
    "UpdateQueue": messages.UPDATE_QUEUE_REQUEST,
    "DeleteQueue": messages.QUEUE_REQUEST,
}


def post(
    server: RunningServer,
    method: str,
    payload: bytes,
    *,
    service: str = "taskqueue",
    ticket: str = "any",
    headers: Sequence[tuple[str, str]] = HEADERS,
) -> Reply:
    """Return the HTTP reply to a call whose payload is given as bytes."""
    call = ProtoRecord(service_name=service, method=method, request=payload, request_id=ticket)
    return server.ask("POST", "/rpc_http", encode(messages.REMOTE_REQUEST, call), headers=headers)


def response(reply: Reply) -> ProtoRecord:
    """Return the API host's response in a reply; every reply has status 200."""
    assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")
    return decode(messages.REMOTE_RESPONSE, reply.body)


def call(server: RunningServer, method: str, record: ProtoRecord, *, ticket: str = "any") -> ProtoRecord:
    """Return the API host's response to a call."""
    return response(post(server, method, encode(TAKES[method], record), ticket=ticket))


def response_to(server: RunningServer, method: str, record: ProtoRecord, *, ticket: str = "any") -> ProtoRecord:
    """Return the service's response to a call that must succeed."""
    return _answer(method, call(server, method, record, ticket=ticket))


def code_of(answer: ProtoRecord) -> int:
    """Return the application error's code; 0 when there is none."""
    assert "rpc_error" not in answer, answer
    error = answer.record("application_error")
    return 0 if error is None else error.integer("code")


def rpc_code_of(answer: ProtoRecord) -> int | None:
    """Return the API host's own error code."""
    error = answer.record("rpc_error")
    return None if error is None else error.integer("code")


def bulk_add(server: RunningServer, adds: Sequence[ProtoRecord], *, ticket: str = "any") -> ProtoRecord:
    """Return the API host's response to a BulkAdd."""
    requests = [encode(messages.ADD_REQUEST, add) for add in adds]
    return response(
        post(server, "BulkAdd", encode(messages.BULK_ADD_REQUEST, {"add_request": requests}), ticket=ticket)
    )


def results(server: RunningServer, *adds: ProtoRecord) -> list[int]:
    """Return the code of each task of a BulkAdd."""
    answer = _answer("BulkAdd", bulk_add(server, adds))
    return [one.integer("result") for one in answer.all_records("taskresult")]


def an_add(**changed: object) -> ProtoRecord:
    """Return a request for one pull task; a field that is None is left out."""
    fields: dict[str, object] = {
        "queue_name": NAME,
        "task_name": b"",
        "eta_usec": 0,
        "body": b"",
        "mode": messages.PULL,
    }
    return ProtoRecord({name: value for name, value in (fields | changed).items() if value is not None})  # type: ignore[arg-type]


def a_lease(**changed: object) -> ProtoRecord:
    """Return a request for a lease of any task."""
    fields: dict[str, object] = {"queue_name": NAME, "lease_seconds": 60.0, "max_tasks": 100}
    return ProtoRecord(fields | changed)  # type: ignore[arg-type]


def a_modification(task: ProtoRecord, seconds: float, **changed: object) -> ProtoRecord:
    """Return a request that moves the end of a leased task's lease to `seconds` from now."""
    fields: dict[str, object] = {
        "queue_name": NAME,
        "task_name": task.octets("task_name"),
        "eta_usec": task.integer("eta_usec"),
        "lease_seconds": seconds,
    }
    return ProtoRecord(fields | changed)  # type: ignore[arg-type]


def leased(server: RunningServer, **changed: object) -> list[ProtoRecord]:
    """Lease tasks and return them."""
    return response_to(server, "QueryAndOwnTasks", a_lease(**changed)).all_records("task")


def _answer(method: str, answer: ProtoRecord) -> ProtoRecord:
    assert "application_error" not in answer, answer
    assert "rpc_error" not in answer, answer
    return decode(ANSWERS.get(method, messages.NOTHING), answer.octets("response"))
