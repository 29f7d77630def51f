"""Any request at all on Cloud Tasks' paths: answered in its own shape, and never as a failure of the server."""

import http.client
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_core.google.cloudtasks.messages import MESSAGES, MessageField
from queue_core.google.cloudtasks.methods import METHODS
from queue_core.google.cloudtasks.rest import RULES, RestRoute
from tests.support.google.cloud_tasks import PARENT, PLACE
from tests.support.servers import RunningServer, a_server

ODD = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
TEXTS = st.sampled_from(
    [
        "",
        PARENT,
        f"{PARENT}/tasks/_1",
        f"{PARENT}/tasks/a",
        PLACE,
        "tag=a",
        'tag="',
        "tag_function=oldest_tag()",
        "AA==",
    ]
)
MOMENTS = st.sampled_from(["2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "now"])
SPANS = st.sampled_from(["0s", "1s", "604800s", "604801s", "-1s", "315576000000s", "1.000000001s", "1"])
WHOLE = st.integers(-2, 1002) | st.sampled_from([2**31 - 1, -(2**31), "7", 2**63, 1.0, 0.5])
PATHS = (
    "projects",
    "p",
    "locations",
    "l",
    "queues",
    "work",
    "tasks",
    "a",
    "a:run",
    "tasks:lease",
    "",
    ".",
    "..",
    "%",
    "é",
)


def _value(field: MessageField, depth: int) -> st.SearchStrategy[object]:
    if field.kind == "message":
        likely = _message(field.of, depth + 1) if depth < 4 else st.just({})
    else:
        likely = {
            "text": TEXTS,
            "bytes": TEXTS,
            "timestamp": MOMENTS,
            "duration": SPANS,
            "enum": st.sampled_from(["FULL", "BASIC", "RUNNING", 1, 2, 9]),
            "bool": st.booleans(),
            "mask": st.sampled_from(["", "name", "stats", "retryConfig.maxAttempts", "*", "x", "name,,stats"]),
        }.get(field.kind, WHOLE)
    one = likely | ODD
    return st.lists(one, max_size=3) if field.is_repeated else one


def _message(name: str, depth: int = 0) -> st.SearchStrategy[object]:
    return st.fixed_dictionaries({}, optional={name: _value(field, depth) for name, field in MESSAGES[name].items()})


def _requests(rule: RestRoute) -> st.SearchStrategy[tuple[str, str, object]]:
    path = next(path for path in EXAMPLES if rule.path.fullmatch(path))
    takes = METHODS[rule.method].takes
    body = _message(MESSAGES[takes][rule.body].of or takes) if rule.body not in ("", "*") else _message(takes)
    return st.tuples(st.just(rule.verb), st.just(path), body)


EXAMPLES = (
    PLACE,
    "projects/p/locations",
    f"{PLACE}/cmekConfig",
    f"{PLACE}/queues",
    PARENT,
    f"{PARENT}/tasks",
    f"{PARENT}/tasks/_1",
    *(f"{PARENT}:{verb}" for verb in ("pause", "resume", "purge", "getIamPolicy", "setIamPolicy")),
    f"{PARENT}:testIamPermissions",
    *(f"{PARENT}/tasks:{verb}" for verb in ("lease", "buffer", "batchCreate", "batchDelete")),
    *(f"{PARENT}/tasks/_1:{verb}" for verb in ("acknowledge", "renewLease", "cancelLease", "run")),
)
ANY_PATH = st.lists(st.sampled_from(PATHS), max_size=9).map(lambda parts: quote("/".join(parts), safe="/:%."))
VERBS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
QUERIES = st.sampled_from(
    ["", "?fields=name", "?pageSize=3&responseView=2", "?fields=a(b", "?updateMask=stats", "?readMask=*"]
)
LIKELY = st.one_of([_requests(rule) for rule in RULES])


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    LIKELY | st.tuples(VERBS, ANY_PATH, _message("CreateTaskRequest") | ODD),
    st.sampled_from(
        ["", "?fields=name", "?pageSize=3&responseView=2", "?fields=a(b", "?updateMask=stats", "?readMask=*"]
    ),
)
def test_any_request_is_answered_in_the_services_own_shape(
    server: RunningServer, asked: tuple[str, str, object], query: str
) -> None:
    verb, path, body = asked
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(
            verb, f"/v2beta2/{path}{query}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        reply = connection.getresponse()
        told = json.loads(reply.read())
    finally:
        connection.close()
    assert reply.status in (200, 400, 404, 409, 501), told
    assert isinstance(told, dict)
    if reply.status != 200:
        assert told["error"]["code"] == reply.status
        assert told["error"]["message"]
