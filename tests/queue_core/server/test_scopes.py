"""Every route of a queue server for every caller: each role, by tokens for its own queue, another queue, all queues.

The tables of routes are the server's own, so a new route is in the matrix as soon as it is served.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

import grpc
import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import decode, encode
from queue_core.google.appengine.endpoint import _ADDS, _REQUESTS
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.google.cloudtasks.grpc_server import _OF_LOCATIONS, _ONLY_REST, SERVICE
from queue_core.google.cloudtasks.methods import METHODS
from queue_core.google.taskqueue.methods import METHODS as TASKQUEUE
from queue_core.schedules.schedule import Schedule
from queue_core.server.app import served_endpoints
from queue_core.server.base.options import AccessToken, GrpcOptions, ServeOptions
from queue_core.server.callers.access import ACCESS_OF_VERB, VERB_OF_ACCESS
from queue_core.server.callers.auth import OF_ALL_QUEUES, REQUIRED_ROLES
from queue_core.server.v1.endpoint import Endpoint
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.servers import RunningServer, a_server, new_caller

OWN, OTHER = "mail-in", "files-in"
SCOPES: Mapping[str, tuple[str, ...] | None] = {"own": ("mail-*",), "other": ("files-*", "x"), "all": None}
ROLES = {str(role.name).lower(): role for role in Role}
STRANGERS = (None, "no-such-token-0123456789")
SCHEDULE = "nightly"
WHOLE_STORE = {"/v1/storage"}
"""Paths that are for tokens of all queues, beside those of `OF_ALL_QUEUES`."""
BODIES = {
    "/v1/observe": {"looks": [{"queue": OWN}]},
    "/v1/wait": {"queues": [{"queue": OWN}]},
    "/v1/storage": {"limit_bytes": 10_000_000},
    "/v1/mailboxes": {"verb": "size", "namespace": "mail", "queue": "q"},
    "/v1/schedules/{schedule}/run": {},
    "/v1/schedules/{schedule}/pause": {},
    "/v1/schedules/{schedule}/resume": {},
}
"""Bodies of calls whose queue is in the body; all others get one that is refused once the caller may make the call."""
OF_A_QUEUE_IN_THE_BODY = set(BODIES) - WHOLE_STORE - {"/v1/mailboxes"}
WRONG = {"no such member": 1}
PLACE = "projects/p/locations/l"


def secret_of(role: Role, scope: str) -> str:
    return f"{str(role.name).lower()}-{scope}-0123456789abcdef"


TOKENS = tuple(
    AccessToken(role, secret_of(role, scope), queues=queues) for role in Role for scope, queues in SCOPES.items()
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = ServeOptions(tokens=TOKENS, grpc=GrpcOptions())
    with a_server(options=options, spec=QueueSpec(OWN)) as running:
        queues = LocalQueues(QueueService(running.store))
        queues.put_queue(QueueSpec(OTHER))
        queues.queue(OWN).add(NewTask(b"a letter", name="letter-1"))
        queues.schedules.declare([Schedule(SCHEDULE, OWN, cron="0 3 * * *")])
        yield running


def ask(server: RunningServer, method: str, path: str, body: object, secret: str | None) -> tuple[int, str]:
    """Make a call; return the status and the text."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=20, source_address=new_caller())
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, data, headers | ({"content-type": "application/json"} if data else {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


def address_of(endpoint: Endpoint) -> str:
    named = {"queue": OWN, "worker": "w", "kind": "supervisors", "schedule": SCHEDULE, "name": "supervisor"}
    return endpoint.path.format(**named)


def body_of(endpoint: Endpoint) -> object:
    return None if endpoint.takes is None else BODIES.get(endpoint.path, WRONG)


def is_refused(endpoint: Endpoint, role: Role, scope: str) -> bool:
    """Return whether a call is refused, as the tables say: by its role, or as its queue is out of scope."""
    assert endpoint.permission is not None
    if not role & REQUIRED_ROLES[endpoint.permission]:
        return True
    if scope != "all" and (endpoint.permission in OF_ALL_QUEUES or endpoint.path in WHOLE_STORE):
        return True
    is_of_queue = "{queue}" in endpoint.path or "{schedule}" in endpoint.path or endpoint.path in OF_A_QUEUE_IN_THE_BODY
    return scope == "other" and (is_of_queue or endpoint.path == "/v1/mailboxes")


GUARDED = [one for one in served_endpoints() if one.permission is not None]


@pytest.mark.parametrize("endpoint", GUARDED, ids=[f"{one.method} {one.path}" for one in GUARDED])
def test_a_native_call_is_for_the_role_and_the_queues_of_its_token(server: RunningServer, endpoint: Endpoint) -> None:
    path, body = address_of(endpoint), body_of(endpoint)
    for stranger in STRANGERS:
        assert ask(server, endpoint.method, path, body, stranger)[0] == 401
    for name, role in ROLES.items():
        for scope in SCOPES:
            if endpoint.method == "DELETE" and not is_refused(endpoint, role, scope):
                continue  # it would end the queue of the matrix; see the test of deletions
            status, text = ask(server, endpoint.method, path, body, secret_of(role, scope))
            if is_refused(endpoint, role, scope):
                hidden = 404 if "{schedule}" in path or SCHEDULE in path else 403
                assert status in (403, hidden), (name, scope, status, text)
            else:
                assert status not in (401, 403), (name, scope, status, text)
            if scope == "other" and OWN not in path:
                assert OWN not in text.replace("mail-in is not one of them", ""), (name, scope, text)


def test_a_queue_is_deleted_by_an_administrator_of_its_scope(server: RunningServer) -> None:
    path = "/v1/queues/mail-spare"
    assert ask(server, "PUT", path, {}, secret_of(Role.ADMIN, "own"))[0] == 200
    assert ask(server, "DELETE", path, None, secret_of(Role.ADMIN, "other"))[0] == 403
    assert ask(server, "DELETE", path, None, secret_of(Role.ADMIN, "own"))[0] == 200


@pytest.mark.parametrize("name", ["mail-in", "mail-that-is-not-there", "files-in", "no-such-queue"])
def test_a_refusal_does_not_tell_whether_a_queue_exists(server: RunningServer, name: str) -> None:
    secret = secret_of(Role.ADMIN, "other" if name.startswith("mail") or name == "no-such-queue" else "own")
    status, text = ask(server, "POST", f"/v1/queues/{name}/peek", {}, secret)
    assert (status, json.loads(text)["detail"].endswith(f"; {name} is not one of them")) == (403, True)


def test_lists_leave_out_what_a_token_is_not_for(server: RunningServer) -> None:
    for scope, names in (("own", {OWN}), ("other", {OTHER}), ("all", {OWN, OTHER})):
        secret = secret_of(Role.VIEWER, scope)
        listed = json.loads(ask(server, "GET", "/v1/queues", None, secret)[1])["queues"]
        counted = json.loads(ask(server, "GET", "/v1/stats", None, secret)[1])["queues"]
        metrics = ask(server, "GET", "/metrics", None, secret)[1]
        schedules = json.loads(ask(server, "GET", "/v1/schedules", None, secret)[1])["schedules"]
        found = {one["queue"] for one in json.loads(ask(server, "GET", "/v1/events", None, secret)[1])["events"]}
        assert {one["name"] for one in listed} >= names
        assert {one["name"] for one in listed} == {one["queue"] for one in counted}
        assert {name for name in (OWN, OTHER) if f'queue="{name}"' in metrics} == names
        assert bool(schedules) == (OWN in names)
        assert found - {OWN, OTHER} | {one for one in found if one in names} == found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/v1/queues/{OTHER}/add", {"tasks": [{"text": "x", "queue": OWN}]}),
        (f"/v1/queues/{OTHER}/delete", {"deletions": [{"token": "1.1", "then": [{"text": "x", "queue": OWN}]}]}),
        (f"/v1/queues/{OTHER}/exchange", {"deletions": [{"token": "1.1", "then": [{"text": "x", "queue": OWN}]}]}),
        ("/v1/wait", {"queues": [{"queue": OTHER}, {"queue": OWN}]}),
    ],
)
def test_a_call_that_reaches_into_another_queue_is_refused_whole(
    server: RunningServer, path: str, body: dict[str, object]
) -> None:
    before = server.store
    count = LocalQueues(QueueService(before)).queue(OWN).stats().added_total
    assert ask(server, "POST", path, body, secret_of(Role.WORKER, "other"))[0] == 403
    assert LocalQueues(QueueService(before)).queue(OWN).stats().added_total == count


