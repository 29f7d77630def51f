"""A copy of an example with a server address of its own, and the programs that run in it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from orchestrator.runtimes import procfs
from queue_core import Queues, open_queues
from tests.support.commands import ROOT, CommandResult, program_environment, run_program
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port

EXAMPLES: Final = ROOT / "examples"
SECONDS: Final = 60.0
LEFT_OUT: Final = shutil.ignore_patterns("*.db*", ".towline*", "__pycache__")


@dataclass
class Example:
    """A copy of an example's folder, and what was started in it."""

    folder: Path
    url: str
    variables: Mapping[str, str]
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """That of a shell in which the example's environment is active."""
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        return {**program_environment(), "PATH": path, **self.variables}

    def towline(self, *arguments: str) -> CommandResult:
        """Run a command of `towline`."""
        return run_program(*arguments, folder=self.folder, environment=self.environment)

    def run(self, *command: str) -> str:
        """Run a program to its end; return what it wrote."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *command: str, **variables: str) -> "subprocess.Popen[bytes]":
        """Start a program that is stopped with the example."""
        with (self.folder / "log").open("ab") as log:
            environment = self.environment | variables
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def up(self) -> None:
        """Run `towline up` until the end of the example; return once it is ready."""
        self.start(sys.executable, "-m", "orchestrator", "up")
        eventually(lambda: answers(f"{self.url}/v1/supervisor/readyz"))

    def worker_pids(self, state: str = ".towline") -> dict[str, int]:
        """Return the living workers of a state folder by name, as the kernel knows them."""
        found = procfs.worker_processes(str(self.folder / state))
        return {process.worker: process.pid for process in found if process.leads}

    def kill_worker(self, worker: str) -> None:
        """Do as `kill -9` does."""
        os.kill(self.worker_pids()[worker], signal.SIGKILL)

    @contextmanager
    def queues(self) -> Iterator[Queues]:
        """Open the queues as the example's own programs do: those of its server."""
        queues = open_queues(self.url)
        try:
            yield queues
        finally:
            queues.close()

    def close(self) -> None:
        """Stop the programs, the last first, and the workers of those that were killed."""
        for process in reversed(self.running):
            process.terminate()
            process.wait(SECONDS)
        for state in self.folder.glob(".towline*"):
            for pid in self.worker_pids(state.name).values():
                os.kill(pid, signal.SIGKILL)


def answers(url: str) -> bool:
    """Return whether a GET of this URL succeeds."""
    try:
        return httpx.get(url, follow_redirects=True).is_success
    except httpx.TransportError:
        return False


@contextmanager
def a_copy_of(name: str, folder: Path, *, store: str | None = None) -> Iterator[Example]:
    """Copy an example into a folder; its programs end with the block.

    Port 7878 becomes a free one in all of its files. `store`: in place of the one in its settings.
    """
    home = folder / name
    shutil.copytree(EXAMPLES / name, home, ignore=LEFT_OUT)
    port = free_port()
    for path in [path for path in home.rglob("*") if path.suffix in (".py", ".yaml")]:
        path.write_text(path.read_text().replace(":7878", f":{port}"))
    settings = home / "towline.yaml"
    if settings.is_file():
        settings.write_text(f'server: {{listen: "127.0.0.1:{port}"}}\n{settings.read_text()}')
    variables = {} if store is None else {"TOWLINE_STORE": store}
    example = Example(home, f"http://127.0.0.1:{port}", variables)
    try:
        yield example
    finally:
        example.close()
