"""Every endpoint that changes something honours an `Idempotency-Key`, and every client method sends one (ADR 46).

The endpoints are those of the servers' own tables, the methods those of the clients: a new one is judged here.
"""

import inspect
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.schedules import Schedules
from queue_core.errors import QueueError
from queue_core.schedules.schedule import Schedule
from queue_core.server.app import served_endpoints
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion
from queue_core.verbs.criteria import Search
from tests.support.reference.http_api import fleet_endpoints
from tests.support.servers import RunningServer, a_server

QUEUE = "work"
TOKEN = "7.1000"
READS: Final = frozenset({"peek", "search", "history", "observe", "observe_many", "wait", "what_if"})
"""Endpoints that are no GET and change nothing."""
OF_A_SUPERVISOR = "a supervisor's orders are sent once: whoever gives one up learns that its outcome is not known"
WITHOUT_A_KEY: Final[Mapping[str, str]] = {
    "backup": "sent once; one that comes late makes one more copy, under a name of its own",
    "vacuum": "sent once; one that comes late gives back pages that are unused then",
    "add_ticks": "each tick's task has a name, and whoever comes adds what is due then",
    "mailboxes": "sent once: whoever gives a call up learns that its outcome is not known",
    **{one.name: OF_A_SUPERVISOR for one in fleet_endpoints() if one.method != "GET" and one.name not in READS},
}
"""Endpoints that change something and take no key, each with the reason why a late repeat does no harm."""
MATCHING = {"tags": ["t"], "dry_run": False}
BODIES: Final[Mapping[str, dict[str, object]]] = {
    "add": {"tasks": [{"text": "x"}]},
    "lease": {"worker": "w"},
    "exchange": {"worker": "w", "deletions": [{"token": TOKEN}]},
    "renew": {"tokens": [TOKEN], "seconds": 60},
    "delete": {"tokens": [TOKEN]},
    "release": {"tokens": [TOKEN]},
    "delete_by_name": {"names": ["letter"]},
    "release_matching": {**MATCHING, "states": ["in_flight"]},
    "redrive_matching": {**MATCHING, "states": ["dead"]},
    "postpone_matching": {**MATCHING, "eta": 1, "states": ["ready"]},
    "retag_matching": {**MATCHING, "new_tag": "u", "states": ["ready"]},
    "delete_matching": {**MATCHING, "states": ["ready"]},
    "set_queue": {"lease_seconds": 60},
    "set_storage": {"limit_bytes": None},
    "lead": {"name": "n", "holder": "h", "seconds": 1},
    "register_worker": {"name": "w", "facts": {"queue": QUEUE}, "seconds": 60},
    "register": {"name": "n", "facts": {}, "seconds": 60},
    "keep": {"text": "a"},
    "declare_schedules": {"schedules": []},
}
"""Bodies that each change something, or would; of others, `{}`."""
CHANGES = [
    one for one in served_endpoints() if one.method != "GET" and one.name not in READS and one.name not in WITHOUT_A_KEY
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    store = SqliteStore(tmp_path / "q.db")
    with a_server(store, spec=QueueSpec(QUEUE)) as running:
        LocalQueues(QueueService(running.store)).schedules.declare([Schedule("nightly", QUEUE, cron="0 3 * * *")])
        yield running


def ask(server: RunningServer, method: str, path: str, body: object, key: str) -> tuple[int, dict[str, Any]]:
    """Make a call; return the status and the answer."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    filled = path.format(queue=QUEUE, worker="w", schedule="nightly", kind="supervisors", name="supervisor")
    try:
        headers = {"content-type": "application/json", "idempotency-key": key}
        connection.request(method, filled, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_all_that_changes_something_without_a_key_is_served_and_has_its_reason() -> None:
    served = {one.name for one in (*served_endpoints(), *fleet_endpoints()) if one.method != "GET"}
    assert set(WITHOUT_A_KEY) | READS <= served


@pytest.mark.parametrize("endpoint", CHANGES, ids=lambda one: str(one.name))
def test_a_changing_call_whose_key_is_wrong_is_refused(server: RunningServer, endpoint: Any) -> None:
    status, answer = ask(server, endpoint.method, endpoint.path, BODIES.get(endpoint.name, {}), "no key")
    assert (status, "session/number/age" in str(answer["detail"])) == (422, True)


@pytest.mark.parametrize("endpoint", CHANGES, ids=lambda one: str(one.name))
def test_a_changing_call_that_comes_again_is_answered_as_before(server: RunningServer, endpoint: Any) -> None:
    session, body = endpoint.name.replace("_", "-"), BODIES.get(endpoint.name, {})
    first, again = [ask(server, endpoint.method, endpoint.path, body, f"{session}/1/{age}") for age in (0, 1)]
    assert again == first
    assert first[0] in (200, 409), first


# -- clients ----------------------------------------------------------------------------------------------------------

SENT: list[tuple[str, str, bool]] = []


class _Recorder(BaseHTTPRequestHandler):
    """Notes method, path, and whether there is a key; refuses all."""

    protocol_version = "HTTP/1.1"

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        SENT.append((self.command, self.path, "idempotency-key" in self.headers))
        self.send_response(422)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = do_PUT = do_DELETE = _refuse  # noqa: N815 - the names that the standard library asks for

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def a_recorder() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Recorder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SEARCH = Search(ANY)
READING: Final = frozenset(
    {"stats", "tag_stats", "peek", "search", "history", "queues", "storage", "degradations", "kept", "list"}
) | frozenset({"observe", "observe_many", "worker_activity", "present_workers", "registrations", "wait_ready"})
"""Client methods that only read."""
SENT_WITHOUT: Final[Mapping[str, str]] = {"add_ticks": WITHOUT_A_KEY["add_ticks"]}
NO_CALLS: Final = frozenset({"name", "close", "queue", "queue_for", "schedules"})
"""Members that send nothing."""
CALLS: Final[Mapping[str, Callable[[Any], object]]] = {
    "add": lambda to: to.add(b"x"),
    "lease": lambda to: to.lease(),
    "exchange": lambda to: to.exchange([Deletion(TOKEN)]),
    "renew": lambda to: to.renew([TOKEN], seconds=60),
    "release": lambda to: to.release([TOKEN]),
    "delete": lambda to: to.delete([TOKEN]),
    "delete_by_name": lambda to: to.delete_by_name("letter"),
    "purge": lambda to: to.purge(),
    "pause": lambda to: to.pause("nightly") if isinstance(to, Schedules) else to.pause(),
    "resume": lambda to: to.resume("nightly") if isinstance(to, Schedules) else to.resume(),
    "redrive": lambda to: to.redrive(),
    "change_matching": lambda to: to.change_matching("delete", SEARCH, dry_run=False),
    "put_queue": lambda to: to.put_queue(QueueSpec(QUEUE)),
    "delete_queue": lambda to: to.delete_queue(QUEUE),
    "set_storage_limit": lambda to: to.set_storage_limit(None),
    "retire_worker": lambda to: to.retire_worker("w"),
    "release_worker": lambda to: to.release_worker("w"),
    "lead": lambda to: to.lead("n", "h", seconds=1),
    "keep": lambda to: to.keep("supervisor", "a"),
    "register": lambda to: to.register("workers", "n", {}, seconds=1),
    "declare": lambda to: to.declare([]),
    "add_ticks": lambda to: to.add_ticks(),
    "run": lambda to: to.run("nightly"),
}


def members(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]


KNOWN = [(kind, name) for kind in (HttpQueue, HttpQueues, Schedules) for name in members(kind)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [one for one in KNOWN if one[1] not in READING | NO_CALLS],
    ids=lambda one: one if isinstance(one, str) else str(one.__name__),
)
def test_a_client_sends_a_key_with_each_change(kind: type, name: str) -> None:
    with a_recorder() as url:
        queues = HttpQueues(url, retries=Retries(tries=1))
        to = {HttpQueue: queues.queue(QUEUE), HttpQueues: queues, Schedules: queues.schedules}[kind]
        SENT.clear()
        with suppress(QueueError):
            CALLS[name](to)
        queues.close()
    assert [(method != "GET", has_key) for method, _, has_key in SENT] == [(True, name not in SENT_WITHOUT)]


def test_calls_that_are_repeated_without_a_key_are_known() -> None:
    """Each place in the sources that sends a call again without a key: it reads, or is named above.

    A verb that is a value has a key unless its `is_keyed` says otherwise.
    """
    root = Path(inspect.getfile(HttpQueue)).parents[2]
    found = {
        f"{path.relative_to(root)}: {line.strip()}"
        for package in ("queue_core", "orchestrator")
        for path in (root / package).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if 'repeat="safe"' in line and "GET" not in line
    }
    places = sorted((place.partition(":")[0], place.count("POST") + place.count(".post(")) for place in found)
    assert places == [
        ("queue_core/celery/transport/mailbox_access.py", 1),  # wait for a message
        ("queue_core/client/http_calls.py", 1),  # wait
    ], found
