"""No number in a request makes a server fail, at once or later, whoever gives it, on whatever store."""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby

import pytest
from _pytest.mark import ParameterSet

from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import decode
from queue_core.google.appengine.schema import END, FIXED64, GROUP, LENGTH, VARINT, MessageTable, ProtoField, varint
from queue_core.google.cloudtasks.messages import MESSAGES
from queue_core.google.cloudtasks.methods import METHODS
from queue_core.google.cloudtasks.rest import RULES
from queue_core.google.taskqueue import discovery
from queue_core.server.app import openapi_json
from tests.support.google.appengine_calls import TAKES, post
from tests.support.google.cloud_tasks import PARENT, PLACE
from tests.support.numbers import MARK, NUMBERS, NumberPlace, number_places
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores.stores import STORES, opened

NAMES = {"queue": QUEUE, "worker": "w", "kind": "supervisors", "schedule": "s"}
NATIVE = tuple(number_places(json.loads(openapi_json()), NAMES))
ROUNDS = count()


@pytest.fixture(params=STORES, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with opened(request.param, tmp_path_factory.mktemp("store")) as store, a_server(store) as running:
        yield running
        assert store.check().problems == ()


def _ok(server: RunningServer, method: str, path: str, **body: object) -> dict[str, object]:
    reply = server.ask(method, path, json.dumps(body).encode() if method != "GET" else None)
    assert reply.status == 200, (path, reply.body)
    return reply.json() if path != "/metrics" else {}


def assert_all_works(server: RunningServer) -> None:
    """Make each kind of call once, of a queue of its own."""
    name = f"story-{next(ROUNDS)}"
    queue = f"/v1/queues/{name}"
    _ok(server, "PUT", "/v1/storage", limit_bytes=None)
    _ok(server, "PUT", queue)
    assert _ok(server, "POST", f"{queue}/add", tasks=[{"text": "x", "tag": "t"}, {"text": "y"}])
    leases = _ok(server, "POST", f"{queue}/lease", worker="story", wait_seconds=1)["leases"]
    assert isinstance(leases, list)
    tokens = [leases[0]["token"]]
    _ok(server, "POST", f"{queue}/renew", tokens=tokens)
    _ok(server, "POST", f"{queue}/release", tokens=tokens)
    leases = _ok(server, "POST", f"{queue}/exchange", worker="story")["leases"]
    assert isinstance(leases, list)
    _ok(server, "POST", f"{queue}/delete", tokens=[leases[0]["token"]])
    for of in (queue, f"/v1/queues/{QUEUE}"):
        for path in ("", "/stats", "/tags", "/workers"):
            _ok(server, "GET", f"{of}{path}")
        for verb in ("peek", "search", "history", "observe"):
            _ok(server, "POST", f"{of}/{verb}")
    for path in ("queues", "stats", "storage", "schedules", "registrations/supervisors", "events"):
        _ok(server, "GET", f"/v1/{path}")
    _ok(server, "GET", "/metrics")
    _ok(server, "POST", "/v1/schedules/add-ticks")
    for space in ("", "other"):
        mailbox = {"namespace": space, "queue": name, "exchange": name}
        for verb in ("declare", "exchange", "bind", "publish", "put", "size", "purge", "delete"):
            _ok(server, "POST", "/v1/mailboxes", verb=verb, **mailbox)
    _ok(server, "DELETE", queue)


def by_operation(places: Iterable[NumberPlace]) -> list[ParameterSet]:
    """Return a test's parameters: the places of each operation."""
    of = groupby(places, key=lambda place: place.name.partition(" ")[0])
    return [pytest.param(tuple(group), id=name) for name, group in of]


def assert_no_number_fails(server: RunningServer, places: Sequence[NumberPlace], *forms: str) -> None:
    """Give each place each number, as it is and in the given forms; all works afterwards."""
    for place in places:
        for number in NUMBERS:
            for form in ("{}", *forms):
                written = form.format(number)
                reply = server.ask(place.method, place.path_with(written.strip('"')), place.bytes_with(written))
                assert reply.status < 500, (place.name, written[:30], reply.body)
    assert_all_works(server)


@pytest.mark.parametrize("places", by_operation(NATIVE))
def test_no_number_of_an_endpoint_makes_a_call_fail(server: RunningServer, places: Sequence[NumberPlace]) -> None:
    assert_no_number_fails(server, places)


def test_the_generated_requests_reach_every_number() -> None:
    names = {place.name for place in NATIVE}
    assert {"add tasks.[]delay_seconds", "lease wait_seconds", "set_queue rate.per_second"} <= names
    assert {"mailboxes expires_seconds", "recent_events limit", "observe_many looks.[]after"} <= names
    assert len(names) > 60


def test_a_number_is_accepted_where_it_is_right(server: RunningServer) -> None:
    """The generated requests are right but for their numbers: else nothing would be tested."""
    for place in NATIVE:
        reply = server.ask(place.method, place.path_with("1"), place.bytes_with("1"))
        assert reply.status in (200, 404, 409) or "errors" not in reply.json(), (place.name, reply.body)


# -- Google's interfaces --------------------------------------------------------------------------------------------


CLOUD_PATHS = (
    f"{PLACE}/queues",
    PARENT,
    f"{PARENT}/tasks",
    f"{PARENT}/tasks/_1",
    *(f"{PARENT}/tasks:{verb}" for verb in ("lease", "buffer", "batchCreate", "batchDelete")),
    *(f"{PARENT}/tasks/_1:{verb}" for verb in ("acknowledge", "renewLease", "cancelLease", "run")),
)
CLOUD_KINDS = ("int32", "int64", "double", "enum", "timestamp", "duration")


def _cloud_places(message: str, seen: tuple[str, ...] = ()) -> Iterator[tuple[str, Mapping[str, object]]]:
    for name, field in MESSAGES[message].items():
        values: list[tuple[str, object]] = []
        if field.kind in CLOUD_KINDS:
            values = [(name, MARK)]
        elif field.kind == "message" and field.of not in seen:
            values = [(f"{name}.{inner}", value) for inner, value in _cloud_places(field.of, (*seen, field.of))]
        for path, value in values:
            yield path, {name: [value] if field.is_repeated else value}


def _whole(method: str, value: Mapping[str, object]) -> Mapping[str, object]:
    """Return a request with what it can't do without."""
    match method:
        case "CreateQueue":
            return {"name": f"{PLACE}/queues/made", **value}
        case "UpdateQueue":
            return {"name": PARENT, **value}
        case "CreateTask" if isinstance(task := value.get("task"), dict):
            return {**value, "task": {"pullMessage": {}, **task}}
    return value


def cloud_places() -> Iterator[NumberPlace]:
    for rule in RULES:
        path = next((one for one in CLOUD_PATHS if rule.path.fullmatch(one)), None)
        if path is None:
            continue
        takes = METHODS[rule.method].takes
        message = MESSAGES[takes][rule.body].of or takes if rule.body not in ("", "*") else takes
        for name, value in _cloud_places(message):
            at = f"/v2beta2/{path}"
            if rule.body:
                yield NumberPlace(f"{rule.method} {name}", rule.verb, at, json.dumps(_whole(rule.method, value)))
            elif "." not in name:
                yield NumberPlace(f"{rule.method} {name}", rule.verb, f"{at}?{name}=%40number%40", None)


@pytest.mark.parametrize("places", by_operation(cloud_places()))
def test_no_number_of_cloud_tasks_makes_a_call_fail(server: RunningServer, places: Sequence[NumberPlace]) -> None:
    assert_no_number_fails(server, places, '"{}"', '"{}s"')


def rest_places() -> Iterator[NumberPlace]:
    methods = [one for of in discovery.document("")["resources"].values() for one in of["methods"].values()]  # type: ignore[attr-defined]
    for method in methods:
        path = "/" + discovery.SERVICE_PATH + method["path"]
        for name, value in (("project", "app"), ("taskqueue", QUEUE), ("task", "_1")):
            path = path.replace(f"{{{name}}}", value)
        numbers = [name for name, of in method["parameters"].items() if of["type"] == "integer"]
        body = json.dumps({"queueName": QUEUE, "payloadBase64": ""}) if "request" in method else None
        for name in numbers:
            others = "".join(f"&{other}=1" for other in numbers if other != name)
            at = f"{path}?{name}=%40number%40{others}"
            yield NumberPlace(f"{method['id']} {name}", method["httpMethod"], at, body)
        if body:
            for name in ("leaseTimestamp", "enqueueTimestamp", "retry_count"):
                given = json.dumps({"queueName": QUEUE, "payloadBase64": "", name: MARK})
                at = f"{path}?newLeaseSeconds=1" if numbers else path
                yield NumberPlace(f"{method['id']} {name}", method["httpMethod"], at, given)


@pytest.mark.parametrize("places", by_operation(rest_places()))
def test_no_number_of_the_rest_api_makes_a_call_fail(server: RunningServer, places: Sequence[NumberPlace]) -> None:
    assert_no_number_fails(server, places, '"{}"')


WHOLE = (0, -1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
REALS = tuple(map(float, ("0", "-1", "1e305", "-1e305", "nan", "inf", "-inf", "9223372036854775808", "1e-320")))
EXAMPLE_BYTES = {"queue_name": QUEUE.encode(), "app_id": b"app", "task_name": b"n-1", "body": b"x", "payload": b"x"}
"""What a field of bytes has where it is required."""


def _wire(number: int, wire: int, value: bytes) -> bytes:
    return varint(number << 3 | wire) + (varint(len(value)) + value if wire == LENGTH else value)


def _nested(field: ProtoField, inner: bytes) -> bytes:
    if field.wire == GROUP:
        return varint(field.number << 3 | GROUP) + inner + varint(field.number << 3 | END)
    return _wire(field.number, LENGTH, inner)


def _example(table: MessageTable, leave: str = "") -> bytes:
    made = b""
    for field in table.fields:
        if not field.is_required or field.name == leave:
            continue
        if field.message is not None:
            made += _nested(field, _example(field.message))
        elif field.wire == VARINT:
            made += _wire(field.number, VARINT, varint(min(field.values, default=1)))
        elif field.wire == FIXED64:
            made += _wire(field.number, FIXED64, bytes(8))
        else:
            made += _wire(field.number, LENGTH, EXAMPLE_BYTES.get(field.name, b"n-1"))
    return made


def _messages(table: MessageTable) -> Iterator[bytes]:
    """Yield a message for each number of the table, and each value in its place."""
    for field in table.fields:
        rest = _example(table, field.name)
        if field.message is not None:
            for inner in _messages(field.message):
                yield rest + _nested(field, inner)
        elif field.wire == VARINT:
            yield from (rest + _wire(field.number, VARINT, varint(one % (1 << 64))) for one in WHOLE)
        elif field.wire == FIXED64:
            yield from (rest + _wire(field.number, FIXED64, struct.pack("<d", one)) for one in REALS)


@pytest.mark.parametrize("method", TAKES)
def test_no_number_of_app_engine_makes_a_call_fail(server: RunningServer, method: str) -> None:
    for payload in _messages(TAKES[method]):
        answer = decode(messages.REMOTE_RESPONSE, post(server, method, payload).body)
        assert not {"exception", "java_exception"} & set(answer), (payload, answer)
    assert_all_works(server)
