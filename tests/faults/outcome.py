"""What a fault driver reports: how much was done and broken, and every violation that was proved."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.checker import Violation


@dataclass(slots=True)
class FaultTally:
    """One scenario's counts so far. `skipped` says why it did not run.

    Attributes:
        operations: calls of a verb, a batch being one; without those that were told that the store can't be reached.
        unknown: those among them that nobody was told the outcome of.
        kills, engine_kills: processes of ours, engines that were killed and started again.
        cuts: power cuts, and connections cut.
        figures: whatever else was measured, by its name with the unit last.
        counts: whatever else was counted, by its name; `summary` tells them in one line.
    """

    scenario: str
    operations: int = 0
    unknown: int = 0
    kills: int = 0
    engine_kills: int = 0
    cuts: int = 0
    disk_errors: int = 0
    reopenings: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    skipped: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    summary: str = ""

    def at_most(self, figure: str, value: float) -> None:
        """Keep the largest value of a figure."""
        self.figures[figure] = max(self.figures.get(figure, value), value)

    def found(self, violations: Sequence[Violation], where: str) -> None:
        """Note violations and the point that brings them back."""
        self.violations += [Violation(one.invariant, f"{where}: {one.what}") for one in violations]


@dataclass(frozen=True, slots=True)
class FaultBudget:
    """How long a scenario may go on, after how many operations it is enough, and from which seed it draws."""

    seconds: float
    seed: int
    operations: int | None = None

    def started(self) -> "Deadline":
        """Begin to count."""
        return Deadline(time.monotonic() + self.seconds)


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of CLOCK_MONOTONIC, seconds."""

    at: float

    @property
    def is_over(self) -> bool:
        """Whether it has come."""
        return time.monotonic() >= self.at

    @property
    def left_seconds(self) -> float:
        """What is left, never negative."""
        return max(0.0, self.at - time.monotonic())
