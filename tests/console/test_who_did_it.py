"""Every write of operators and administrators is an event: who, what, how many."""

import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.server.base import events
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.servers import QUEUE, RunningServer, a_server

ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789", "boss@example.com")
HERE = f"/v1/queues/{QUEUE}"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=(ADMIN,), console_writes=True)) as running:
        yield running


WRITES = [
    pytest.param("POST", f"{HERE}/pause", {}, {"action": "pause", "queue": QUEUE}, id="pause"),
    pytest.param("POST", f"{HERE}/resume", {}, {"action": "resume", "queue": QUEUE}, id="resume"),
    pytest.param("POST", f"{HERE}/redrive", {}, {"action": "redrive", "queue": QUEUE, "tasks": 0}, id="redrive"),
    pytest.param("POST", f"{HERE}/delete-by-name", {"names": ["one"]}, {"action": "delete", "tasks": 1}, id="delete"),
    pytest.param("POST", f"{HERE}/purge", {}, {"action": "purge", "queue": QUEUE, "tasks": 1}, id="purge"),
    pytest.param("PUT", "/v1/queues/new", {}, {"action": "create", "queue": "new"}, id="create"),
    pytest.param("PUT", "/v1/queues/new", {"lease_seconds": 9}, {"action": "set", "queue": "new"}, id="set"),
    pytest.param("DELETE", "/v1/queues/new", None, {"action": "delete queue", "tasks": 0}, id="delete queue"),
    pytest.param("PUT", "/v1/storage", {"limit_bytes": None}, {"action": "limit storage"}, id="storage"),
]


@pytest.mark.parametrize(("method", "path", "body", "facts"), WRITES)
def test_a_write_names_its_caller(
    running: RunningServer, method: str, path: str, body: object, facts: dict[str, object]
) -> None:
    queue = running.queue(token=ADMIN.secret)
    queue.purge()
    queue.add([NewTask(b"", name="one" if path.endswith("name") else None)])
    queue.close()
    headers = [("authorization", f"Bearer {ADMIN.secret}"), ("content-type", "application/json")]
    with capture_logs() as logged:
        done = running.ask(method, path, None if body is None else json.dumps(body).encode(), headers=headers)
    assert done.status == 200, done.body
    (entry,) = [one for one in logged if one["event"] == events.QUEUE_CHANGED]
    assert entry["by"] == "boss@example.com"
    assert entry.items() >= facts.items()


def test_what_is_done_in_the_console_is_done_by_whoever_logged_in(running: RunningServer) -> None:
    visitor = Visitor(running.port)
    visitor.post("login", {"token": ADMIN.secret})
    with capture_logs() as logged:
        visitor.post(f"queues/{QUEUE}/pause")
    (entry,) = [one for one in logged if one["event"] == events.QUEUE_CHANGED]
    assert (entry["by"], entry["action"]) == ("boss@example.com", "pause")
    visitor.post(f"queues/{QUEUE}/resume")


def test_a_write_that_is_refused_is_no_event(running: RunningServer) -> None:
    with capture_logs() as logged:
        assert running.ask("POST", f"{HERE}/pause", b"{}").status == 401
    assert [one for one in logged if one["event"] == events.QUEUE_CHANGED] == []
