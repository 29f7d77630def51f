"""The result of a fault scenario: counts of operations and faults, and every proved violation."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.checker import Violation


@dataclass(slots=True)
class FaultTally:
    """One scenario's counts so far. `skipped` says why it did not run.

    Attributes:
        operations: calls of a verb, a batch being one; without calls that could not reach the store.
        unknown: the operations with unknown outcome.
        kills, engine_kills: processes of ours, and engines, that were killed and restarted.
        cuts: power cuts, and connections cut.
        figures: other measurements, by name with the unit last.
        counts: other counts, by name; `summary` describes them in one line.
        checked: what was read of the reopened stores, by name.
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
    checked: "Counter[str]" = field(default_factory=Counter)

    def at_most(self, figure: str, value: float) -> None:
        """Keep the largest value of a figure."""
        self.figures[figure] = max(self.figures.get(figure, value), value)

    def found(self, violations: Sequence[Violation], where: str) -> None:
        """Record violations and the point that reproduces them."""
        self.violations += [Violation(one.invariant, f"{where}: {one.what}") for one in violations]


@dataclass(frozen=True, slots=True)
class FaultBudget:
    """The time limit, the number of operations that is enough, and the seed of a scenario."""

    seconds: float
    seed: int
    operations: int | None = None

    def started(self) -> "Deadline":
        """Start the deadline."""
        return Deadline(time.monotonic() + self.seconds)


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of CLOCK_MONOTONIC, seconds."""

    at: float

    @property
    def is_over(self) -> bool:
        """Return whether it has passed."""
        return time.monotonic() >= self.at

    @property
    def left_seconds(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())
