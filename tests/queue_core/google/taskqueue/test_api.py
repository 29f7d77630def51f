"""The Task Queue REST API byte by byte: forms, batches, wrong requests, stores that are away."""

import json
import re
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_core.errors import OutcomeUnknownError, QueueError, StoreFullError, StoreUnavailableError
from queue_core.google.taskqueue import discovery, routes
from queue_core.google.taskqueue.call import TaskqueueRequest
from queue_core.google.taskqueue.responses import TaskqueueError, TaskqueueResponse
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, Reply, RunningServer, a_server
from tests.support.stores.failing_store import FailingStore

QUEUES = "/taskqueue/v1beta2/projects/app/taskqueues"
HERE = f"{QUEUES}/{QUEUE}"
JSON = ("content-type", "application/json")
FORM = ("content-type", "application/x-www-form-urlencoded")
TASK = b'{"payloadBase64":"YQ"}'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


def error_of(reply: Reply) -> tuple[int, str]:
    """The status and the reason, after a look at the whole shape."""
    assert reply.headers["content-type"] == "application/json; charset=UTF-8"
    error = reply.json()["error"]
    assert isinstance(error, dict)
    (item,) = error["errors"]
    assert error["code"] == reply.status
    assert item["message"] == error["message"]
    assert item["message"]
    assert item["domain"] == "global"
    return reply.status, item["reason"]


# -- calls as they come in the wild -----------------------------------------------------------------------------------


def test_a_lease_may_be_asked_for_in_a_form() -> None:
    with a_server() as server:
        for tag in ("a", "b"):
            task = b'{"payloadBase64":"1234","retry_count":1,"tag":"%s"}' % tag.encode()
            assert server.ask("POST", f"{HERE}/tasks", task, headers=[FORM]).status == 200
        form = b"leaseSecs=60&numTasks=1000&groupByTag=true&tag=b"
        for headers in ([FORM], []):
            told = server.ask("POST", f"{HERE}/tasks/lease", form.replace(b"=60", b"=0"), headers=headers).json()
            (leased,) = told["items"]  # type: ignore[misc]
            assert leased["tag"] == "b"
        told = server.ask("POST", f"{HERE}/tasks/lease", b"leaseSecs=60", headers=[FORM])
        assert error_of(told) == (400, "required")


@pytest.mark.parametrize("headers", [[], [JSON], [FORM], [("content-type", "text/plain")]])
def test_a_body_is_read_whatever_it_says_it_is(server: RunningServer, headers: list[tuple[str, str]]) -> None:
    assert server.ask("POST", f"{HERE}/tasks", TASK, headers=headers).status == 200


def test_the_partition_of_a_project_is_passed_over(server: RunningServer) -> None:
    for project in ("app", "s~app", "s%7Eapp", "e~example.com:app"):
        assert server.ask("GET", HERE.replace("app", project, 1)).status == 200


def test_a_post_may_stand_for_a_patch(server: RunningServer) -> None:
    override = ("x-http-method-override", "PATCH")
    told = server.ask("POST", f"{HERE}/tasks/t?newLeaseSeconds=1", b"{}", headers=[JSON, override])
    assert told.json()["error"]["message"] == "queueName is required."  # type: ignore[index]


def test_no_answer_may_be_kept(server: RunningServer) -> None:
    for path in (HERE, f"{QUEUES}/nowhere", discovery.DOCUMENT_PATH):
        assert server.ask("GET", path).headers["cache-control"] == "no-store"


def test_a_deletion_is_answered_without_a_body(server: RunningServer) -> None:
    for name in ("t", "no%20name", "lease"):
        told = server.ask("DELETE", f"{HERE}/tasks/{name}")
        assert (told.status, told.body) == (200, b"")


