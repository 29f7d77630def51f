"""Template processes of small applications, and what they leave behind."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.runtimes import procfs
from orchestrator.runtimes.template_process import LIVING, ForkedWorker, TemplateProcess, TemplateState
from tests.support.eventually import eventually

REPOSITORY: Final = Path(__file__).parents[3]
STAY: Final = "exec sleep 600"


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def marked_processes(mark: str) -> set[int]:
    """Return the living processes, but this one, that have TEMPLATE_BENCH=`mark` among their variables."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                shown = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"TEMPLATE_BENCH={mark}".encode() in shown:
                found.add(int(entry.name))
    return found


def reported_to_end(worker: ForkedWorker) -> int:
    """Wait for a worker's end, collect it, and return its exit code, or the negative signal."""
    _, status = os.waitpid(worker.pid, 0)
    os.close(worker.pidfd)
    return os.waitstatus_to_exitcode(status)


@dataclass
class TemplateBench:
    """A folder with an application, and templates of it."""

    folder: Path
    templates: list[TemplateProcess] = field(default_factory=list)

    @property
    def fault(self) -> Path:
        """The file that says where a fork of `fault_app` fails."""
        return self.folder / "fault"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def write(self, text: str) -> None:
        """Write the application's module, `tasks`."""
        (self.folder / "tasks.py").write_text(text)

    def environment(self, app: str) -> dict[str, str]:
        """Return the variables that all workers share."""
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("TOWLINE_")}
        return {
            **inherited,
            "PYTHONPATH": str(REPOSITORY),
            "TEMPLATE_BENCH": str(self.folder),
            "FORK_FAULT": str(self.fault),
            "TOWLINE_URL": "memory:",
            "TOWLINE_APP": app,
        }

    def start(self, app: str = "tests.support.fleet.fault_app:app") -> TemplateProcess:
        """Start a template."""
        with self.log.open("ab") as log:
            template = TemplateProcess(self.environment(app), cwd=str(self.folder), log=log.fileno())
        self.templates.append(template)
        return template

    def ready(self, app: str = "tests.support.fleet.fault_app:app", *, state: TemplateState = "ready") -> TemplateProcess:
        """Start a template and wait until it is in this state."""
        template = self.start(app)
        eventually(lambda: template.poll() != "importing", seconds=60)
        assert template.state == state, (template.failure, template.hazards, self.log.read_text())
        return template

    def fork(self, template: TemplateProcess, worker: str = "w1", script: str = STAY, **more: str) -> ForkedWorker:
        """Fork a worker, which waits to be let go."""
        own = {"TOWLINE_WORKER": worker, "SCRIPT": script, **more}
        environment = {**template._environment, **own}  # noqa: SLF001 - a supervisor has them from its pool
        with self.log.open("ab") as log:
            return template.fork(environment, cwd=str(self.folder), log=log.fileno())

    def abandon(self, worker: ForkedWorker) -> None:
        """End a worker that has not been let go."""
        worker.abandon()
        os.waitpid(worker.pid, 0)

    def processes(self) -> set[int]:
        """Return all living processes of this bench."""
        return marked_processes(str(self.folder))

    def collect(self) -> set[int]:
        """Collect what has come to us in forks, and return what has not ended yet."""
        left = set()
        for template in self.templates:
            left |= {pid for pid in template.orphans if os.waitpid(pid, os.WNOHANG)[0] == 0}
            template.orphans.clear()
            template.orphans |= left
        return left

    def nothing_is_left(self) -> None:
        """Wait until none of its processes lives or waits to be collected."""

        def is_gone() -> bool:
            return (
                all(template.collect() for template in self.templates if template.state not in LIVING)
                and not self.collect()
                and self.processes() <= {t.pid for t in self.templates if not t.is_collected}
                and not procfs.ended_children_of(os.getpid())
            )

        eventually(is_gone, seconds=30)


@contextmanager
def template_bench(folder: Path) -> Iterator[TemplateBench]:
    """Open a bench; none of its processes lives at the end."""
    bench = TemplateBench(folder)
    try:
        yield bench
    finally:
        for template in bench.templates:
            template.end()
            template.wait()
        for pid in bench.processes():
            os.kill(pid, signal.SIGKILL)
        bench.collect()
