"""The files of tokens and certificates are replaced and a reload is requested, at each command that listens."""

import http.client
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.fleet.certificates import a_certificate

OLD, NEW, ADMIN = "old-0123456789abcdef", "new-0123456789abcdef", "admin-0123456789abcdef"
CONTEXT = ssl._create_unverified_context()
SERVER = """
  tokens: [{role: viewer, token_file: viewer.tok}, {role: admin, token_file: admin.tok}]
  tls: {cert: server.pem, key: server.key}
"""


@dataclass(frozen=True, slots=True)
class Listening:
    """A command that listens, with its settings."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    log: Path

    def logged(self, event: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def status(self, port: int, token: str) -> int:
        """Return how a call with a token is answered; 0: not yet."""
        with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=CONTEXT)) as connection:
            try:
                connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                answer.read()
                return answer.status
            except OSError:
                return 0


@contextmanager
def a_command(folder: Path, *words: str, **environment: str) -> Iterator[Listening]:
    log = folder / f"{words[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words, "--json"],
            cwd=folder,
            env=program_environment() | environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield Listening(folder, process, log)
    finally:
        process.terminate()
        process.wait(timeout=60)


def write_files(folder: Path) -> None:
    (folder / "viewer.tok").write_text(OLD)
    (folder / "admin.tok").write_text(ADMIN)
    a_certificate(folder)


def check_renewed(at: Listening, port: int, *, reloaded: str, refused: str, grpc: int | None = None) -> None:
    """Replace the files and reload; then do so with files that can't be used."""
    ports = [port] if grpc is None else [port, grpc]
    assert eventually(lambda: at.status(port, OLD)) == 200
    before = [ssl.get_server_certificate(("127.0.0.1", one)) for one in ports]
    (at.folder / "viewer.tok").write_text(NEW)
    a_certificate(at.folder)
    at.process.send_signal(signal.SIGHUP)
    eventually(lambda: at.logged(reloaded))
    assert at.logged(reloaded)[-1]["next_start"] == []
    assert (at.status(port, OLD), at.status(port, NEW)) == (401, 200)
    renewed = [ssl.get_server_certificate(("127.0.0.1", one)) for one in ports]
    assert not set(before) & set(renewed)

    for name, broken in (("viewer.tok", "short"), ("server.pem", "no certificate")):
        right = (at.folder / name).read_text()
        count = len(at.logged(refused))
        (at.folder / name).write_text(broken)
        at.process.send_signal(signal.SIGHUP)
        eventually(lambda count=count: len(at.logged(refused)) > count)  # type: ignore[misc]
        assert broken not in at.log.read_text().replace("no certificate and its key", "")
        (at.folder / name).write_text(right)
    assert (at.status(port, OLD), at.status(port, NEW)) == (401, 200)
    assert [ssl.get_server_certificate(("127.0.0.1", one)) for one in ports] == renewed


def port_of(url: object) -> int:
    return int(str(url).rpartition(":")[2])


@pytest.mark.parametrize(
    ("command", "reloaded", "refused"),
    [
        pytest.param("serve", "server.reloaded", "server.reload_refused", id="serve"),
        pytest.param("up", "supervisor.reloaded", "supervisor.reload_refused", id="up"),
    ],
)
def test_a_server_takes_them_up_and_goes_on_with_the_old_ones_where_the_new_can_not_be_used(
    command: str, reloaded: str, refused: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    write_files(tmp_path)
    grpc = '  grpc: {listen: "127.0.0.1:0", certificate: server.pem, key: server.key}\n'
    text = f'store: sqlite:///q.db\nqueues: {{q: {{}}}}\nserver:\n  listen: "127.0.0.1:0"{SERVER}{grpc}'
    (tmp_path / "towline.yaml").write_text(text)
    with a_command(tmp_path, command) as at:
        started = eventually(lambda: at.logged("server.started"))[0]
        if command == "up":
            eventually(lambda: at.logged("supervisor.started"))
        check_renewed(at, port_of(started["url"]), reloaded=reloaded, refused=refused, grpc=port_of(started["grpc"]))


def test_a_supervisor_beside_a_server_takes_them_up(tmp_path: Path) -> None:
    queues, fleet = tmp_path / "queues", tmp_path / "fleet"
    for folder in (queues, fleet):
        folder.mkdir()
        write_files(folder)
    text = f'store: sqlite:///q.db\nqueues: {{q: {{}}}}\nserver:\n  listen: "unix:q.sock"{SERVER}'
    (queues / "towline.yaml").write_text(text.replace("  tls: {cert: server.pem, key: server.key}\n", ""))
    (fleet / "towline.yaml").write_text(f'{text}supervisor: {{listen: "127.0.0.1:0"}}\n')
    with a_command(queues, "serve") as served:
        eventually(lambda: served.logged("server.started"))
        with a_command(fleet, "supervise", "--url", f"unix:{queues}/q.sock", TOWLINE_TOKEN=ADMIN) as at:
            started = eventually(lambda: at.logged("supervisor.started"))[0]
            port = eventually(lambda: _listening_port(at.process.pid))
            assert started
            check_renewed(at, port, reloaded="supervisor.reloaded", refused="supervisor.reload_refused")


def _listening_port(pid: int) -> int:
    found = [one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.status == "LISTEN"]
    return found[0] if found else 0
