"""A key that was used for another call is refused, names itself and changes nothing; an equal repeat gets its answer.

The endpoints are those of the server's own table: a new one is judged here. Every store keeps the fingerprint of a call
with its answer.
"""

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from queue_core.client.http.caller import Session
from queue_core.client.http_calls import HttpQueue
from queue_core.client.local_calls import LocalQueues
from queue_core.errors import KeyReusedError
from queue_core.schedules.schedule import Schedule
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.stores import open_store
from queue_core.task import ANY, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.queue_core.server.test_keys_of_every_call import BODIES, CHANGES, MATCHING, QUEUE
from tests.support.servers import RunningServer, a_server
from tests.support.stores.stores import new_url

STORES: Final = ("memory", "sqlite", "postgresql", "redis")
REUSED: Final = (422, "urn:towline:problem:key-reused")
TOKEN, OTHER_TOKEN = "7.1000", "8.1000"
OTHER_BODIES: Final[Mapping[str, dict[str, object]]] = {
    "add": {"tasks": [{"text": "y"}]},
    "lease": {"worker": "v"},
    "exchange": {"worker": "w", "deletions": [{"token": OTHER_TOKEN}]},
    "renew": {"tokens": [TOKEN], "seconds": 61},
    "delete": {"tokens": [OTHER_TOKEN]},
    "release": {"tokens": [OTHER_TOKEN]},
    "delete_by_name": {"names": ["parcel"]},
    "release_matching": {**MATCHING, "states": ["in_flight"], "worker": "w"},
    "redrive_matching": {**MATCHING, "states": ["dead"], "error": "e"},
    "postpone_matching": {**MATCHING, "eta": 2, "states": ["ready"]},
    "retag_matching": {**MATCHING, "new_tag": "v", "states": ["ready"]},
    "delete_matching": {**MATCHING, "states": ["ready"], "min_leases": 1},
    "purge": {"tags": ["other"]},
    "redrive": {"tags": ["other"]},
    "set_queue": {"lease_seconds": 61},
    "set_storage": {"limit_bytes": 1 << 40},
    "lead": {"name": "n", "holder": "g", "seconds": 1},
    "register_worker": {"name": "v", "facts": {"queue": QUEUE}, "seconds": 60},
    "register": {"name": "m", "facts": {}, "seconds": 60},
    "keep": {"text": "b"},
    "declare_schedules": {"schedules": [], "keep": ["file"]},
    "retire_worker": {"busy": "finish"},
}
"""A body for each endpoint that takes one: of the same kind and size as that of `BODIES`, and of another meaning."""
WITHOUT_A_BODY: Final = frozenset(
    {"pause", "resume", "delete_queue", "release_worker", "run_schedule", "pause_schedule", "resume_schedule"}
)
"""Endpoints whose path says all: another path under the same key is another call."""

NEEDING_LEASES: Final = frozenset({"exchange", "delete"})
NEEDING_TASKS: Final = NEEDING_LEASES | {"lease"}
"""Endpoints of which PostgreSQL keeps no key as long as their calls change nothing."""


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    store = None if request.param == "memory" else open_store(new_url(request.param))
    with a_server(store, spec=QueueSpec(QUEUE)) as running:
        queues = LocalQueues(QueueService(running.store))
        queues.put_queue(QueueSpec("others"))
        queues.schedules.declare([Schedule(name, QUEUE, cron="0 3 * * *") for name in ("nightly", "others")])
        yield running


