"""A key that was used for another call: refused by its session and number, on every store, and never misread."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from queue_core.stores import open_store
from queue_core.task import QueueSpec
from tests.support.servers import RunningServer, a_server
from tests.support.stores.stores import new_url

QUEUE = "work"
OTHERS = [
    pytest.param("add", {"tasks": [{"text": "b"}, {"text": "c"}]}, id="add of more tasks"),
    pytest.param("lease", {"worker": "w"}, id="lease"),
    pytest.param("exchange", {"worker": "w", "deletions": [{"token": "7.1000"}]}, id="exchange"),
    pytest.param("delete", {"tokens": ["7.1000", "8.1000"]}, id="delete"),
    pytest.param("release", {"tokens": ["7.1000", "8.1000"]}, id="release"),
    pytest.param("renew", {"tokens": ["7.1000", "8.1000"], "seconds": 60}, id="renew"),
    pytest.param("pause", {}, id="pause"),
    pytest.param("redrive", {"names": ["a"]}, id="redrive"),
]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    store = None if request.param == "memory" else open_store(new_url(request.param))
    with a_server(store, spec=QueueSpec(QUEUE)) as running:
        yield running


def ask(server: RunningServer, verb: str, body: object, key: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    headers = {"content-type": "application/json", "idempotency-key": key}
    try:
        connection.request("POST", f"/v1/queues/{QUEUE}/{verb}", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(("verb", "body"), OTHERS)
@pytest.mark.parametrize("age", [0, 1], ids=["as a first try", "as a repeat"])
def test_the_key_of_an_add_names_no_other_call(server: RunningServer, verb: str, body: object, age: int) -> None:
    added = ask(server, "add", {"tasks": [{"text": "a"}]}, "session/1/0")
    status, answer = ask(server, verb, body, f"session/1/{age}")
    assert status in (200, 409, 422)  # stores keep the keys of some verbs apart: the call is done as one of its own
    if status == 422:
        assert "call 1 of session session was another one" in answer["detail"]
    assert ask(server, "add", {"tasks": [{"text": "a"}]}, "session/2/0")[0] == 200
    assert added[0] == 200
