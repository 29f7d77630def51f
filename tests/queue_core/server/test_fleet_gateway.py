"""The fleet at a server without a supervisor: read from the one that leads, with the caller's token, or its place."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.registry import SupervisorRegistry
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.client.http.fleet_paths import ORDERS, READS, SUPERVISORS
from queue_core.process.process_start import process_start
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.console import fleet_gateway
from queue_core.unit.supervisors import KIND
from queue_core.verbs.roles import Role
from tests.support.fleet.fleet_views import a_heartbeat
from tests.support.servers import RunningServer, a_server

ADMIN, VIEWER = "a" * 24, "v" * 24
TOKENS = (AccessToken(Role.ADMIN, ADMIN), AccessToken(Role.VIEWER, VIEWER))


class Listener:
    """A program that answers as a supervisor's listener would, and records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.status = 200
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.asked.append((self.path, self.headers.get("authorization")))
                body = b'{"pools": []}'
                self.send_response(listener.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setattr(fleet_gateway, "LOOK_SECONDS", 0.0)
    with a_server(options=ServeOptions(tokens=TOKENS)) as running:
        yield running


def register(server: RunningServer, **facts: str) -> None:
    queues = open_queues(server.url, token=ADMIN)
    own = {"pid": str(os.getpid()), "process_start": process_start(os.getpid())}
    plain = {"host": socket.gethostname(), "phase": "leading", "reach": "host", "version": "1", **own}
    queues.register(KIND, "s", {**plain, **facts}, seconds=60)
    queues.close()


def ask(
    server: RunningServer, path: str, token: str | None = VIEWER, method: str = "GET"
) -> tuple[int, dict[str, object]]:
    headers = [] if token is None else [("authorization", f"Bearer {token}")]
    told = server.ask(method, path, None, headers=headers)
    return told.status, json.loads(told.body)


def test_a_read_is_passed_on_with_the_callers_own_token(server: RunningServer, listener: Listener) -> None:
    register(server, url=listener.url)
    assert ask(server, "/v1/pools/re%20size/stats?a=b%20c") == (200, {"pools": []})
    assert ask(server, "/v1/workers/a/b/log", ADMIN) == (200, {"pools": []})
    assert listener.asked == [
        ("/v1/pools/re%20size/stats?a=b%20c", f"Bearer {VIEWER}"),
        ("/v1/workers/a/b/log", f"Bearer {ADMIN}"),
    ]


def test_nothing_is_passed_on_for_a_caller_whom_this_server_refuses(server: RunningServer, listener: Listener) -> None:
    register(server, url=listener.url)
    assert ask(server, "/v1/fleet", None)[0] == 401
    assert ask(server, "/v1/fleet", "x" * 24)[0] == 401
    assert listener.asked == []


@pytest.mark.parametrize(
    ("facts", "place"),
    [
        pytest.param({"url": "http://192.0.2.7:7777", "reach": "network"}, "at http://192.0.2.7:7777", id="machine"),
        pytest.param({"url": "http://fleet.example:77", "reach": "network"}, "at http://fleet.example:77", id="name"),
        pytest.param({"host": "other", "url": "http://127.0.0.1:1"}, "at http://127.0.0.1:1", id="loopback of another"),
        pytest.param({"url": ""}, "without a listener (supervisor.listen)", id="no listener"),
        pytest.param({"url": "http://me:secret@192.0.2.7:1", "reach": "network"}, "@192.0.2.7:1", id="login"),
    ],
)
def test_no_token_goes_to_another_machine_and_the_answer_says_where_the_supervisor_runs(
    server: RunningServer, facts: dict[str, str], place: str
) -> None:
    register(server, **facts)
    status, problem = ask(server, "/v1/fleet")
    assert (status, problem["type"]) == (404, "urn:towline:problem:supervisor-elsewhere")
    assert str(problem["detail"]).startswith("This server hosts the queues only. The supervisor runs ")
    assert place in str(problem["detail"])
    assert "secret" not in json.dumps(problem)


def test_orders_and_streams_are_the_supervisors_own(server: RunningServer, listener: Listener) -> None:
    register(server, url=listener.url)
    for method, path in (("POST", "/v1/pools/p/pause"), ("GET", "/v1/workers/w/log?follow=true")):
        status, problem = ask(server, path, ADMIN, method)
        assert (status, problem["url"]) == (404, listener.url)
    assert listener.asked == []


def test_a_token_that_the_supervisor_does_not_know_is_named_so(server: RunningServer, listener: Listener) -> None:
    listener.status = 401
    register(server, url=listener.url)
    status, problem = ask(server, "/v1/fleet")
    assert (status, problem["detail"]) == (404, f"The supervisor at {listener.url} does not know this token.")


def test_what_the_supervisor_refuses_is_refused_here(server: RunningServer, listener: Listener) -> None:
    listener.status = 403
    register(server, url=listener.url)
    assert ask(server, "/v1/logs", ADMIN)[0] == 403


def test_a_listener_that_is_gone_is_said_to_be_silent(server: RunningServer, listener: Listener) -> None:
    register(server, url=listener.url)
    listener.close()
    status, problem = ask(server, "/v1/fleet")
    assert (status, problem["type"]) == (503, "urn:towline:problem:supervisor-silent")
    assert f"The supervisor at {listener.url} does not answer" in str(problem["detail"])


@pytest.mark.parametrize("is_reaped", [True, False])
def test_whoever_listens_at_the_port_of_a_supervisor_that_was_killed_gets_no_token(
    server: RunningServer, listener: Listener, *, is_reaped: bool
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = process_start(process.pid)
        register(server, url=listener.url, pid=str(process.pid), process_start=start)
        assert ask(server, "/v1/fleet")[0] == 200
        listener.asked.clear()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if is_reaped:
            process.wait()
        status, problem = ask(server, "/v1/fleet", ADMIN)
    assert (status, problem["type"]) == (503, "urn:towline:problem:supervisor-silent")
    assert "so your token was not sent there" in str(problem["detail"])
    assert listener.asked == []


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"process_start": ""}, id="older program"),
        pytest.param({"process_start": "1"}, id="another process has its id"),
        pytest.param({"pid": "0"}, id="no id"),
    ],
)
def test_a_supervisor_whose_process_is_not_known_gets_no_token(
    server: RunningServer, listener: Listener, facts: dict[str, str]
) -> None:
    register(server, url=listener.url, **facts)
    assert ask(server, "/v1/fleet", ADMIN)[0] == 503
    assert listener.asked == []


