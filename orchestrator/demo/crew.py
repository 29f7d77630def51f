"""Who works for the demo's fleet, as the kernel or the engine says, not as the fleet believes."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, Protocol

import docker
import psutil
from docker.errors import DockerException
from requests.exceptions import RequestException

from queue_core.errors import QueueError

RUN_LABEL: Final = "demo.run"
"""The label by which the containers of one run are known from all others."""
CALL_SECONDS: Final = 20
_WORKER_LABEL: Final = "towline.worker"
_WORKER_MODULE: Final = "queue_core.worker"


class EngineLostError(QueueError):
    """The engine that runs the demo's containers does not answer any more."""


class DemoFleet(Protocol):
    """The workers of one fleet."""

    def workers(self, fleet: int) -> frozenset[str]:
        """Those that are alive now, of the fleet with this pid."""

    def kill(self, fleet: int, worker: str) -> bool:
        """SIGKILL to one of them; False when it is gone already."""

    def end(self) -> None:
        """End whoever is left after the fleet has ended."""


class ProcessFleet:
    """Children of the fleet's process."""

    def workers(self, fleet: int) -> frozenset[str]:
        """See `DemoFleet.workers`."""
        return frozenset(self._pids(fleet))

    def kill(self, fleet: int, worker: str) -> bool:
        """See `DemoFleet.kill`."""
        pid = self._pids(fleet).get(worker)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> None:
        """See `DemoFleet.end`: the fleet's watchdog ends them."""

    def _pids(self, fleet: int) -> dict[str, int]:
        found = {}
        for child in _children(fleet):
            try:
                if child.status() == psutil.STATUS_ZOMBIE or _WORKER_MODULE not in child.cmdline():
                    continue
                found[child.environ().get("TOWLINE_WORKER", "")] = child.pid
            except psutil.Error:  # it ended while we looked
                continue
        return found


class ContainerFleet:
    """Containers that carry this run's label."""

    def __init__(self, url: str, run: str) -> None:
        """`url`: where the engine answers; `run`: the label's value."""
        self._run = run
        self._client = docker.APIClient(base_url=url, timeout=CALL_SECONDS)

    def workers(self, fleet: int) -> frozenset[str]:  # noqa: ARG002  whoever started them
        """See `DemoFleet.workers`."""
        return frozenset(self._ids())

    def kill(self, fleet: int, worker: str) -> bool:  # noqa: ARG002
        """See `DemoFleet.kill`: its first process, as the kernel kills one that takes too much."""
        found = self._ids().get(worker)
        try:
            if found is not None:
                self._client.kill(found, signal="SIGKILL")
        except DockerException:  # it ended while we looked
            return False
        return found is not None

    def end(self) -> None:
        """See `DemoFleet.end`."""
        with contextlib.suppress(DockerException, RequestException, OSError):
            for found in self._client.containers(all=True, filters={"label": f"{RUN_LABEL}={self._run}"}):
                with contextlib.suppress(DockerException):
                    self._client.remove_container(found["Id"], force=True, v=True)
        self._client.close()

    def _ids(self) -> dict[str, str]:
        """Living workers and their containers."""
        try:
            listed = self._client.containers(filters={"label": f"{RUN_LABEL}={self._run}"})
        except (DockerException, RequestException, OSError) as error:
            raise EngineLostError(f"the engine does not answer any more: {error}") from error
        return {found["Labels"].get(_WORKER_LABEL, ""): found["Id"] for found in listed}


def volumes_of(folder: Path, library: Path, *, at: str) -> list[str]:
    """What a container of the demo sees of this machine: the run's folder, and the modules to read."""
    return [f"{folder}:{folder}", f"{library}:{at}:ro"]


def _children(fleet: int) -> list[psutil.Process]:
    try:
        return psutil.Process(fleet).children()
    except psutil.Error:
        return []