def ask(
    server: RunningServer,
    method: str,
    path: str,
    body: object,
    key: str,
    *,
    token: str = "",
    names: str = "",
) -> tuple[int, dict[str, Any]]:
    """Make a call; return the status and the answer. `names`: what the path names, instead of the usual."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    places = {"queue": QUEUE, "worker": "w", "schedule": "nightly"}
    filled = path.format(**{at: names or usual for at, usual in places.items()}, kind="supervisors", name="supervisor")
    headers = {"content-type": "application/json", "idempotency-key": key}
    if token:
        headers["authorization"] = f"Bearer {token}"
    try:
        connection.request(method, filled, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def refusal_of(answered: tuple[int, dict[str, Any]]) -> tuple[int, object]:
    return answered[0], answered[1].get("type")


def test_every_endpoint_that_changes_something_is_judged_here() -> None:
    assert {one.name for one in CHANGES} == set(OTHER_BODIES) | WITHOUT_A_BODY


@pytest.mark.parametrize("age", [0, 1], ids=["as a first try", "as a repeat"])
@pytest.mark.parametrize("endpoint", CHANGES, ids=lambda one: str(one.name))
def test_another_call_under_a_key_that_is_used_is_refused_and_changes_nothing(
    server: RunningServer, endpoint: Any, age: int
) -> None:
    method, path = endpoint.method, endpoint.path
    body, other_body = BODIES.get(endpoint.name, {}), OTHER_BODIES.get(endpoint.name, {})
    if endpoint.name in NEEDING_TASKS:
        ask(server, "POST", f"/v1/queues/{QUEUE}/add", {"tasks": [{"text": "x"}] * 4}, "tasks/1/0")
    if endpoint.name in NEEDING_LEASES:
        leased = ask(server, "POST", f"/v1/queues/{QUEUE}/lease", {"worker": "w", "count": 2}, "tasks/2/0")[1]["leases"]
        body = json.loads(json.dumps(body).replace(TOKEN, leased[0]["token"]))
        other_body = json.loads(json.dumps(other_body).replace(OTHER_TOKEN, leased[1]["token"]))
    first = ask(server, method, path, body, "session/1/0")
    names = "others" if endpoint.name in WITHOUT_A_BODY else ""
    other = ask(server, method, path, other_body, f"session/1/{age}", names=names)
    assert refusal_of(other) == REUSED, (first, other)
    assert "Idempotency-Key session/1 " in other[1]["detail"]
    assert ask(server, method, path, body, "session/1/1") == first


def test_a_refused_add_adds_nothing(server: RunningServer) -> None:
    path = f"/v1/queues/{QUEUE}/add"
    first = ask(server, "POST", path, {"tasks": [{"text": "a"}]}, "session/1/0")
    for age in (0, 1):
        assert refusal_of(ask(server, "POST", path, {"tasks": [{"text": "b"}]}, f"session/1/{age}")) == REUSED
    assert ask(server, "POST", path, {"tasks": [{"text": "a"}]}, "session/1/2") == first
    stats = QueueService(server.store).read(lambda work: work.stats(QUEUE, ANY))
    assert stats.ready == 1


def test_a_lease_that_is_sent_again_may_have_less_time_to_wait(server: RunningServer) -> None:
    ask(server, "POST", f"/v1/queues/{QUEUE}/add", BODIES["add"], "tasks/1/0")
    body = {"wait_seconds": 5.0, "worker": "w", "seconds": 600}
    first = ask(server, "POST", f"/v1/queues/{QUEUE}/lease", body, "session/1/0")
    again = ask(server, "POST", f"/v1/queues/{QUEUE}/lease", {**body, "wait_seconds": 0.125}, "session/1/1")
    assert (first[0], [one["token"] for one in again[1]["leases"]]) == (
        200,
        [one["token"] for one in first[1]["leases"]],
    )


def test_a_client_that_repeats_its_session_is_told_which_key_it_was(server: RunningServer) -> None:
    queue = HttpQueue(server.url, QUEUE, session=Session("mine", 7))
    queue.add(b"a")
    with pytest.raises(KeyReusedError, match="Idempotency-Key mine/7 "):
        queue.add(b"b")
    queue.close()


@pytest.mark.parametrize("kind", STORES)
def test_a_key_belongs_to_the_token_that_it_was_used_with(kind: str) -> None:
    """A stranger who knows the key gets neither the answer nor the leases in it, and does nothing under it."""
    tokens = (AccessToken(Role.WORKER, "token-of-ann"), AccessToken(Role.WORKER, "token-of-bob"))
    store = None if kind == "memory" else open_store(new_url(kind))
    with a_server(store, ServeOptions(tokens=tokens), spec=QueueSpec(QUEUE)) as server:
        path = f"/v1/queues/{QUEUE}/"
        ask(server, "POST", f"{path}add", {"tasks": [{"text": "x"}] * 2}, "tasks/1/0", token="token-of-ann")
        leased = ask(server, "POST", f"{path}lease", BODIES["lease"], "session/1/0", token="token-of-ann")
        for age in (0, 1):
            stolen = ask(server, "POST", f"{path}lease", BODIES["lease"], f"session/1/{age}", token="token-of-bob")
            assert refusal_of(stolen) == REUSED
            assert leased[1]["leases"][0]["token"] not in json.dumps(stolen[1])
        again = ask(server, "POST", f"{path}lease", BODIES["lease"], "session/1/1", token="token-of-ann")
        assert [one["name"] for one in again[1]["leases"]] == [one["name"] for one in leased[1]["leases"]]


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "memory"])
def test_a_key_is_known_after_a_restart_and_at_another_server(kind: str) -> None:
    url, path = new_url(kind), f"/v1/queues/{QUEUE}/add"
    with a_server(open_store(url), spec=QueueSpec(QUEUE)) as server:
        first = ask(server, "POST", path, BODIES["add"], "session/1/0")
    with a_server(open_store(url), spec=QueueSpec(QUEUE)) as here, a_server(open_store(url)) as there:
        for server in (here, there):
            assert ask(server, "POST", path, BODIES["add"], "session/1/1") == first
            for age in (0, 1):
                assert refusal_of(ask(server, "POST", path, OTHER_BODIES["add"], f"session/1/{age}")) == REUSED
        stats = QueueService(there.store).read(lambda work: work.stats(QUEUE, ANY))
        assert stats.added_total == 1
