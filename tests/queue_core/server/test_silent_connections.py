"""Connections that ask for nothing lock nobody out: they count once accepted, and make room for others."""

import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from socket import create_connection, socket

import pytest

from queue_core.server.http.connections import HANDSHAKE_PATIENCE_SECONDS, Connections
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.fleet.certificates import a_certificate

FILES = 256
SILENT = 300


@contextmanager
def a_daemon(folder: Path, settings: str) -> Iterator[dict[str, object]]:
    """Run `towline serve` with few descriptors; yield what it logged as it started."""
    (folder / "towline.yaml").write_text(f"store: 'sqlite:///q.db'\nqueues: {{q: {{}}}}\nserver: {{{settings}}}\n")
    log = folder / "log"
    with log.open("wb") as output:
        command = f"ulimit -n {FILES}; exec {sys.executable} -m orchestrator serve --json"
        server = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=program_environment(), stdout=output, stderr=output
        )
    try:
        yield eventually(lambda: _started(log))
        assert "Traceback" not in log.read_text(), log.read_text()[-3000:]
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0


def _started(log: Path) -> dict[str, object]:
    entries = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return next((one for one in entries if one["event"] == "server.started"), {})


def is_answered(url: str) -> bool:
    """Return whether a request on a new connection is answered."""
    port = int(url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port)
    if url.startswith("https"):
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    with closing(connection):
        try:
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            return answer.status == 200 and bool(answer.read())
        except (OSError, http.client.HTTPException):
            return False


def silence(_caller: socket) -> None:
    pass


def half_a_head(caller: socket) -> None:
    caller.sendall(b"GET /livez HTTP/1.1\r\nhost: ")


def one_request(caller: socket) -> None:
    caller.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")


@pytest.mark.parametrize("door", ["plain", "tls"])
@pytest.mark.parametrize("say", [silence, half_a_head, one_request])
def test_whoever_opens_connections_and_asks_for_nothing_locks_nobody_out(
    door: str, say: Callable[[socket], None], tmp_path: Path
) -> None:
    settings = 'listen: "127.0.0.1:0"'
    if door == "tls":
        made = a_certificate(tmp_path)
        settings += f", tls: {{cert: {made.certificate}, key: {made.key}}}"
    with a_daemon(tmp_path, settings) as started, ExitStack() as stack:
        url = str(started["url"])
        callers = [
            stack.enter_context(create_connection(("127.0.0.1", int(url.rpartition(":")[2])))) for _ in range(SILENT)
        ]
        for caller in callers:
            try:
                say(caller)
            except OSError:  # this one was over the limit
                continue
        eventually(lambda: is_answered(url))
        assert len(callers) > int(str(started["max_connections"]))


def test_silent_connections_at_the_door_for_grpc_leave_descriptors_for_the_others(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    with a_daemon(tmp_path, 'listen: "127.0.0.1:0", grpc: "127.0.0.1:0"') as started, ExitStack() as stack:
        url, grpc = str(started["url"]), str(started["grpc"])
        for _ in range(SILENT):
            stack.enter_context(create_connection(("127.0.0.1", int(grpc.rpartition(":")[2]))))
        eventually(lambda: is_answered(url))


# -- the rule ---------------------------------------------------------------------------------------------------------


class Caller:
    """A connection as the bounds see it."""

    def __init__(self, *, is_idle: bool = True) -> None:
        self.is_idle = is_idle
        self.is_closed = False

    def close(self) -> bool:
        self.is_closed = self.is_idle
        return self.is_closed


def test_up_to_the_limit_nobody_is_over_it_and_a_place_is_given_back() -> None:
    shared = Connections(lambda: 0.0, most=2)
    assert [shared.enter() for _ in range(4)] == [0, 0, 1, 2]
    for _ in range(3):
        shared.leave()
    assert shared.enter() == 0


def test_the_oldest_handshake_makes_room_once_it_has_had_its_time() -> None:
    now = 0.0
    shared = Connections(lambda: now, most=2)
    first, second = Caller(), Caller()
    for caller in (first, second):
        shared.enter()
        shared.handshake_begins(caller, caller.close)
    now = HANDSHAKE_PATIENCE_SECONDS - 0.001
    assert shared.enter() == 1
    shared.leave()
    now = HANDSHAKE_PATIENCE_SECONDS
    assert shared.enter() == 0
    assert (first.is_closed, second.is_closed) == (True, False)


def test_a_handshake_that_is_over_makes_no_room() -> None:
    now = 0.0
    shared = Connections(lambda: now, most=1)
    shared.enter()
    first = Caller()
    shared.handshake_begins(first, first.close)
    shared.handshake_ends(first)
    now = 100.0
    assert shared.enter() == 1
    assert not first.is_closed


def test_who_was_idle_for_longest_makes_room_unless_it_asks_again() -> None:
    shared = Connections(lambda: 0.0, most=3)
    callers = Caller(), Caller(), Caller(is_idle=False)
    for _ in callers:
        shared.enter()
    shared.have_idle([one.close for one in callers])
    assert shared.enter() == 0
    assert [one.is_closed for one in callers] == [False, True, False]
