"""The state of a run of the demo, for its view, its outcome and its report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from orchestrator.demo.figures import RunFigures, figures_of
from orchestrator.demo.record import DemoRecord
from orchestrator.demo.script import Script
from queue_core.clock import Instant

LogKind = Literal["decision", "note"]
MAX_LOG: Final = 100
BEFORE: Final = Instant(0)


@dataclass(slots=True)
class DemoRun:
    """The state of a run. `log` has messages with their time and kind, the newest last."""

    script: Script
    folder: Path
    began_at: Instant = BEFORE
    elapsed_seconds: float = 0.0
    fed: int = 0
    expected: set[str] = field(default_factory=set)
    record: DemoRecord = field(default_factory=DemoRecord)
    workers: frozenset[str] = frozenset()
    peak_workers: int = 0
    moved_at_seconds: float = 0.0
    """The time of the last progress."""
    decisions: int = 0
    killed: list[tuple[str, Instant]] = field(default_factory=list)
    restarted_seconds: float | None = None
    is_indexed: bool = False
    history: list[RunFigures] = field(default_factory=list)
    log: list[tuple[float, LogKind, str]] = field(default_factory=list)
    logged: int = 0
    """The number of messages so far; `log` keeps the last ones."""
    kept: frozenset[str] = frozenset()
    """The tasks that the store had when the fleet had ended."""
    is_stopped: bool = False
    is_over: bool = False

    @property
    def figures(self) -> RunFigures:
        """The newest figures."""
        return self.history[-1] if self.history else figures_of((), (), now=BEFORE, at_seconds=0.0)

    @property
    def is_done(self) -> bool:
        """Return whether every task is finished or dead."""
        return self.is_indexed and len(self.record.deleted | self.record.died) >= self.script.tasks

    @property
    def tasks(self) -> int:
        """The number of tasks of the run, or of those that were added when the demo is stopped."""
        return len(self.record.added) if self.is_stopped else self.script.tasks

    @property
    def left(self) -> int:
        """The number of tasks that are not done: of all tasks, or of those that were added when the demo is stopped."""
        total = self.figures.total
        return total.ready + total.in_flight if self.is_stopped else max(0, self.script.tasks - total.done)

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes when a task finishes or, at the end, a worker exits."""
        return len(self.record.deleted), len(self.workers) if self.is_done else 0

    def add_to_log(self, kind: LogKind, text: str) -> None:
        """Keep a message, with the present time of the run."""
        self.logged += 1
        self.log = [*self.log[-MAX_LOG:], (self.elapsed_seconds, kind, text)]
