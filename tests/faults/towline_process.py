"""`towline up` or `towline serve` as a process to kill, restart and stop; nothing of it outlives the tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

from orchestrator.runtimes import procfs
from orchestrator.runtimes.procfs import WorkerProcess
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import StoreError
from tests.faults.handlers import HISTORY_VARIABLE
from tests.faults.reopening import FILE_NAME
from tests.faults.workload import QUEUES

START_SECONDS = 20.0
STOP_SECONDS = 20.0
ORPHAN_GRACE_SECONDS = 30
POLL_SECONDS = 0.02
ASKED_CAUSES = frozenset({"drained", "finished"})
REPOSITORY = Path(__file__).parents[2]
WORKER_APP = "from tests.faults.handlers import app_of_this_worker\n\napp = app_of_this_worker()\n"


class TowlineProcess:
    """One settings file and the process that serves it.

    Args:
        home: an empty folder for the file, the store, logs and histories.
        socket_path: its listening socket; short, as Unix sockets require.
    """

    def __init__(self, home: Path, socket_path: Path, *, command: Literal["up", "serve"]) -> None:
        self.command = command
        self.url = f"unix://{socket_path}"
        self.store_path = home / FILE_NAME
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._probe = HttpQueues(self.url, retries=Retries(tries=1))
        (home / "worker_app.py").write_text(WORKER_APP)
        (home / "towline.yaml").write_text(json.dumps(_settings(self.url.replace("unix://", "unix:"), command)))

    def start(self) -> None:
        """Start it and wait until it answers. Raises `TimeoutError`."""
        environment = {
            **os.environ,
            HISTORY_VARIABLE: str(self._home / "history"),
            "PYTHONPATH": str(REPOSITORY),
        }
        with (self._home / "towline.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", self.command, "--file", "towline.yaml"],
                cwd=self._home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(StoreError):
                self._probe.queues()
                return
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"towline {self.command} did not answer; its log ends: {self._log_end()}")

    def kill(self) -> None:
        """SIGKILL and reap it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def workers(self) -> list[WorkerProcess]:
        """Return the worker processes of its supervisor."""
        return [process for process in procfs.worker_processes(str(self._home / ".towline")) if process.leads]

    def kill_worker(self, worker: WorkerProcess) -> bool:
        """SIGKILL one worker; return False when it was already gone."""
        try:
            os.kill(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> list[str]:
        """SIGTERM it; return everything wrong with the stop: a bad exit code, remaining workers."""
        assert self._process is not None, "it was started"
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return [f"it was not over {STOP_SECONDS} s after SIGTERM; its log ends: {self._log_end()}"]
        wrong = [] if code == 0 else [f"it ended with {code} after SIGTERM; its log ends: {self._log_end()}"]
        left = [worker.worker for worker in self.workers()]
        return wrong + ([f"workers outlived its stop: {', '.join(left)}"] if left else [])

    def unasked_exits(self, killed: Collection[str]) -> list[str]:
        """Return workers that ended without being killed or drained, according to the supervisor's log."""
        told = []
        for line in (self._home / "towline.log").read_text().splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if entry["event"] == "worker.reaped" and entry["cause"] not in ASKED_CAUSES:
                    told += [f"{entry['worker']}: {entry['detail']}"] if entry["worker"] not in killed else []
        return told

    def end_everything(self) -> None:
        """Kill it, its workers and their watchdog, each by pid."""
        self.kill()
        self._probe.close()
        for process in self._descendants():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _descendants(self) -> Iterator[psutil.Process]:
        """Return processes with our mark in their environment, also those adopted by init."""
        mark = str(self._home / "history")
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(HISTORY_VARIABLE) == mark:
                    yield process

    def _log_end(self) -> str:
        return (self._home / "towline.log").read_text()[-600:]


def _settings(listen: str, command: str) -> dict[str, object]:
    """Return YAML (as JSON) with the workload's queues and a pool on the first."""
    queues = {
        spec.name: {
            "lease": "5s",
            "max_leases": spec.max_leases,
            "retry": {"min": f"{spec.retry_min_seconds}s", "max": f"{spec.retry_max_seconds}s"},
        }
        for spec in QUEUES
    }
    pool = {
        "queue": "first",
        "app": "worker_app:app",
        "slo": "1s",
        "workers": {"min": 2, "max": 3},
        "grace": "5s",
    }
    return {
        "store": f"sqlite:///{FILE_NAME}",
        "server": {"listen": listen},
        "queues": queues,
        **(
            {"pools": {"all": pool}, "supervisor": {"orphan_grace": f"{ORPHAN_GRACE_SECONDS}s"}}
            if command == "up"
            else {}
        ),
    }
