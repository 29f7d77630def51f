"""`towline up` as a child of the demo: started, watched from outside by its files and processes, and stopped."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.demo.crew import DemoFleet
from queue_core.errors import QueueError

STOP_SECONDS: Final = 20.0


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

    def __init__(self, folder: Path, *, crew: DemoFleet) -> None:
        """Starts it over `folder`/towline.yaml; `crew` knows its workers from outside."""
        self._crew = crew
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

    def workers(self) -> frozenset[str]:
        """Workers that are alive now: what the kernel or the engine says, not what the fleet believes."""
        return self._crew.workers(self._process.pid)

    def kill(self, worker: str) -> bool:
        """SIGKILL to one worker; False when it is gone already."""
        return self._crew.kill(self._process.pid, worker)

    def stop(self) -> int:
        """SIGTERM, and its exit code; SIGKILL when it does not come to an end. Nobody is left."""
        self._process.terminate()
        try:
            return self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._crew.end()


def _module_path() -> str:
    """Where the fleet's processes find this very code, whether it is installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
