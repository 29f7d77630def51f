"""A server under a service manager: it says how it is, and takes the socket that it is handed."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.server import server
from queue_core.server.base.options import options_of
from tests.support.commands import program_environment

HANDED = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@contextmanager
def serving(
    folder: Path, *command: str, passed: int | None = None, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=program_environment() | environment,
            stdout=log,
            stderr=log,
            pass_fds=() if passed is None else (passed,),
        )
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def test_a_server_tells_its_service_manager_how_it_is(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with serving(tmp_path, "-m", "orchestrator", "serve", "--listen", "unix:q.sock", **told) as server:
            heard = [manager.recv(1000).decode().split("\n") for _ in range(4)]
            ready = next(message for message in heard if "READY=1" in message)
            assert ready[1:] == [f"MAINPID={server.pid}", f"STATUS=serving at unix://{tmp_path}/q.sock"]
            assert heard.count(["WATCHDOG=1"]) == 3
            server.send_signal(signal.SIGTERM)
            while manager.recv(1000) != b"STOPPING=1":
                pass
            assert server.wait(timeout=20) == 0


def test_a_server_takes_the_socket_that_it_is_handed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        command = ("-c", HANDED, str(listening.fileno()), "-m", "orchestrator", "serve", "--json")
        with serving(tmp_path, *command, "--listen", f"{host}:{port}", passed=listening.fileno()):
            with socket.create_connection((host, port), timeout=30) as caller:  # before it can answer
                caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert caller.recv(100).startswith(b"HTTP/1.1 200")
            log = (tmp_path / "log").read_text()
            assert json.loads(log.splitlines()[0])["url"] == f"http://{host}:{port}"


@pytest.mark.parametrize("listen", ["unix:{folder}/other.sock", "127.0.0.1:{other}", "127.0.0.2:0"])
def test_a_socket_that_listens_elsewhere_is_left_alone(
    tmp_path: Path, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        other = listening.getsockname()[1] % 60_000 + 1
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        monkeypatch.setattr(server, "FIRST_INHERITED", listening.fileno())
        options = options_of(listen.format(folder=tmp_path, other=other), tokens=())
        assert server.inherited_socket(options) is None
        assert listening.getsockname()  # still open
        found = server.inherited_socket(options_of("127.0.0.1:0", tokens=()))
        assert found is not None
        assert found.getsockname() == listening.getsockname()
        assert "LISTEN_FDS" not in os.environ
        found.detach()


@pytest.mark.parametrize(
    "told", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"}]
)
def test_what_is_told_to_others_is_not_heeded(told: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert server.inherited_socket(options_of("127.0.0.1:0", tokens=())) is None