def test_a_registration_of_other_queues_is_not_listed(server: RunningServer) -> None:
    registered = {
        "own": {"queues": json.dumps([OWN]), "tags": "[]"},
        "both": {"queues": json.dumps([OWN, OTHER]), "tags": "[]"},
        "other": {"queue": OTHER},
        "odd": {"queues": "5"},
        "of-none": {"pools": "[]"},
    }
    admin = secret_of(Role.ADMIN, "all")
    for name, facts in registered.items():
        body: dict[str, object] = {"name": name, "facts": facts, "seconds": 60.0}
        assert ask(server, "POST", "/v1/registrations/notes", body, admin)[0] == 200
    seen = {}
    for scope in ("own", "other", "all"):
        status, text = ask(server, "GET", "/v1/registrations/notes", None, secret_of(Role.VIEWER, scope))
        assert status == 200
        seen[scope] = {one["name"] for one in json.loads(text)["registrations"]}
    assert seen == {"own": {"own"}, "other": {"other"}, "all": set(registered)}


def test_every_verb_of_a_role_is_of_a_queue_or_of_the_store() -> None:
    of_no_queue = {"mailboxes", "registrations", "register-worker"}
    assert set(REQUIRED_ROLES) == set(ACCESS_OF_VERB) | set(OF_ALL_QUEUES) | of_no_queue


