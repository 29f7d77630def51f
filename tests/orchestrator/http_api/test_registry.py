"""Supervisors of one store find each other: registered while they live, by any of them, with the one that leads."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.registry import SupervisorRegistry, address_of, all_listed
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.view import Phase
from queue_core.client.connect import open_queues
from queue_core.clock import Instant
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.unit.supervisors import KIND, LASTING_SECONDS
from queue_core.verbs.registration import Registration
from tests.support.eventually import eventually
from tests.support.fleet.fleet_views import a_heartbeat, a_view

Json = dict[str, object]


class RegisteredSupervisor:
    """The API of a supervisor beside a queue server."""

    def __init__(self, folder: Path, queue_url: str, *, phase: Phase) -> None:
        self.files = StateDir(folder)
        self.heartbeat, clock = a_heartbeat(a_view(phase=phase))
        queues = self.queues = OwnQueues()
        queues.locate(queue_url, token=None)
        self.registry = SupervisorRegistry(queues, self.heartbeat, clock, self.files, version="1.2")
        paths = fleet_paths(self.heartbeat, clock, files=self.files, queues=queues, registry=self.registry)
        self.listener = FleetListener(ServeOptions(port=0), paths)
        self.listener.start()
        self.registry.start(self.listener.url, self.listener.options)

    def ask(self, method: str, path: str) -> Json:
        connection = HTTPConnection(self.listener.url.removeprefix("http://"), timeout=10)
        body = None if method == "GET" else "{}"
        connection.request(method, path, body, {"content-type": "application/json"})
        found = json.loads(connection.getresponse().read())
        connection.close()
        return cast("Json", found)

    def listed(self) -> list[Json]:
        return cast("list[Json]", self.ask("GET", "/v1/supervisors")["supervisors"])

    def stop(self) -> None:
        self.registry.stop()
        self.listener.stop()
        self.queues.close()


@pytest.fixture
def server() -> Iterator[ServerThread]:
    server = ServerThread(MemoryStore(), ServeOptions(port=0))
    server.start()
    yield server
    server.stop()


def test_each_lists_all_and_says_which_one_leads(tmp_path: Path, server: ServerThread) -> None:
    first = RegisteredSupervisor(tmp_path / "a", server.url, phase="leading")
    second = RegisteredSupervisor(tmp_path / "b", server.url, phase="standby")
    try:
        eventually(lambda: len(second.listed()) == 2)
        found = second.listed()
        by_url = {one["url"]: one for one in found}
        assert by_url[first.listener.url]["leads"] is True
        assert by_url[second.listener.url]["is_this"] is True
        assert {one["version"] for one in found} == {"1.2"}
        told = str(second.ask("POST", "/v1/pools/resize/pause")["detail"])
        assert f"give the order to the one that leads: {first.listener.url}" in told
        name = by_url[first.listener.url]["name"]
        told = str(second.ask("POST", f"/v1/hosts/{name}/drain")["detail"])
        assert told.endswith(f"call {first.listener.url}")
        first.stop()
        assert [one["url"] for one in second.listed()] == [second.listener.url]
        assert second.ask("POST", "/v1/pools/resize/pause")["pool"] == "resize", "nobody leads: it keeps the order"
    finally:
        second.stop()
    queues = open_queues(server.url)
    assert queues.registrations(KIND) == []
    queues.close()


def test_a_change_of_phase_is_registered_at_once_and_all_else_at_an_interval(
    tmp_path: Path, server: ServerThread
) -> None:
    queues = OwnQueues()
    queues.locate(server.url, token=None)
    heartbeat, clock = a_heartbeat(a_view(phase="standby"))
    registry = SupervisorRegistry(queues, heartbeat, clock, StateDir(tmp_path), version="1")

    def known() -> tuple[str, Instant]:
        with queues.opened() as opened:
            (one,) = opened.registrations(KIND)
        return one.facts["phase"], one.until

    registry.register()
    phase, until = known()
    registry.register()
    assert known() == (phase, until) == ("standby", until)
    heartbeat.show(a_view(phase="leading"))
    registry.register()
    assert known()[0] == "leading"
    before = known()[1]
    clock.advance(LASTING_SECONDS / 2)
    registry.register()
    assert known()[1] > before
    queues.close()


def test_a_store_that_does_not_answer_is_told_once(tmp_path: Path) -> None:
    queues = OwnQueues()
    queues.locate("http://127.0.0.1:1", token=None)
    heartbeat, clock = a_heartbeat()
    registry = SupervisorRegistry(queues, heartbeat, clock, StateDir(tmp_path), version="1")
    with capture_logs() as logged:
        for _ in range(3):
            registry.register()
            clock.advance(LASTING_SECONDS)
    assert [one["event"] for one in logged].count(events.SUPERVISOR_NOT_REGISTERED) == 1
    assert registry.elsewhere() == ()
    queues.close()


@pytest.mark.parametrize(
    ("options", "url", "address"),
    [
        pytest.param(None, "", ("", "host"), id="no listener"),
        pytest.param(ServeOptions(), "http://127.0.0.1:1", ("http://127.0.0.1:1", "host"), id="loopback"),
        pytest.param(
            ServeOptions(host="10.0.0.7"), "http://10.0.0.7:1", ("http://10.0.0.7:1", "network"), id="address"
        ),
        pytest.param(ServeOptions(host="0.0.0.0"), "http://127.0.0.1:1", ("http://here:1", "network"), id="everywhere"),
        pytest.param(ServeOptions(socket_path=Path("/s")), "unix:///s", ("unix:///s", "host"), id="socket"),
    ],
)
def test_an_address_is_the_one_that_others_call(
    monkeypatch: pytest.MonkeyPatch, options: ServeOptions | None, url: str, address: tuple[str, str]
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    assert address_of(url, options) == address


def test_of_two_that_say_that_they_lead_the_newest_does() -> None:
    killed = Registration("a", {"phase": "leading"}, Instant(60_000_000))
    leads = Registration("b", {"phase": "leading"}, Instant(75_000_000))
    third = Registration("c", {"phase": "standby"}, Instant(90_000_000))
    found = all_listed([killed, leads, third], this="c")
    assert [(one.name, one.leads, one.heard_at) for one in found] == [
        ("a", False, 0.0),
        ("b", True, 15.0),
        ("c", False, 30.0),
    ]


def test_what_another_program_registered_is_read_leniently() -> None:
    facts = {"pid": "many", "phase": "\x1b[1m", "pools": "{", "since": "soon"}
    (found,) = all_listed([Registration("x", facts, Instant(1))], this="")
    assert (found.pid, found.url, found.leads, found.pools, found.since) == (0, "", False, [], 0.0)


def test_a_supervisor_registers_its_pools_and_since_when_it_runs(tmp_path: Path, server: ServerThread) -> None:
    queues = OwnQueues()
    queues.locate(server.url, token=None)
    heartbeat, clock = a_heartbeat(a_view(phase="leading"))
    registry = SupervisorRegistry(queues, heartbeat, clock, StateDir(tmp_path), version="1")
    registry.register()
    (found,) = registry.listed().supervisors
    assert (found.pools, found.since) == (list(heartbeat.view.pools), pytest.approx(clock.wall_seconds()))
    assert found.pools
    queues.close()
