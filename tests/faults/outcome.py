"""What a fault driver reports: how much was done and broken, and every violation that was proved."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.checker import Violation


@dataclass(slots=True)
class Tally:
    """One scenario's counts so far. `skipped` says why it did not run."""

    scenario: str
    operations: int = 0
    kills: int = 0
    cuts: int = 0
    disk_errors: int = 0
    reopenings: int = 0
    violations: list[Violation] = field(default_factory=list)
    skipped: str = ""

    def found(self, violations: Sequence[Violation], where: str) -> None:
        """Note violations and the point that brings them back."""
        self.violations += [Violation(one.invariant, f"{where}: {one.what}") for one in violations]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a scenario may go on, and from which seed it draws."""

    seconds: float
    seed: int

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