# -- Google's wires ---------------------------------------------------------------------------------------------------

_QUEUE = f"{PLACE}/queues/{OWN}"
REST = {
    "CreateTask": ("POST", f"{_QUEUE}/tasks", {}),
    "LeaseTasks": ("POST", f"{_QUEUE}/tasks:lease", {}),
    "AcknowledgeTask": ("POST", f"{_QUEUE}/tasks/t:acknowledge", {}),
    "RenewLease": ("POST", f"{_QUEUE}/tasks/t:renewLease", {}),
    "CancelLease": ("POST", f"{_QUEUE}/tasks/t:cancelLease", {}),
    "GetTask": ("GET", f"{_QUEUE}/tasks/t", None),
    "ListTasks": ("GET", f"{_QUEUE}/tasks", None),
    "DeleteTask": ("DELETE", f"{_QUEUE}/tasks/t", None),
    "RunTask": ("POST", f"{_QUEUE}/tasks/t:run", {}),
    "BufferTask": ("POST", f"{_QUEUE}/tasks:buffer", {}),
    "BatchCreateTasks": ("POST", f"{_QUEUE}/tasks:batchCreate", {}),
    "BatchDeleteTasks": ("POST", f"{_QUEUE}/tasks:batchDelete", {}),
    "GetQueue": ("GET", _QUEUE, None),
    "ListQueues": ("GET", f"{PLACE}/queues", None),
    "CreateQueue": ("POST", f"{PLACE}/queues", {"name": _QUEUE}),
    "UpdateQueue": ("PATCH", f"{_QUEUE}?updateMask=nothing", {}),
    "DeleteQueue": ("DELETE", f"{_QUEUE}?nothing=1", None),
    "PauseQueue": ("POST", f"{_QUEUE}:pause", {}),
    "ResumeQueue": ("POST", f"{_QUEUE}:resume", {}),
    "PurgeQueue": ("POST", f"{_QUEUE}:purge", {}),
    "UploadQueueYaml": ("POST", "/api/queue/update", {}),
    "GetIamPolicy": ("POST", f"{_QUEUE}:getIamPolicy", {}),
    "SetIamPolicy": ("POST", f"{_QUEUE}:setIamPolicy", {}),
    "TestIamPermissions": ("POST", f"{_QUEUE}:testIamPermissions", {}),
    "GetLocation": ("GET", PLACE, None),
    "ListLocations": ("GET", "projects/p/locations", None),
    "GetCmekConfig": ("GET", f"{PLACE}/cmekConfig", None),
    "UpdateCmekConfig": ("PATCH", f"{PLACE}/cmekConfig", {}),
}
OF_NO_QUEUE = {"ListQueues", "GetLocation", "ListLocations", "GetCmekConfig", "UpdateCmekConfig"}


