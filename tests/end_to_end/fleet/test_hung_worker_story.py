"""A handler hangs past max_lease: every place that a person looks at says where, how long, and of what task."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from queue_core.client.http_calls import HttpQueues
from queue_core.task import NewTask
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///{folder}/towline.db
server: {{listen: "unix:{folder}/queue.sock"}}
queues:
  jobs: {{lease: 1s, max_lease: 2s}}
pools:
  crew:
    queue: jobs
    app: tests.support.fleet.hanging_app:app
    slo: 1s
    workers: {{min: 1, max: 1}}
    grace: 1s
    concurrency: {concurrency}
    start: {start}
"""
PLACE = "hanging_app.py:"


@pytest.fixture(params=[("1", "exec"), ("2", "exec"), ("1", "fork")], ids="-".join)
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    concurrency, start = request.param
    (tmp_path / "towline.yaml").write_text(SETTINGS.format(folder=tmp_path, concurrency=concurrency, start=start))
    with (tmp_path / "log").open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=tmp_path,
            env=program_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        yield tmp_path
    finally:
        (tmp_path / "go").touch()
        program.send_signal(signal.SIGTERM)
        try:
            program.wait(timeout=60)
        finally:
            program.kill()
            for worker in procfs.worker_processes(str(tmp_path / ".towline")):
                procfs.signal_exactly(worker, signal.SIGKILL)


def test_a_person_is_told_where_it_hung_how_long_and_what_became_of_its_task(up: Path) -> None:
    files = StateDir(up / ".towline")
    eventually(lambda: (files.read_snapshot() or {}).get("workers"))
    with closing(HttpQueues(f"unix://{up}/queue.sock")) as queues:
        queues.queue("jobs").add([NewTask(f"hold {up}".encode(), name="stuck")])
    (death,) = eventually(lambda: files.read_deaths(limit=1))
    worker = str(death["worker"])
    assert death["cause"] in {"hung", "unresponsive"}
    assert death["code"] in {80, 0}
    assert not death["failed_start"]
    assert PLACE in str(death["detail"])
    assert " s" in str(death["detail"])

    told = run_program("why-died", worker, folder=up).out
    assert "its start failed" not in told
    assert "jobs/stuck" in told
    assert "its lease ended before its worker did" in told
    assert "`timeout=`" in told
    assert PLACE in run_program("workers", folder=up).out

    (reaped,) = [line for line in _logged(up, "worker.reaped") if line["worker"] == worker]
    sentence = str(reaped["sentence"])
    assert sentence.startswith(str(death["detail"]))
    assert "its task jobs/stuck, lease 1, was ready again when its lease ended" in sentence

    story = run_program("why", "stuck", folder=up).out
    assert worker in story
    assert "MaxLease: its handler ran on for" in story
    assert PLACE in story
    assert PLACE in run_program("events", "--queue", "jobs", folder=up).out
    assert PLACE in run_program("logs", worker, folder=up).out


def _logged(folder: Path, event: str) -> list[dict[str, object]]:
    lines = (folder / "log").read_text().splitlines()
    return [told for line in lines if line.startswith("{") and (told := json.loads(line)).get("event") == event]