# -- wrong requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        pytest.param("GET", "/taskqueue/v1beta2/", 404, "notFound", id="nothing"),
        pytest.param("GET", "/taskqueue/v1beta2/projects/app/taskqueues", 404, "notFound", id="no list of queues"),
        pytest.param("GET", f"{HERE}/other", 404, "notFound", id="something else"),
        pytest.param("GET", f"{HERE}/tasks/a/b", 404, "notFound", id="too deep"),
        pytest.param("GET", f"{HERE}/tasks/no%00name", 404, "notFound", id="a name with a zero"),
        pytest.param("GET", f"{QUEUES}/no_name", 400, "invalid", id="a queue's name out of form"),
        pytest.param("GET", f"{QUEUES}/%00", 400, "invalid", id="a queue's name that is a zero"),
        pytest.param("POST", f"{QUEUES}/%00/tasks/lease?numTasks=1&leaseSecs=1", 400, "invalid", id="or to lease from"),
        pytest.param("PUT", HERE, 405, "httpMethodNotAllowed", id="a queue can't be made"),
        pytest.param("DELETE", HERE, 405, "httpMethodNotAllowed", id="or deleted"),
        pytest.param("DELETE", f"{HERE}/tasks", 405, "httpMethodNotAllowed", id="or purged"),
        pytest.param("OPTIONS", f"{HERE}/tasks/t", 405, "httpMethodNotAllowed", id="no other page may ask"),
        pytest.param("GET", "/batch/taskqueue/v1beta2", 405, "httpMethodNotAllowed", id="a batch is posted"),
        pytest.param("POST", discovery.DOCUMENT_PATH, 405, "httpMethodNotAllowed", id="the document is read"),
        pytest.param("POST", "/batch/taskqueue/v1beta2", 400, "invalid", id="a batch of nothing"),
        pytest.param("POST", f"{HERE}/tasks", 400, "parseError", id="an insert of nothing"),
        pytest.param("POST", f"{HERE}/tasks/lease", 400, "required", id="a lease of nothing"),
        pytest.param("GET", f"{HERE}?getStats=perhaps", 400, "invalidParameter", id="a truth value that is none"),
        pytest.param("GET", f"{HERE}?fields=what", 400, "invalidParameter", id="fields that are not there"),
        pytest.param("GET", f"{HERE}?a=%ff", 400, "invalid", id="a query that is no text"),
    ],
)
def test_a_wrong_request_is_told_in_googles_shape(
    server: RunningServer, method: str, path: str, status: int, reason: str
) -> None:
    body = b"" if method in ("POST", "PUT", "PATCH") else None
    assert error_of(server.ask(method, path, body)) == (status, reason)


def test_a_foreign_page_or_name_is_refused_in_googles_shape(server: RunningServer) -> None:
    for path in (HERE, discovery.DOCUMENT_PATH):
        assert error_of(server.ask("GET", path, headers=[("host", "evil.example")])) == (421, "invalid")
        assert error_of(server.ask("GET", path, headers=[("origin", "http://evil.example")])) == (403, "forbidden")