def is_refused_by_google(method: str, role: Role, scope: str) -> bool:
    if not role & REQUIRED_ROLES[METHODS[method].verb]:
        return True
    return scope != "all" if method == "UploadQueueYaml" else scope == "other" and method not in OF_NO_QUEUE


def test_every_method_of_cloud_tasks_is_in_the_matrix() -> None:
    assert set(REST) == set(METHODS)


@pytest.mark.parametrize("method", REST)
def test_a_call_of_cloud_tasks_is_for_the_role_and_the_queues_of_its_token(server: RunningServer, method: str) -> None:
    verb, path, body = REST[method]
    address = path if path.startswith("/") else f"/v2beta2/{path}"
    for stranger in STRANGERS:
        assert ask(server, verb, address, body, stranger)[0] == 401
    for role in Role:
        for scope in SCOPES:
            if method == "DeleteQueue" and scope == "other":
                address = f"/v2beta2/{_QUEUE}"
            elif method == "DeleteQueue":
                continue
            status, text = ask(server, verb, address, body, secret_of(role, scope))
            assert (status == 403) == is_refused_by_google(method, role, scope), (role, scope, status, text)
            if method == "ListQueues" and scope == "other":
                assert OWN not in text


def _message(field: int, text: bytes) -> bytes:
    return bytes([field << 3 | 2, len(text)]) + text


OVER_GRPC = sorted(METHODS.keys() - _ONLY_REST - _OF_LOCATIONS - {"DeleteQueue"})


def grpc_request(method: str) -> bytes:
    whole = _message(1, PLACE.encode() if method in ("ListQueues", "CreateQueue") else _QUEUE.encode())
    if method == "CreateQueue":
        whole += _message(2, _message(1, _QUEUE.encode()))
    elif method == "UpdateQueue":
        whole = _message(1, _message(1, _QUEUE.encode())) + _message(2, _message(1, b"nothing"))
    elif "Task" in method and method not in ("CreateTask", "LeaseTasks", "ListTasks"):
        whole = _message(1, f"{_QUEUE}/tasks/t".encode())
    return whole


def grpc_codes(server: RunningServer, method: str, secrets: Iterable[str | None]) -> list[grpc.StatusCode]:
    """Make the calls at once: the answers to those that guess on are delayed."""
    address = server.thread.grpc_address
    assert address is not None
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        metadata = [[] if secret is None else [("authorization", f"Bearer {secret}")] for secret in secrets]
        return [
            made.code() for made in [call.future(grpc_request(method), metadata=each, timeout=10) for each in metadata]
        ]


@pytest.mark.parametrize("method", OVER_GRPC)
def test_a_call_over_grpc_is_for_the_role_and_the_queues_of_its_token(server: RunningServer, method: str) -> None:
    callers = [(role, scope) for role in Role for scope in SCOPES]
    codes = grpc_codes(server, method, [secret_of(*caller) for caller in callers])
    for (role, scope), code in zip(callers, codes, strict=True):
        assert (code is grpc.StatusCode.PERMISSION_DENIED) == is_refused_by_google(method, role, scope), (role, scope)


def test_no_call_over_grpc_is_for_strangers(server: RunningServer) -> None:
    with ThreadPoolExecutor(len(OVER_GRPC)) as threads:
        codes = list(threads.map(lambda method: grpc_codes(server, method, STRANGERS), OVER_GRPC))
    assert codes == [[grpc.StatusCode.UNAUTHENTICATED] * len(STRANGERS)] * len(OVER_GRPC)


