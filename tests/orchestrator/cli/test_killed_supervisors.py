"""A supervisor that was killed is registered for a while: no command sends a token to its address."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.store_leader import leader_at
from orchestrator.cli.supervisor_hosts import url_on
from queue_core.cli.failure import CommandError
from queue_core.cli.target import Target
from queue_core.connect import open_queues
from queue_core.process.process_start import process_start
from queue_core.registrations.supervisors import KIND
from queue_core.server.console import fleet_gateway
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