def test_a_call_is_passed_on_once(server: RunningServer) -> None:
    register(server, url=server.url)
    status, problem = ask(server, "/v1/fleet")
    assert (status, problem["type"]) == (404, "urn:towline:problem:supervisor-elsewhere")


def test_without_a_supervisor_the_answer_says_so(server: RunningServer) -> None:
    status, problem = ask(server, "/v1/pools")
    assert (status, problem["type"]) == (404, "urn:towline:problem:no-supervisor")
    assert ask(server, SUPERVISORS) == (200, {"supervisors": []})


def test_the_supervisors_are_listed_with_the_one_that_leads(server: RunningServer, listener: Listener) -> None:
    register(server, url=listener.url, pools='["resize"]', since="1700000000.5")
    ((status, answer), keys) = ask(server, SUPERVISORS), {"url", "leads", "is_this", "pools", "since"}
    (row,) = answer["supervisors"]  # type: ignore[misc]
    assert status == 200
    assert {key: row[key] for key in keys} == {
        "url": listener.url,
        "leads": True,
        "is_this": False,
        "pools": ["resize"],
        "since": 1700000000.5,
    }


def test_the_paths_are_those_of_a_supervisor(tmp_path: Path) -> None:
    heartbeat, clock = a_heartbeat()
    files, queues = StateDir(tmp_path), OwnQueues()
    registry = SupervisorRegistry(queues, heartbeat, clock, files, version="1")
    found = fleet_paths(
        heartbeat,
        clock,
        files=files,
        queues=queues,
        registry=registry,
        settings=list,
        file=tmp_path / "towline.yaml",
    )
    endpoints = [route.endpoint for route in found.routes]
    reads = {one.path: one.permission for one in endpoints if one.method == "GET" and one.path != SUPERVISORS}
    assert reads == READS
    assert {one.path for one in endpoints if one.method == "POST"} == set(ORDERS)