@pytest.mark.parametrize("key", TASKQUEUE, ids=[" ".join(key) for key in TASKQUEUE])
def test_a_call_of_the_task_queue_api_is_for_the_role_and_the_queues_of_its_token(
    server: RunningServer, key: tuple[str, str]
) -> None:
    tails = {"queue": "", "tasks": "/tasks", "lease": "/tasks/lease?leaseSecs=0&numTasks=1", "task": "/tasks/t"}
    query = "?newLeaseSeconds=1" if key in (("POST", "task"), ("PATCH", "task")) else ""
    path = f"/taskqueue/v1beta2/projects/p/taskqueues/{OWN}{tails[key[1]]}{query}"
    lease = {"kind": "taskqueues#task", "id": "t", "queueName": OWN, "leaseTimestamp": "1", "payloadBase64": ""}
    body = lease if key in (("POST", "tasks"), ("POST", "task"), ("PATCH", "task")) else None
    for stranger in STRANGERS:
        assert ask(server, key[0], path, body, stranger)[0] == 401
    for role in Role:
        for scope in SCOPES:
            needed = REQUIRED_ROLES[VERB_OF_ACCESS[TASKQUEUE[key].access]]  # type: ignore[index]
            status, text = ask(server, key[0], path, body, secret_of(role, scope))
            assert (status == 403) == (not role & needed or scope == "other"), (role, scope, status, text)


APPENGINE = {
    "QueryAndOwnTasks": ("lease", {"queue_name": OWN.encode(), "lease_seconds": 0.0, "max_tasks": 1}),
    "FetchTask": ("peek", {"queue_name": OWN.encode(), "task_name": b"t"}),
    "ModifyTaskLease": (
        "renew",
        {"queue_name": OWN.encode(), "task_name": b"t", "eta_usec": 1, "lease_seconds": 1.0},
    ),
    "PauseQueue": ("pause", {"app_id": b"a", "queue_name": OWN.encode(), "pause": 0}),
    "FetchQueueStats": ("stats", {"queue_name": [OTHER.encode(), OWN.encode()]}),
    "QueryTasks": ("peek", {"queue_name": OWN.encode(), "max_rows": 1}),
    "Delete": ("delete", {"queue_name": OWN.encode(), "task_name": [b"t"]}),
    "PurgeQueue": ("purge", {"queue_name": OWN.encode()}),
}


def rpc(server: RunningServer, method: str, payload: bytes, secret: str) -> int:
    """Call App Engine's service; return the code of its error, 0 for none."""
    request = encode(
        messages.REMOTE_REQUEST,
        {
            "service_name": b"taskqueue",
            "method": method.encode(),
            "request": payload,
            "request_id": secret.encode(),
        },
    )
    reply = server.ask("POST", "/rpc_http", request, headers=[("content-type", "application/octet-stream")])
    error = decode(messages.REMOTE_RESPONSE, reply.body).record("application_error")
    return 0 if error is None else error.integer("code")


@pytest.mark.parametrize("method", APPENGINE)
def test_a_call_of_app_engine_is_for_the_role_and_the_queues_of_its_token(server: RunningServer, method: str) -> None:
    verb, values = APPENGINE[method]
    payload = encode(_REQUESTS[method], values)  # type: ignore[arg-type]
    for role in Role:
        for scope in SCOPES:
            both = method == "FetchQueueStats" and scope == "own"
            is_denied = rpc(server, method, payload, secret_of(role, scope)) == 9
            assert is_denied == (not role & REQUIRED_ROLES[verb] or scope == "other" or both), (role, scope)


@pytest.mark.parametrize("method", _ADDS)
def test_an_add_of_app_engine_is_for_the_queues_of_its_token(server: RunningServer, method: str) -> None:
    one = ProtoRecord(queue_name=OWN.encode(), task_name=b"", eta_usec=0, mode=messages.PULL, body=b"x")
    values = one if method == "Add" else {"add_request": [encode(messages.ADD_REQUEST, one)]}
    table = messages.ADD_REQUEST if method == "Add" else messages.BULK_ADD_REQUEST
    payload = encode(table, values)
    for role in Role:
        for scope in SCOPES:
            is_denied = rpc(server, method, payload, secret_of(role, scope)) == 9
            assert is_denied == (not role & REQUIRED_ROLES["add"] or scope == "other"), (role, scope)
