"""Clients that send nonsense or hang up cost the log one JSON line of a kind in ten seconds, never a traceback."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from structlog.testing import capture_logs

from queue_core.server.http.connections import LOG_SECONDS, Connections
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.servers import read_reply, request

RELEASE = "/v1/queues/default/release"
CREATE = "/v2beta2/projects/p/locations/l/queues/default/tasks"
INSERT = "/taskqueue/v1beta2/projects/p/taskqueues/default/tasks"
H2C = [("connection", "upgrade"), ("upgrade", "h2c")]


@contextmanager
def a_daemon(folder: Path) -> Iterator[tuple[str, Path]]:
    """A server as an operator runs it; the path of its socket, and of its log. It ends well."""
    address, log = f"{folder}/q.sock", folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "serve", "--json", "--listen", f"unix:{address}"],
            cwd=folder,
            env=program_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: "server.started" in log.read_text(), seconds=30)
        yield address, log
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0


def _connected(address: str) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(20)
    caller.connect(address)
    return caller


def _logged(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines() if not line.startswith("serving at")]


def test_each_kind_is_one_line_of_json(tmp_path: Path) -> None:
    with a_daemon(tmp_path) as (address, log):
        for _ in range(20):
            with closing(_connected(address)) as caller:
                caller.sendall(b"what is this\r\n\r\n")
                assert read_reply(caller).status == 400
            with closing(_connected(address)) as caller:
                caller.sendall(request("GET", "/livez", headers=H2C))
                assert read_reply(caller).status == 200
            for path in (RELEASE, CREATE, INSERT):
                with closing(_connected(address)) as caller:
                    caller.sendall(request("POST", path, b'{"tokens":[]}')[:-3])
        eventually(lambda: "request.abandoned" in log.read_text())
        with closing(_connected(address)) as caller:  # whatever is to be logged of those before it is there now
            caller.sendall(request("GET", "/livez"))
            read_reply(caller)
    kinds = [entry["event"] for entry in _logged(log)]
    assert sorted(map(str, kinds)) == ["request.abandoned", "request.malformed", "server.started", "server.stopped"]


def test_connections_there_may_be_are_logged_at_the_start(tmp_path: Path) -> None:
    with a_daemon(tmp_path) as (_, log):
        assert int(str(_logged(log)[0]["max_connections"])) >= 16


def test_what_was_left_out_is_counted() -> None:
    now = 0.0
    with capture_logs() as logged:
        shared = Connections(lambda: now, most=1)
        for now in (0.0, 1.0, 2.0, LOG_SECONDS, LOG_SECONDS + 1):  # noqa: B007 - read by the clock
            shared.warn("request.malformed", error="x")
            shared.warn("request.abandoned")
    counts = [(entry["event"], entry.get("left_out", 0)) for entry in logged]
    assert counts == [
        ("request.malformed", 0),
        ("request.abandoned", 0),
        ("request.malformed", 2),
        ("request.abandoned", 2),
    ]
