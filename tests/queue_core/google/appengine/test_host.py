"""`/rpc_http` as bytes: what the API host says over all calls; tickets, shapes, stores that fail."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_core.errors import QueueError, StoreCorruptError, StoreFullError, StoreUnavailableError
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import encode
from queue_core.google.appengine.codes import RpcCode, TaskQueueErrorCode
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.google.appengine_calls import (
    HEADERS,
    NAME,
    NOWHERE,
    a_lease,
    a_modification,
    an_add,
    call,
    code_of,
    post,
    response,
    results,
    rpc_code_of,
)
from tests.support.servers import QUEUE, RunningServer, a_server, request
from tests.support.stores.failing_store import FailingStore


def test_other_services_and_calls_are_not_found(server: RunningServer) -> None:
    for service, method in (("memcache", "Get"), ("logservice", "Flush"), ("taskqueue", "ForceRun"), ("", "")):
        assert rpc_code_of(response(post(server, method, b"", service=service))) == RpcCode.CALL_NOT_FOUND


def test_what_can_not_be_parsed_is_told_so(server: RunningServer) -> None:
    assert rpc_code_of(response(post(server, "Add", b"\xff"))) == RpcCode.PARSE_ERROR
    assert rpc_code_of(response(server.ask("POST", "/rpc_http", b"\xff\xff", headers=HEADERS))) == RpcCode.PARSE_ERROR
    assert rpc_code_of(response(server.ask("POST", "/rpc_http", b"", headers=HEADERS))) == RpcCode.PARSE_ERROR


@pytest.mark.parametrize("name", ["host", "origin"])
def test_a_page_from_elsewhere_is_refused_in_the_hosts_own_shape(server: RunningServer, name: str) -> None:
    headers = [*HEADERS, (name, "http://evil.example" if name == "origin" else "evil.example")]
    reply = post(server, "QueryAndOwnTasks", encode(messages.LEASE_REQUEST, a_lease()), headers=headers)
    assert rpc_code_of(response(reply)) == RpcCode.SECURITY_VIOLATION


def test_the_same_holds_on_the_long_way_round(server: RunningServer) -> None:
    """An `Expect` header takes a request to the ASGI application."""
    results(server, an_add(body=b"x"))
    slow = [*HEADERS, ("expect", "100-continue")]
    call = ProtoRecord(
        service_name="taskqueue", method="QueryAndOwnTasks", request=encode(messages.LEASE_REQUEST, a_lease())
    )
    with server.connect() as connection:
        connection.sendall(request("POST", "/rpc_http", encode(messages.REMOTE_REQUEST, call), headers=slow))
        data = b""
        while b"\x01x" not in data:
            data += connection.recv(65536) or pytest.fail("no answer")
    assert b"HTTP/1.1 200" in data


def test_a_request_over_the_limit_is_read_to_its_end_and_refused() -> None:
    with a_server(options=ServeOptions(max_body_bytes=1 << 20)) as server:
        assert rpc_code_of(response(post(server, "BulkAdd", b"\x00" * (3 << 20)))) == RpcCode.REQUEST_TOO_LARGE
        slow = [*HEADERS, ("upgrade", "other")]
        assert rpc_code_of(response(post(server, "BulkAdd", b"\x00" * (3 << 20), headers=slow))) == 5


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=200),
    method=st.sampled_from(["BulkAdd", "Add", "QueryAndOwnTasks", "Delete", "UpdateQueue"]),
)
def test_whatever_is_sent_the_answer_is_the_hosts_with_200(
    fuzzed_server: RunningServer, body: bytes, method: str
) -> None:
    response(post(fuzzed_server, method, body))
    response(fuzzed_server.ask("POST", "/rpc_http", body, headers=HEADERS))


@pytest.fixture(scope="module")
def fuzzed_server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


# -- tickets ----------------------------------------------------------------------------------------------------------

SECRETS = {role: f"{role.name}-{'s' * 20}" for role in (Role.VIEWER, Role.PRODUCER, Role.WORKER, Role.ADMIN)}
CALLS = {
    "Add": (an_add(), {Role.PRODUCER, Role.WORKER, Role.ADMIN}),
    "QueryAndOwnTasks": (a_lease(), {Role.WORKER, Role.ADMIN}),
    "ModifyTaskLease": (a_modification(ProtoRecord(task_name=b"t"), 1), {Role.WORKER, Role.ADMIN}),
    "Delete": (ProtoRecord(queue_name=NAME), {Role.WORKER, Role.ADMIN}),
    "PurgeQueue": (ProtoRecord(queue_name=NAME), {Role.ADMIN}),
    "FetchQueueStats": (ProtoRecord(queue_name=[NAME]), set(SECRETS)),
    "FetchQueues": (ProtoRecord(max_rows=1), set(SECRETS)),
    "QueryTasks": (ProtoRecord(queue_name=NAME), {Role.VIEWER, Role.WORKER, Role.ADMIN}),
    "PauseQueue": (ProtoRecord(queue_name=NAME, pause=False), {Role.ADMIN}),
    "DeleteQueue": (ProtoRecord(queue_name=NOWHERE), {Role.ADMIN}),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    tokens = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
    with a_server(options=ServeOptions(tokens=tokens)) as running:
        yield running


@pytest.mark.parametrize("method", CALLS)
def test_the_ticket_is_the_secret_and_its_role_decides(guarded: RunningServer, method: str) -> None:
    record, allowed = CALLS[method]
    for role, secret in SECRETS.items():
        denied = code_of(call(guarded, method, record, ticket=secret)) == TaskQueueErrorCode.PERMISSION_DENIED
        assert denied == (role not in allowed), role
    for ticket in ("", "app/service.version.instance", SECRETS[Role.ADMIN][:-1], "ä"):
        assert code_of(call(guarded, method, record, ticket=ticket)) == TaskQueueErrorCode.PERMISSION_DENIED


def test_a_bearer_header_is_no_ticket(guarded: RunningServer) -> None:
    headers = [*HEADERS, ("authorization", f"Bearer {SECRETS[Role.ADMIN]}")]
    assert code_of(response(post(guarded, "Add", encode(messages.ADD_REQUEST, an_add()), headers=headers))) == 9


# -- a store that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(StoreUnavailableError("away"), TaskQueueErrorCode.TRANSIENT_ERROR, id="away"),
        pytest.param(StoreFullError("full"), TaskQueueErrorCode.TRANSIENT_ERROR, id="full"),
        pytest.param(StoreCorruptError("damaged"), TaskQueueErrorCode.INTERNAL_ERROR, id="damaged"),
    ],
)
def test_a_store_that_fails_is_an_error_of_the_service_with_200(failure: QueueError, code: TaskQueueErrorCode) -> None:
    store = FailingStore()
    with a_server(store) as server:
        store.failure = failure
        for method, (record, _) in CALLS.items():
            assert code_of(call(server, method, record)) == code, method
        store.failure = None
        assert results(server, an_add()) == [TaskQueueErrorCode.OK]


def test_a_queue_that_lives_elsewhere_is_unknown_here(server: RunningServer) -> None:
    QueueService(server.store).run(lambda turn: turn.transaction.set_moved(QUEUE, "postgresql://there/"))
    assert results(server, an_add(), an_add(eta_usec=-1)) == [
        TaskQueueErrorCode.UNKNOWN_QUEUE,
        TaskQueueErrorCode.INVALID_ETA,
    ]
    assert code_of(call(server, "QueryAndOwnTasks", a_lease())) == TaskQueueErrorCode.UNKNOWN_QUEUE
    assert replace(QueueSpec(QUEUE), moved_to="x").is_closed


def test_a_refusal_does_not_disturb_the_calls_that_share_its_turn(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    task = ProtoRecord(task_name=b"never", eta_usec=1)
    for method, record in (
        ("ModifyTaskLease", a_modification(task, 1)),
        ("QueryAndOwnTasks", a_lease(max_tasks=0)),
        ("Add", an_add(task_name=b"a b")),
        ("QueryTasks", ProtoRecord(queue_name=NAME, start_task_name=b"never")),
    ):
        assert code_of(call(server, method, record)) != 0
    assert "error" not in capsys.readouterr().out