def test_a_body_over_the_servers_limit_is_refused() -> None:
    with a_server(options=ServeOptions(max_body_bytes=100)) as server:
        assert error_of(server.ask("POST", f"{HERE}/tasks", b"x" * 101)) == (413, "uploadTooLarge")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "PATCH", "DELETE"]),
    place=st.sampled_from(["", "/tasks", "/tasks/lease", "/tasks/t"]),
    query=st.dictionaries(
        st.sampled_from(["leaseSecs", "numTasks", "newLeaseSeconds", "groupByTag", "tag", "fields", "getStats"]),
        st.sampled_from(["1", "0", "-1", "true", "x", "", "items", "items(id)", "%00", "%f0%9f%92%a9", "99999999999"]),
        max_size=4,
    ),
    body=st.one_of(
        st.binary(max_size=40),
        st.dictionaries(
            st.sampled_from(["id", "payloadBase64", "tag", "leaseTimestamp", "queueName"]),
            st.one_of(st.none(), st.integers(), st.sampled_from(["", "t", "YQ", QUEUE, "\ud800", "\x00", "1"])),
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_nothing_makes_the_server_fail(
    server: RunningServer, method: str, place: str, query: dict[str, str], body: bytes
) -> None:
    pairs = "&".join(f"{name}={value}" for name, value in query.items())
    told = server.ask(method, f"{HERE}{place}?{pairs}", body)
    assert told.status < 500
    if told.status >= 400:
        error_of(told)


# -- stores that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [StoreUnavailableError("away"), StoreFullError("no room"), OutcomeUnknownError("?")]
)
def test_a_store_that_is_away_is_told_as_unavailable(failure: QueueError) -> None:
    store = FailingStore()
    with a_server(store) as server:
        store.failure = failure
        calls = [(f"{HERE}/tasks", TASK), (f"{HERE}/tasks/lease?leaseSecs=1&numTasks=1", b"")]
        for path, body in calls:
            told = server.ask("POST", path, body)
            assert error_of(told) == (503, "backendError")
            assert told.headers["retry-after"] == "1"
        store.failure = None
        assert server.ask("POST", f"{HERE}/tasks", TASK).status == 200


# -- batches ----------------------------------------------------------------------------------------------------------


def a_part(call: bytes, *, content_id: bytes = b"<base + 1>", kind: bytes = b"application/http") -> bytes:
    return b"--cut\r\nContent-Type: %s\r\nContent-ID: %s\r\n\r\n%s\r\n" % (kind, content_id, call)


def a_batch(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--cut--\r\n"


MIXED = ("content-type", "multipart/mixed; boundary=cut")


def test_a_batch_takes_lines_ended_either_way() -> None:
    with a_server() as server:
        head = f"POST {HERE}/tasks HTTP/1.1"
        unix = f'{head}\nContent-Type: application/json\n\n{{"payloadBase64":"", "id":"unix"}}'.encode()
        dos = f'{head}\r\n\r\n{{"payloadBase64":"", "id":"dos"}}\r\n'.encode()
        told = server.ask("POST", "/batch/taskqueue/v1beta2", a_batch(a_part(unix), a_part(dos)), headers=[MIXED])
        assert told.status == 200
        assert told.body.count(b"HTTP/1.1 200 OK\r\n") == 2
        assert told.body.count(b"Content-ID: <response-base + 1>\r\n") == 2
        boundary = re.fullmatch(r"multipart/mixed; boundary=(\S+)", told.headers["content-type"])
        assert boundary is not None
        assert told.body.rstrip().endswith(f"--{boundary[1]}--".encode())


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param("application/json", b"{}", id="no batch"),
        pytest.param("multipart/mixed", b"", id="no boundary"),
        pytest.param("multipart/mixed; boundary=cut", b"--cut--", id="no calls"),
        pytest.param("multipart/form-data; boundary=cut", a_batch(a_part(b"GET / HTTP/1.1")), id="a form"),
        pytest.param("multipart/mixed; boundary=cut", a_batch(a_part(b"", kind=b"text/plain")), id="no call"),
        pytest.param("multipart/mixed; boundary=cut", a_batch(a_part(b"")), id="an empty call"),
        pytest.param("multipart/mixed; boundary=cut", a_batch(a_part(b"GET /")), id="half a line"),
        pytest.param("multipart/mixed; boundary=cut", a_batch(a_part(b"GET / x HTTP/1.1")), id="a line too many words"),
        pytest.param(
            "multipart/mixed; boundary=cut", a_batch(*[a_part(b"GET / HTTP/1.1")] * 1001), id="more than the bound"
        ),
    ],
)
def test_a_batch_out_of_form_is_refused_as_a_whole(server: RunningServer, content_type: str, body: bytes) -> None:
    told = server.ask("POST", "/batch/taskqueue/v1beta2", body, headers=[("content-type", content_type)])
    assert error_of(told) == (400, "invalid")


def test_a_batch_over_its_own_limit_is_refused_whatever_the_servers(server: RunningServer) -> None:
    body = bytes(routes.MAX_BATCH_BYTES + 1)
    told = server.ask("POST", "/batch/taskqueue/v1beta2", body, headers=[MIXED])
    assert error_of(told) == (413, "uploadTooLarge")


def test_a_batch_leads_nowhere_but_to_this_api(server: RunningServer) -> None:
    for path in ("/v1/queues", "/batch/taskqueue/v1beta2", "/taskqueue/v1beta2/../../v1/queues"):
        call = a_part(f"GET {path} HTTP/1.1\n\n".encode())
        told = server.ask("POST", "/batch/taskqueue/v1beta2", a_batch(call), headers=[MIXED])
        assert b"HTTP/1.1 404 Not Found\r\n" in told.body


