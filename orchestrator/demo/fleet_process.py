"""`towline up` as a child of the demo: started, watched from outside by its files and processes, and stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from queue_core.errors import QueueError

STOP_SECONDS: Final = 20.0
_WORKER_MODULE: Final = "queue_core.worker"


class FleetFailedError(QueueError):
    """`towline up` did not come up, or ended by itself."""


class Tail:
    """Whole lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def records(self) -> Iterator[dict[str, object]]:
        """New lines that are JSON objects; others are passed over."""
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
    """One `towline up`, in a session of its own so that Ctrl-C reaches the demo alone."""

    def __init__(self, folder: Path) -> None:
        """Starts it over `folder`/towline.yaml."""
        self._log = folder / "up.log"
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

    def workers(self) -> dict[str, int]:
        """Worker processes that are alive now, and their pids: what the kernel says, not what the fleet believes."""
        found = {}
        for child in self._children():
            try:
                if child.status() == psutil.STATUS_ZOMBIE or _WORKER_MODULE not in child.cmdline():
                    continue
                found[child.environ().get("TOWLINE_WORKER", "")] = child.pid
            except psutil.Error:  # it ended while we looked
                continue
        return found

    def kill(self, worker: str) -> bool:
        """SIGKILL to one worker; False when it is gone already."""
        pid = self.workers().get(worker)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> int:
        """SIGTERM, and its exit code; SIGKILL when it does not come to an end."""
        self._process.terminate()
        try:
            return self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children()
        except psutil.Error:
            return []


def _module_path() -> str:
    """Where the fleet's processes find this very code, whether it is installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
