"""`towline supervise` with a listener of its own, beside a queue server elsewhere; and `towline health` of both."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server:
  listen: unix:queue.sock
  tokens: [{role: admin, token_env: TOWLINE_TOKEN}, {role: viewer, token_env: VIEWER}]
supervisor: {listen: "unix:fleet.sock", state_dir: state}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize: {queue: thumbs, command: [sleep, "60"], slo: 5s}
"""
SECRETS = {"TOWLINE_TOKEN": "admin-secret-0123456789", "VIEWER": "viewer-secret-0123456789"}


@contextmanager
def running(folder: Path, *arguments: str, until: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=folder,
            env=program_environment() | SECRETS,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: until in (folder / f"{arguments[0]}.log").read_text(), seconds=30)
        yield program
    finally:
        program.send_signal(signal.SIGCONT)
        program.terminate()
        program.wait(timeout=30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    return tmp_path


def asked(folder: Path, path: str, *, token: str = "") -> tuple[int, str]:
    """What curl gets at the supervisor's own socket."""
    authorization = ["-H", f"authorization: Bearer {token}"] if token else []
    done = subprocess.run(
        [
            *("curl", "-s", "--max-time", "10", "-w", "\n%{http_code}", "--unix-socket", str(folder / "fleet.sock")),
            *(*authorization, f"http://localhost{path}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    body, _, code = done.stdout.rpartition("\n")
    return int(code or 0), body


def health(folder: Path, *arguments: str) -> tuple[int, str]:
    told = run_program("health", *arguments, folder=folder, environment=SECRETS)
    return told.code, told.out + told.err


@pytest.mark.skipif(not os.path.exists("/usr/bin/curl"), reason="no curl here")  # noqa: PTH110
def test_a_supervisor_beside_a_server_elsewhere_tells_its_own_numbers(folder: Path) -> None:
    with running(folder, "serve", until="serving at"):
        code, told = health(folder)
        assert (code, "supervisor: " in told) == (0, False)
        with running(folder, "supervise", "--json", until="supervisor.leading") as supervisor:
            assert asked(folder, "/v1/pools/resize/stats")[0] == 401
            eventually(lambda: asked(folder, "/v1/pools/resize/stats", token=SECRETS["VIEWER"])[0] == 200, seconds=20)
            stats = json.loads(asked(folder, "/v1/pools/resize/stats", token=SECRETS["VIEWER"])[1])
            assert (stats["desired_workers"], stats["max_workers"]) == (0, stats["max_workers"])
            assert "towline_pool_desired_workers" in asked(folder, "/metrics", token=SECRETS["VIEWER"])[1]
            assert asked(folder, "/readyz")[0] == 200
            code, told = health(folder)
            assert (code, "supervisor: leading" in told) == (0, True)
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(timeout=30) == 0
        assert not (folder / "fleet.sock").exists()
        assert health(folder, "--part", "supervisor")[0] == 69


def test_a_listener_for_the_network_without_tokens_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text("queues: {}\nsupervisor: {listen: 0.0.0.0:7879}\n")
    told = run_program("check", folder=tmp_path)
    assert told.code == 78
    assert "towline.yaml:2:14: supervisor.listen: 0.0.0.0:7879: other machines could reach it without a token" in (
        told.out + told.err
    )
