"""A supervisor that was killed is registered for a while: no command sends a token to its address."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.cli.store_leader import leader_at
from orchestrator.cli.supervisor_hosts import url_on
from queue_core.cli.failure import CommandError
from queue_core.cli.target import Target
from queue_core.client.connect import open_queues
from queue_core.process.process_start import process_start
from queue_core.server.console import fleet_gateway
from queue_core.unit.supervisors import KIND
from tests.support.servers import a_server

URL = "http://127.0.0.1:9"


@pytest.fixture
def ended() -> Iterator[tuple[int, str]]:
    """Yield the id and the start of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = process_start(process.pid)
        process.kill()
    yield process.pid, start


def register(url: str, pid: int, start: str) -> None:
    facts = {"host": socket.gethostname(), "phase": "leading", "reach": "host", "url": URL, "pid": str(pid)}
    queues = open_queues(url)
    queues.register(KIND, "s", {**facts, "process_start": start}, seconds=60)
    queues.close()


def test_the_leader_of_a_store_is_called_only_while_its_process_lives(tmp_path: Path, ended: tuple[int, str]) -> None:
    store = Target(f"sqlite:///{tmp_path / 'a.db'}", "--store", None)
    register(store.url, os.getpid(), process_start(os.getpid()))
    found = leader_at(store, token="t")
    assert found is not None
    assert found.api == Target(URL, "its registration", "t")
    for pid, start in (ended, (os.getpid(), ""), (os.getpid(), "1")):
        register(store.url, pid, start)
        found = leader_at(store, token="t")
        assert found is not None
        assert found.api is None


def test_a_supervisor_named_by_this_host_is_called_only_while_its_process_lives(
    ended: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_gateway, "LOOK_SECONDS", 0.0)
    with a_server() as server:
        register(server.url, os.getpid(), process_start(os.getpid()))
        assert url_on(socket.gethostname(), url=server.url, token_file=None, file=None) == URL
        register(server.url, *ended)
        with pytest.raises(CommandError, match="has ended"):
            url_on(socket.gethostname(), url=server.url, token_file=None, file=None)


OTHER = "http://192.0.2.7:7879"


@pytest.mark.parametrize(
    ("host", "url", "start"),
    [
        pytest.param("elsewhere", OTHER, "", id="another machine"),
        pytest.param(socket.gethostname(), OTHER, "own", id="a process of this one that names another"),
        pytest.param(socket.gethostname(), URL, "1", id="a process of this one that has another start"),
        pytest.param(socket.gethostname(), URL, "", id="a process of this one without a start"),
        pytest.param("elsewhere", URL, "own", id="the loopback, as another machine registers it"),
    ],
)
def test_a_token_goes_to_no_registered_address_that_is_neither_proven_nor_named(
    host: str, url: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_gateway, "LOOK_SECONDS", 0.0)
    started = process_start(os.getpid()) if start == "own" else start
    with a_server() as server:
        facts = {"host": host, "phase": "leading", "reach": "network", "url": url, "pid": str(os.getpid())}
        with closing(open_queues(server.url)) as queues:
            queues.register(KIND, "s", {**facts, "process_start": started}, seconds=60)
        assert url_on(host, url=server.url, token_file=None, file=None) == url, "without a token nothing is given away"
        monkeypatch.setenv("TOWLINE_TOKEN", "secret")
        with pytest.raises(CommandError) as refused:
            url_on(host, url=server.url, token_file=None, file=None)
        assert f"--url {url}" in str(refused.value.fix)
        assert "secret" not in str(refused.value)
        monkeypatch.setenv("TOWLINE_URL", f"{server.url},{url}/")
        assert url_on(host, url=None, token_file=None, file=None) == url


def test_the_registered_address_is_the_one_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_gateway, "LOOK_SECONDS", 0.0)
    monkeypatch.setenv("TOWLINE_TOKEN", "secret")
    with a_server() as server:
        facts = {"host": "elsewhere", "phase": "leading", "reach": "network", "url": server.url, "pid": "1"}
        with closing(open_queues(server.url)) as queues:
            queues.register(KIND, "s", facts, seconds=60)
        assert url_on("elsewhere", url=server.url, token_file=None, file=None) == server.url
