"""A Celery program of a test's own, as a shop has one: its module in a folder, its workers, its messages."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULE = """
import os, time
from celery import Celery

app = Celery("proj", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ.get("SHOP_PREFETCH", "1")),
    broker_connection_retry_on_startup=True,
)


def note(word, number, added):
    line = f"{word} {number} {time.time() - added:.3f} {os.getppid()}\\n"
    with open(os.path.join(os.path.dirname(__file__), "notes"), "a") as notes:
        notes.write(line)


@app.task
def nap(number, seconds, added):
    note("begin", number, added)
    time.sleep(seconds)
    note("end", number, added)
"""


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A line of a task: `word` is begin or end, `seconds` are since it was added; `pid` is of its worker."""

    word: str
    number: int
    seconds: float
    pid: int


class CeleryProgram:
    """A Celery app in a folder, over one broker. Messages are written as Celery writes them, by kombu alone."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder = folder
        self.broker = broker
        (folder / "proj.py").write_text(MODULE)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its workers."""
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "SHOP_BROKER": self.broker, "PYTHONPATH": path}

    def command(self, name: str, *, queues: str = "celery", concurrency: int = 1, pool: str = "prefork") -> list[str]:
        """The command of a worker."""
        program = [sys.executable, "-m", "celery", "-A", "proj", "worker", "-n", f"{name}@%h", "-Q", queues]
        return [*program, "-c", str(concurrency), "-P", pool, "-l", "WARNING"]

    @contextmanager
    def worker(
        self, name: str, *, prefetch: int = 1, arguments: tuple[str, ...] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker; it is killed at the end, with its children."""
        environment = {**self.environment, "SHOP_PREFETCH": str(prefetch)}
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [*self.command(name), *arguments], cwd=self.folder, env=environment, stdout=output, stderr=output
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def node(name: str) -> str:
        """The name of a worker's node."""
        return f"{name}@{socket.gethostname()}"

    def send(self, numbers: range, *, seconds: float, added: float, queue: str = "celery", **options: object) -> None:
        """Send tasks, by Celery itself in a process of our own."""
        from celery import Celery

        with Celery("sender", broker=self.broker, set_as_current=False) as app:
            app.conf.task_ignore_result = True
            for number in numbers:
                app.send_task("proj.nap", (number, seconds, added), queue=queue, **options)  # type: ignore[arg-type]

    def lines(self) -> list[TaskLine]:
        """What tasks noted so far."""
        notes = self.folder / "notes"
        found = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        return [TaskLine(word, int(number), float(at), int(pid)) for word, number, at, pid in found]
