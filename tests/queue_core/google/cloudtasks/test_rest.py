"""Cloud Tasks over REST as it is on the wire: spellings, parameters, errors in its own shape."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from queue_core.errors import OutcomeUnknownError, StoreFullError, StoreReadOnlyError, StoreUnavailableError
from queue_core.google.cloudtasks.failures import RpcStatus, failure_of
from queue_core.google.cloudtasks.methods import METHODS, CloudTasks
from queue_core.google.cloudtasks.rest import RULES, bind
from queue_core.server.base.options import ServeOptions
from queue_core.server.base.problems import refusal
from queue_core.server.callers.auth import Principal
from queue_core.server.state import ServerState
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.google.cloud_tasks import PARENT, PLACE
from tests.support.google.cloud_tasks_calls import TASKS, call, error_of
from tests.support.servers import QUEUE, RunningServer, a_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(max_body_bytes=4 << 20)) as running:
        yield running


def test_every_method_is_reached_by_a_rule() -> None:
    assert {rule.method for rule in RULES} == METHODS.keys() - {"UploadQueueYaml"}


@pytest.mark.parametrize(
    ("verb", "path", "method"),
    [
        ("GET", f"{PARENT}/tasks/lease", "GetTask"),
        ("POST", f"{PARENT}/tasks:lease", "LeaseTasks"),
        ("POST", f"{PARENT}/tasks/a:buffer", "BufferTask"),
        ("POST", f"{PARENT}/tasks:buffer", "BufferTask"),
        ("GET", "projects/example.com:shop/locations/l/queues/q", "GetQueue"),
        ("GET", "projects/example.com:shop/locations", "ListLocations"),
        ("GET", "projects/p/locations/l/cmekConfig", "GetCmekConfig"),
    ],
)
def test_a_path_leads_to_its_method(verb: str, path: str, method: str) -> None:
    assert bind(verb, path).rule.method == method


BAD = [
    pytest.param("GET", "nothing", None, 404, "NOT_FOUND", "no method at GET", id="no such path"),
    pytest.param("PUT", PARENT, {}, 404, "NOT_FOUND", "use GET or PATCH or DELETE", id="another verb"),
    pytest.param("POST", f"{PARENT}/tasks", b"{", 400, "INVALID_ARGUMENT", "Invalid JSON", id="broken JSON"),
    pytest.param("POST", f"{PARENT}/tasks", b"\xff", 400, "INVALID_ARGUMENT", "Invalid JSON", id="no UTF-8"),
    pytest.param("POST", f"{PARENT}/tasks", b"[]", 400, "INVALID_ARGUMENT", "JSON object", id="a list"),
    pytest.param("POST", f"{PARENT}/tasks", b"[" * 5000, 400, "INVALID_ARGUMENT", "Invalid JSON", id="very deep"),
    pytest.param("POST", f"{PARENT}/tasks", b'{"a":NaN}', 400, "INVALID_ARGUMENT", "Invalid JSON", id="NaN"),
    pytest.param("POST", f"{PARENT}/tasks", {"tsk": {}}, 400, "INVALID_ARGUMENT", '"tsk"', id="an unknown field"),
    pytest.param("POST", f"{PARENT}/tasks", b" " * (5 << 20), 400, "INVALID_ARGUMENT", "1463640", id="too large"),
    pytest.param("GET", f"{PARENT}?colour=red", None, 400, "INVALID_ARGUMENT", '"colour"', id="an unknown parameter"),
    pytest.param("GET", f"{PARENT}?readMask=colour", None, 400, "INVALID_ARGUMENT", "colour", id="a mask of nothing"),
    pytest.param("GET", f"{PARENT}?alt=media", None, 400, "INVALID_ARGUMENT", "alt must be json", id="another format"),
    pytest.param("GET", f"{PARENT}?fields=(", None, 400, "INVALID_ARGUMENT", "fields", id="broken fields"),
    pytest.param("GET", f"{PARENT}/tasks?pageSize=-1", None, 400, "INVALID_ARGUMENT", "page_size", id="a page below 0"),
    pytest.param("GET", f"{PARENT}/tasks?pageSize=x", None, 400, "INVALID_ARGUMENT", "pageSize", id="no page size"),
    pytest.param("GET", f"{PARENT}/tasks?pageToken=x", None, 400, "INVALID_ARGUMENT", "page_token", id="a made-up one"),
    pytest.param("GET", f"{PLACE}/queues/a_b", None, 400, "INVALID_ARGUMENT", "QUEUE_ID", id="a malformed queue"),
    pytest.param("GET", f"{PARENT}/tasks/a.b", None, 400, "INVALID_ARGUMENT", "TASK_ID", id="a malformed task"),
    pytest.param(
        "POST", f"{PARENT}/tasks/a:acknowledge", {}, 400, "INVALID_ARGUMENT", "scheduleTime is required", id="no token"
    ),
    pytest.param(
        "POST",
        f"{PARENT}/tasks/a:acknowledge",
        {"name": f"{PARENT}/tasks/b", "scheduleTime": "2026-01-01T00:00:00Z"},
        400,
        "INVALID_ARGUMENT",
        "must be that of the path",
        id="two names",
    ),
    pytest.param(
        "POST",
        f"{PARENT}/tasks/a:acknowledge",
        {"scheduleTime": "2026-01-01T00:00:00Z"},
        404,
        "NOT_FOUND",
        "no task",
        id="no such task",
    ),
    pytest.param("POST", f"{PARENT}/tasks/a:run", {}, 400, "FAILED_PRECONDITION", "pull task", id="running it"),
    pytest.param("POST", f"{PARENT}/tasks/a:buffer", {}, 400, "FAILED_PRECONDITION", "HTTP target", id="buffering"),
    pytest.param("POST", f"{PARENT}/tasks:batchCreate", {}, 501, "UNIMPLEMENTED", "one by one", id="batchCreate"),
    pytest.param("POST", f"{PARENT}:setIamPolicy", {"policy": {}}, 501, "UNIMPLEMENTED", "acl", id="a policy"),
    pytest.param("GET", f"{PLACE}/cmekConfig", None, 501, "UNIMPLEMENTED", "keys", id="customer keys"),
    pytest.param(
        "PATCH", PARENT, {"retryConfig": {"maxAttempts": 0}}, 400, "INVALID_ARGUMENT", "above 0", id="no attempts"
    ),
    pytest.param("PATCH", PARENT, {"name": f"{PARENT}-2"}, 400, "INVALID_ARGUMENT", "be changed", id="a new name"),
    pytest.param("POST", f"{PLACE}/queues", {"name": "q"}, 400, "INVALID_ARGUMENT", "queue.name", id="a bare name"),
    pytest.param(
        "POST", f"{PLACE}/queues", {"name": PARENT}, 409, "ALREADY_EXISTS", "already exists", id="a queue that is there"
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code", "told"), BAD)
def test_a_refusal_is_in_the_services_own_shape(
    server: RunningServer, method: str, path: str, body: object, status: int, code: str, told: str
) -> None:
    assert error_of(call(server, method, f"/v2beta2/{path}", body))[:2] == (status, code)
    assert told in error_of(call(server, method, f"/v2beta2/{path}", body))[2]


def test_a_body_that_is_no_json_by_its_own_word_is_refused(server: RunningServer) -> None:
    told = error_of(call(server, "POST", TASKS, b"a=b", content_type="application/x-www-form-urlencoded"))
    assert told[:2] == (400, "INVALID_ARGUMENT")
    assert "application/json" in told[2]


@pytest.mark.parametrize("version", ["v2", "v2beta3"])
def test_a_version_without_pull_queues_is_told_which_one_has_them(server: RunningServer, version: str) -> None:
    status, code, told = error_of(call(server, "POST", f"/{version}/{PARENT}/tasks", {"task": {}}))
    assert (status, code) == (501, "UNIMPLEMENTED")
    assert "v2beta2" in told


def test_an_upload_without_a_file_is_refused_and_changes_nothing(server: RunningServer) -> None:
    for body in (b"", b" ", b"\xff"):
        assert error_of(call(server, "POST", "/api/queue/update", body, content_type="text/yaml"))[0] == 400
    assert call(server, "GET", f"/v2beta2/{PARENT}").json()["state"] == "RUNNING"


def test_enums_are_answered_as_names_or_as_numbers(server: RunningServer) -> None:
    shown = [
        call(server, "GET", f"/v2beta2/{PARENT}{query}").json()["state"]
        for query in ("", "?alt=json", "?%24alt=json%3Benum-encoding%3Dint", "?alt=json;enum-encoding=int")
    ]
    assert shown == ["RUNNING", "RUNNING", 1, 1]


def test_parameters_of_the_services_front_end_are_passed_over(server: RunningServer) -> None:
    query = "?key=k&quotaUser=u&access_token=a&callback=c&$.xgafv=1&uploadType=media&prettyPrint=false&$unknown=1"
    assert call(server, "GET", f"/v2beta2/{PARENT}{query}").status == 200


def test_an_answer_is_cut_down_and_laid_out_as_asked(server: RunningServer) -> None:
    reply = call(server, "GET", f"/v2beta2/{PARENT}?fields=name,retryConfig/unlimitedAttempts&prettyPrint=true")
    assert (
        reply.body.decode() == json.dumps({"name": PARENT, "retryConfig": {"unlimitedAttempts": True}}, indent=2) + "\n"
    )


def test_fields_are_taken_in_both_spellings_and_the_place_is_given_back() -> None:
    with a_server() as server:
        path = f"/v2beta2/projects/example.com:x/locations/-/queues/{QUEUE}/tasks"
        task = {"pull_message": {"payload": "-_8", "tag": "a"}, "schedule_time": "2020-01-01T00:00:00.123456789Z"}
        made = call(server, "POST", path, {"task": task, "response_view": 2}).json()
        assert made["name"] == f"{path.removeprefix('/v2beta2/')}/_1"
        assert made["pullMessage"] == {"payload": "+/8=", "tag": "a"}
        lease = {"max_tasks": "1", "lease_duration": "5.999s", "filter": "tag=a"}
        [leased] = call(server, "POST", f"{path}:lease", lease).json()["tasks"]
        assert (leased["view"], leased["pullMessage"]) == ("BASIC", {"tag": "a"})
        listed = call(server, "GET", f"{path}?response_view=FULL&page_size=5").json()
        assert listed["tasks"][0]["pullMessage"]["payload"] == "+/8="


def test_a_task_may_have_a_bound_of_its_own() -> None:
    with a_server() as server:
        task = {"pullMessage": {}, "retryConfig": {"maxAttempts": 1}}
        assert call(server, "POST", TASKS, {"task": task}).status == 200
        lease = {"maxTasks": 1, "leaseDuration": "0s"}
        assert len(call(server, "POST", f"{TASKS}:lease", lease).json()["tasks"]) == 1
        assert call(server, "POST", f"{TASKS}:lease", lease).json() == {}


def test_a_page_goes_on_where_the_last_one_ended() -> None:
    with a_server() as server:
        QueueService(server.store).run(lambda turn: turn.add(QUEUE, [NewTask(b"x")] * 5))
        names, token = [], ""
        while True:
            page = call(server, "GET", f"{TASKS}?pageSize=2&pageToken={token}").json()
            names += [task["name"].rpartition("/")[2] for task in page["tasks"]]
            token = page.get("nextPageToken", "")
            if not token:
                break
        assert names == ["_1", "_2", "_3", "_4", "_5"]
        shown = call(server, "GET", f"/v2beta2/{PLACE}/queues?pageSize=1").json()
        assert "nextPageToken" not in shown


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailableError("away"), RpcStatus.UNAVAILABLE),
        (StoreFullError("full"), RpcStatus.UNAVAILABLE),
        (OutcomeUnknownError("who knows"), RpcStatus.UNAVAILABLE),
        (StoreReadOnlyError("locked"), RpcStatus.INTERNAL),
        (refusal(503, "busy", "busy"), RpcStatus.UNAVAILABLE),
        (refusal(415, "odd", "odd"), RpcStatus.INVALID_ARGUMENT),
    ],
)
def test_a_failure_of_the_store_has_the_code_that_clients_know(error: Exception, code: RpcStatus) -> None:
    assert failure_of(error).code is code


def test_leases_of_a_caller_who_hung_up_meanwhile_are_given_back_uncounted() -> None:
    async def story() -> list[object]:
        core = ServerState(MemoryStore(), ServeOptions())
        await core.committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        await core.committer.run(lambda turn: turn.add(QUEUE, [NewTask(b"x")] * 2))
        wanted: dict[str, object] = {"parent": PARENT, "maxTasks": 2, "leaseDuration": 60_000_000}

        async def lease(*, gone: bool) -> list[object]:
            async def is_gone() -> bool:
                return gone

            answer = await CloudTasks(core).run(METHODS["LeaseTasks"], wanted, Principal(Role.ADMIN), is_gone)
            tasks = answer.get("tasks", [])
            assert isinstance(tasks, list)
            return [task["status"]["attemptDispatchCount"] for task in tasks]

        try:
            return [await lease(gone=True), await lease(gone=False)]
        finally:
            core.close()

    assert asyncio.run(story()) == [[], [1, 1]]


def test_a_purge_takes_no_more_than_was_there_when_it_began() -> None:
    with a_server() as server:
        for _ in range(3):
            QueueService(server.store).run(lambda turn: turn.add(QUEUE, [NewTask(b"x")] * 700))
        assert "purgeTime" in call(server, "POST", f"/v2beta2/{PARENT}:purge", {}).json()
        assert call(server, "GET", TASKS).json() == {}
