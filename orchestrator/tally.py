"""What happened to one pool since its supervisor began to count: starts, ends, decisions, leases. Only counts."""

from dataclasses import dataclass, field
from typing import Literal

from orchestrator.clock import Monotonic
from orchestrator.decision import Decision, Rule
from orchestrator.exits import Cause
from orchestrator.metrics import Outcome, QueueSample
from orchestrator.waits import NONE, Waits, waits_of

Direction = Literal["up", "down", "hold"]


@dataclass(slots=True)
class Tally:
    """Counts of one pool; changed by one thread, shown to others as a copy.

    `late_leases` are first leases that ended and had begun later than the slo; `waits` are of all that began.
    """

    starts: int = 0
    failed_starts: int = 0
    late_leases: int = 0
    deaths: dict[Cause, int] = field(default_factory=dict)
    decisions: dict[tuple[Rule, Direction], int] = field(default_factory=dict)
    leases: dict[Outcome, int] = field(default_factory=dict)
    waits: Waits = NONE

    def died(self, cause: Cause, *, failed_start: bool) -> None:
        """A worker ended."""
        self.deaths[cause] = self.deaths.get(cause, 0) + 1
        self.failed_starts += failed_start

    def decided(self, decision: Decision) -> None:
        """A decision was made."""
        direction: Direction = "hold"
        if decision.target != decision.current:
            direction = "up" if decision.target > decision.current else "down"
        key = (decision.rule, direction)
        self.decisions[key] = self.decisions.get(key, 0) + 1

    def sampled(self, sample: QueueSample, *, since: Monotonic | None, slo_seconds: float) -> None:
        """Leases began and ended; the sample before this one was made at `since` (None: this is the first)."""
        for lease in sample.finished:
            self.leases[lease.outcome] = self.leases.get(lease.outcome, 0) + 1
            self.late_leases += lease.lease_number == 1 and lease.waited_seconds > slo_seconds
        if since is not None:
            waits = waits_of(sample, elapsed_seconds=sample.at - since, slo_seconds=slo_seconds)
            self.waits = self.waits.after(waits, at=sample.at)

    def copy(self) -> "Tally":
        """The counts as they are now."""
        counts = self.starts, self.failed_starts, self.late_leases
        return Tally(*counts, {**self.deaths}, {**self.decisions}, {**self.leases}, self.waits)