def test_a_call_of_a_batch_may_have_a_token_of_its_own() -> None:
    secrets = {"worker": "w" * 16, "viewer": "v" * 16}
    tokens = (AccessToken(Role.WORKER, secrets["worker"]), AccessToken(Role.VIEWER, secrets["viewer"]))
    with a_server(options=ServeOptions(tokens=tokens)) as server:
        head = f"POST {HERE}/tasks HTTP/1.1\n"
        own = a_part(f"{head}Authorization: Bearer {secrets['worker']}\n\n{TASK.decode()}".encode())
        shared = a_part(f"{head}Host: evil.example\nOrigin: http://evil.example\n\n{TASK.decode()}".encode())
        bearer = ("authorization", f"Bearer {secrets['viewer']}")
        told = server.ask("POST", "/batch/taskqueue/v1beta2", a_batch(own, shared), headers=[MIXED, bearer])
        assert re.findall(rb"HTTP/1\.1 (\d+)", told.body) == [b"200", b"403"]
        assert server.ask("POST", "/batch/taskqueue/v1beta2", a_batch(own, shared), headers=[MIXED]).status == 401


def test_a_batch_from_a_foreign_page_is_refused(server: RunningServer) -> None:
    call = a_part(f"POST {HERE}/tasks HTTP/1.1\n\n{TASK.decode()}".encode())
    headers = [MIXED, ("origin", "http://evil.example")]
    told = server.ask("POST", "/batch/taskqueue/v1beta2", a_batch(call), headers=headers)
    assert b" 200 " not in told.body


@given(st.binary(max_size=300))
def test_any_bytes_are_a_batch_or_refused(body: bytes) -> None:
    for content in (body, a_part(body), a_batch(a_part(body))):
        request = TaskqueueRequest("POST", "/", b"", [(b"content-type", b"multipart/mixed; boundary=cut")], content)
        try:
            for content_id, call in routes.split(request):
                assert "\n" not in content_id
                assert isinstance(call, TaskqueueRequest)
        except TaskqueueError as error:
            assert error.status == 400


@given(st.text(max_size=60))
def test_a_content_id_can_not_break_out_of_its_line(name: str) -> None:
    head = f"Content-Type: application/http\r\nContent-ID: {name}\r\n\r\nGET / HTTP/1.1\r\n".encode("utf-8", "replace")
    body = b"--cut\r\n" + head + b"--cut--"
    request = TaskqueueRequest("POST", "/", b"", [(b"content-type", b"multipart/mixed; boundary=cut")], body)
    try:
        calls = routes.split(request)
    except TaskqueueError:
        return
    joined = routes.join([(content_id, TaskqueueResponse(204)) for content_id, _ in calls], boundary="b").body
    assert joined.count(b"\r\n\r\n") == 2 * len(calls)


@pytest.mark.parametrize("status", [200, 204, 400, 401, 403, 404, 405, 413, 421, 500, 503])
def test_every_status_has_a_phrase(status: int) -> None:
    assert HTTPStatus(status).phrase.encode() in routes.join([("", TaskqueueResponse(status))], boundary="b").body


# -- discovery --------------------------------------------------------------------------------------------------------


def test_the_document_leads_back_to_where_it_was_found(server: RunningServer) -> None:
    told = server.ask("GET", discovery.DOCUMENT_PATH, headers=[("host", "localhost:81")]).json()
    assert told["rootUrl"] == "http://localhost:81/"
    assert told["baseUrl"] == "http://localhost:81/taskqueue/v1beta2/projects/"


def test_the_directory_lists_the_document(server: RunningServer) -> None:
    (item,) = server.ask("GET", discovery.DIRECTORY_PATH, headers=[("host", "localhost:81")]).json()["items"]  # type: ignore[misc]
    assert item["discoveryRestUrl"] == f"http://localhost:81{discovery.DOCUMENT_PATH}"


def test_everything_the_document_refers_to_is_in_it() -> None:
    document = discovery.document("http://localhost/")
    references = set(re.findall(r'"\$ref": "(\w+)"', json.dumps(document)))
    assert references == set(document["schemas"])  # type: ignore[call-overload]
    for resource in document["resources"].values():  # type: ignore[attr-defined]
        for method in resource["methods"].values():
            in_path = re.findall(r"{(\w+)}", method["path"])
            assert in_path == [name for name in method["parameterOrder"] if name in in_path]
            assert {name for name, one in method["parameters"].items() if one.get("required")} == set(
                method["parameterOrder"]
            )
