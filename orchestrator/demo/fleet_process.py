"""`towline up` as a child process of the demo, and its workers as the kernel sees them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from queue_core.errors import QueueError

STOP_SECONDS: Final = 20.0

WorkersSeen = Callable[[int], Mapping[str, int]]
"""The living workers of the fleet with a pid, each with its own pid."""


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


def workers_seen(fleet: int) -> dict[str, int]:
    """See `WorkersSeen`: workers are child processes of the fleet, and lead a session each."""
    try:
        children = psutil.Process(fleet).children()
    except psutil.Error:
        return {}
    found = {}
    for child in children:
        try:
            # Its environment tells a worker, executed or forked; a process that it started leads no session.
            worker = "" if child.status() == psutil.STATUS_ZOMBIE else child.environ().get("TOWLINE_WORKER", "")
            if worker and os.getsid(child.pid) == child.pid:
                found[worker] = child.pid
        except (psutil.Error, ProcessLookupError):  # it ended while we looked
            continue
    return found


class FleetProcess:
    """One `towline up` in its own session, so that Ctrl-C reaches only the demo."""

    def __init__(self, folder: Path, *, seen: WorkersSeen = workers_seen, log_name: str = "up.log") -> None:
        """Start it with `folder`/towline.yaml; `seen` observes its workers from outside."""
        self._seen = seen
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
        """Return the living workers according to the kernel."""
        return frozenset(self._seen(self._process.pid))

    def kill(self, worker: str) -> bool:
        """Send SIGKILL to one worker; return False when it is already gone."""
        pid = self._seen(self._process.pid).get(worker)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM: workers finish within their grace. A second one kills them."""
        self._process.terminate()

    def stop(self) -> int:
        """Send SIGTERM if it runs (SIGKILL after a timeout) and return the exit code."""
        if self.is_running:
            self._process.terminate()
        try:
            return self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _module_path() -> str:
    """Return a PYTHONPATH on which the fleet's processes find this code, installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
