"""`towline up` as a child process of the demo, and its workers as the kernel or the engine sees them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import docker
import psutil
from docker.errors import DockerException
from requests.exceptions import RequestException

from queue_core.errors import QueueError

RUN_LABEL: Final = "demo.run"
"""The label that marks the containers of one run."""
CALL_SECONDS: Final = 20
_WORKER_LABEL: Final = "towline.worker"


class EngineLostError(QueueError):
    """The engine that runs the demo's containers no longer answers."""


class DemoWorkers(Protocol):
    """The workers of one fleet, seen from outside."""

    def workers(self, fleet: int) -> frozenset[str]:
        """Return the living workers of the fleet with this pid."""

    def kill(self, fleet: int, worker: str) -> bool:
        """Send SIGKILL to one worker; return False when it is already gone."""

    def end(self) -> None:
        """End the workers that are left after the fleet has ended."""


class ProcessWorkers:
    """Workers that are child processes of the fleet."""

    def workers(self, fleet: int) -> frozenset[str]:
        """See `DemoWorkers.workers`."""
        return frozenset(self._pids(fleet))

    def kill(self, fleet: int, worker: str) -> bool:
        """See `DemoWorkers.kill`."""
        pid = self._pids(fleet).get(worker)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> None:
        """See `DemoWorkers.end`: the fleet's watchdog process does it."""

    def _pids(self, fleet: int) -> dict[str, int]:
        found = {}
        for child in _children(fleet):
            try:
                # Its environment tells a worker, executed or forked; a process that it started leads no session.
                worker = "" if child.status() == psutil.STATUS_ZOMBIE else child.environ().get("TOWLINE_WORKER", "")
                if worker and os.getsid(child.pid) == child.pid:
                    found[worker] = child.pid
            except (psutil.Error, ProcessLookupError):  # it ended while we looked
                continue
        return found


class ContainerWorkers:
    """Workers that are containers with this run's label."""

    def __init__(self, url: str, run: str) -> None:
        """`url`: the engine; `run`: the value of the run's label."""
        self._run = run
        self._client = docker.APIClient(base_url=url, timeout=CALL_SECONDS)

    def workers(self, fleet: int) -> frozenset[str]:  # noqa: ARG002  the label identifies them
        """See `DemoWorkers.workers`."""
        return frozenset(self._ids())

    def kill(self, fleet: int, worker: str) -> bool:  # noqa: ARG002
        """See `DemoWorkers.kill`: kills the container's first process, as the kernel's OOM killer would."""
        found = self._ids().get(worker)
        try:
            if found is not None:
                self._client.kill(found, signal="SIGKILL")
        except DockerException:  # it ended while we looked
            return False
        return found is not None

    def end(self) -> None:
        """See `DemoWorkers.end`."""
        with contextlib.suppress(DockerException, RequestException, OSError):
            for found in self._client.containers(all=True, filters={"label": f"{RUN_LABEL}={self._run}"}):
                with contextlib.suppress(DockerException):
                    self._client.remove_container(found["Id"], force=True, v=True)
        self._client.close()

    def _ids(self) -> dict[str, str]:
        """Return living workers with their container ids."""
        try:
            listed = self._client.containers(filters={"label": f"{RUN_LABEL}={self._run}"})
        except (DockerException, RequestException, OSError) as error:
            raise EngineLostError(f"the engine does not answer any more: {error}") from error
        return {found["Labels"].get(_WORKER_LABEL, ""): found["Id"] for found in listed}


def volumes_of(folder: Path, library: Path, *, at: str) -> list[str]:
    """Return the mounts of a container of the demo: the run's folder, and the modules to read."""
    return [f"{folder}:{folder}", f"{library}:{at}:ro"]


def _children(fleet: int) -> list[psutil.Process]:
    try:
        return psutil.Process(fleet).children()
    except psutil.Error:
        return []


STOP_SECONDS: Final = 20.0


class FleetFailedError(QueueError):
    """`towline up` did not start, or ended by itself."""


class Tail:
    """Reads the whole lines that were added to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def records(self) -> Iterator[dict[str, object]]:
        """Yield new lines that are JSON objects; skip others."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


class FleetProcess:
    """One `towline up` in its own session, so that Ctrl-C reaches only the demo."""

    def __init__(self, folder: Path, *, workers: DemoWorkers, log_name: str = "up.log") -> None:
        """Start it with `folder`/towline.yaml; `workers` observes its workers from outside."""
        self._workers = workers
        self._log = folder / log_name
        self.log = Tail(self._log)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up", "--json", "--file", str(folder / "towline.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment | {"PYTHONPATH": _module_path()},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise `FleetFailedError` when it has ended."""
        if (code := self._process.poll()) is not None:
            last = self._log.read_text(errors="replace").strip().splitlines()[-8:]
            raise FleetFailedError(f"`towline up` ended with exit code {code}; it said: " + " | ".join(last))

    def workers(self) -> frozenset[str]:
        """Return the living workers according to the kernel or the engine."""
        return self._workers.workers(self._process.pid)

    def kill(self, worker: str) -> bool:
        """Send SIGKILL to one worker; return False when it is already gone."""
        return self._workers.kill(self._process.pid, worker)

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM: workers finish within their grace. A second one kills them."""
        self._process.terminate()

    def stop(self) -> int:
        """Send SIGTERM if it runs (SIGKILL after a timeout), end leftover workers and return the exit code."""
        if self.is_running:
            self._process.terminate()
        try:
            return self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._workers.end()


def _module_path() -> str:
    """Return a PYTHONPATH on which the fleet's processes find this code, installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
