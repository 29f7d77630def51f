"""Estimates learned from samples: service time, start-up time, arrival rate, slack and outcomes. Pure.

Every estimator is a value and learning returns the next one; together they survive a restart as JSON.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Final

from orchestrator.base.samples import LeaseSample, QueueSample
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Started
from orchestrator.scaling.idle_gaps import IdleGaps
from orchestrator.scaling.node_waits import NodeWaits

_STATE_VERSION: Final = 1
_KEEP_PER_LEASE: Final = 0.5 ** (1 / 200)  # weight that older leases keep per lease: half-life 200 leases
PRIOR_SERVICE_SECONDS: Final = 2.0
_MIN_SERVICE_SECONDS: Final = 0.001
SOON_SECONDS: Final = 0.25
"""The shortest turn of a pool."""
_TURNS_PER_SLO: Final = 8.0
DEFAULT_CHURN_SECONDS: Final = 15.0
FORK_CHURN_SECONDS: Final = 5.0
"""The default `churn` of pools whose workers are forked: 6 % cheaper on random worlds, with 15 % more starts."""
_START_MARGIN: Final = 1.25  # times the mean start: starts vary, and a late worker is a late task
_MEMORY_SECONDS: Final = (20.0, 120.0)  # bounds of the time constant of the arrival rate
_KEEP_OUTCOME: Final = 0.95  # weight that older outcomes keep per lease
_OUTCOMES_NEEDED: Final = 10.0  # decayed leases before a share is reported
_SLACK_GAIN: Final = 0.02  # change of the slack per late task too many or too few
_MIN_SLACK: Final = 0.5
_MAX_SLACK: Final = 0.95
_LEAST_USABLE: Final = 0.2  # share of the slo that is left to plan with in any case
_PEAK_LEASES: Final = 1_000  # finished leases of one sample that count for the peak


@value
class ServiceTime:
    """The service time: decayed sums over finished leases, half-life 200 leases."""

    count: float = 0.0
    seconds: float = 0.0

    def after(self, held_seconds: Sequence[float]) -> "ServiceTime":
        """Learn from leases that finished."""
        if not held_seconds:
            return self
        known = len(held_seconds)
        keep = _KEEP_PER_LEASE**known
        # Decayed per lease, regardless of order: a turn with thousands of leases gets no extra weight.
        weight = (1.0 - keep) / (1.0 - _KEEP_PER_LEASE)
        return ServiceTime(
            self.count * keep + weight,
            self.seconds * keep + math.fsum(held_seconds) / known * weight,
        )

    def mean_seconds(self, running_seconds: Sequence[float] = ()) -> float:
        """Return the mean time a task is held, with one lease of 2 s as the prior.

        `running_seconds` has the age of each running lease; those beyond the mean count before they end. Until one has
        ended, the mean is at least the age of the oldest.
        """
        if not self.count:
            return max(PRIOR_SERVICE_SECONDS, max(running_seconds, default=0.0))
        known = self.count + 1.0
        settled = (self.seconds + PRIOR_SERVICE_SECONDS) / known
        mean_seconds = settled + math.fsum([s - settled for s in running_seconds if s > settled]) / known
        if mean_seconds < _MIN_SERVICE_SECONDS:
            return _MIN_SERVICE_SECONDS
        return mean_seconds


@value
class Startup:
    """The mean time from a spawn to the first lease call. The first one measured replaces the prior."""

    count: int = 0
    mean_seconds: float = 2.0

    def after(self, seconds: Sequence[float]) -> "Startup":
        """Learn from starts that succeeded."""
        known = self
        for s in seconds:
            gain = max(0.1, 1.0 / (known.count + 1))
            known = Startup(known.count + 1, known.mean_seconds + gain * (s - known.mean_seconds))
        return known

    @property
    def planned_seconds(self) -> float:
        """The time that a decision allows for a start."""
        return _START_MARGIN * self.mean_seconds


_PRIOR_FORK: Final = Startup(0, 0.1)


@value
class Outcomes:
    """The outcomes of first leases of tasks: decayed counts, half-life 14 leases.

    Later leases are left out: a task that fails again and again says nothing new about what it depends on.
    """

    failed: float = 0.0
    done: float = 0.0

    def after(self, finished: Sequence[LeaseSample]) -> "Outcomes":
        """Learn from leases that ended."""
        failed, done = self.failed, self.done
        for lease in finished:
            if lease.lease_number == 1:
                failed *= _KEEP_OUTCOME
                done *= _KEEP_OUTCOME
                if lease.outcome == "deleted":
                    done += 1.0
                else:
                    failed += 1.0
        return Outcomes(failed, done)

    @property
    def failed_share(self) -> float:
        """The share of first leases that failed; 0 until about ten are known."""
        total = self.failed + self.done
        return self.failed / total if total > _OUTCOMES_NEEDED else 0.0


def turn_seconds_of(spec: PoolSpec, *, forks: bool) -> float:
    """Return the interval between a pool's decisions, while it has workers or tasks.

    Where workers are forked a turn may be longer than a start: then it is an eighth of the slo, from a quarter of a
    second, so that a burst at busy workers is seen in time and no worker has to be kept warm for it.
    """
    if not forks:
        return spec.turn_seconds
    return min(spec.turn_seconds, max(SOON_SECONDS, spec.slo / _TURNS_PER_SLO))


@value
class Estimates:
    """All estimates of one pool.

    `arrival_rate` is a moving average of tasks that become leasable per second; `slack` is the share of the slo that is
    planned with, in [0.5, 0.95], learned so that the share of late tasks meets `eps` (1.5 % cheaper on the recorded
    suite than a fixed 0.8).

    Starts are learned by kind: one `forked` from a process that has imported its application takes a hundredth of one
    that is `executed`. `forks` says of which kind the pool's next start is, `waits_for_node` whether it will have to
    wait for a node.
    """

    service: ServiceTime = ServiceTime()
    executed: Startup = Startup()
    arrival_rate: float = 0.0
    slack: float = 0.8
    gaps: IdleGaps = IdleGaps()
    outcomes: Outcomes = Outcomes()
    forked: Startup = _PRIOR_FORK
    forks: bool = False
    nodes: NodeWaits = NodeWaits()
    waits_for_node: bool = False

    @property
    def startup(self) -> Startup:
        """The starts to plan with: those of the next start's kind, with its wait for a node if it has to have one."""
        if self.forks:
            return self.forked
        if self.waits_for_node:
            return Startup(self.executed.count, self.executed.mean_seconds + self.nodes.usual_seconds)
        return self.executed

    @property
    def starts(self) -> int:
        """The number of starts that were measured, of both kinds."""
        return self.executed.count + self.forked.count

    def turn_seconds(self, spec: PoolSpec) -> float:
        """Return the interval between the pool's decisions."""
        return turn_seconds_of(spec, forks=self.forks)

    def usable_slo_seconds(self, spec: PoolSpec) -> float:
        """Return the part of the slo to plan with: its slack share, less the turn until the next sample."""
        slo_seconds = spec.slo
        usable_seconds, least_seconds = self.slack * slo_seconds - self.turn_seconds(spec), _LEAST_USABLE * slo_seconds
        if usable_seconds < least_seconds:
            return least_seconds
        return usable_seconds

    def after(
        self,
        sample: QueueSample,
        summary: "LeaseActivity",
        *,
        started: Sequence[Started],
        forks: bool,
        needed: int,
        elapsed_seconds: float,
        spec: PoolSpec,
        size: int = 0,
        unplaced: int = 0,
    ) -> "Estimates":
        """Learn from a new sample.

        Args:
            sample: the new sample.
            summary: the summary of its leases.
            started: the starts that ended since the previous sample.
            forks: whether the next start is a fork.
            needed: the fleet that the work since the previous sample needed, in workers.
            elapsed_seconds: since the previous sample, more than 0.
            spec: the pool.
            size: the number of workers, of which `unplaced` wait for a node.
        """
        slo_seconds, begun, late, held_seconds = spec.slo, summary.begun, summary.late, summary.finished_seconds
        executed, forked, nodes = self.executed, self.forked, self.nodes
        if started:
            executed = executed.after([one.seconds for one in started if not (one.is_forked or one.is_cold)])
            nodes = nodes.after(started, size=size)
            forked = forked.after([one.seconds for one in started if one.is_forked])
        startup = forked if forks else executed
        memory_seconds = _clamped(_MEMORY_SECONDS[0], slo_seconds + startup.mean_seconds, _MEMORY_SECONDS[1])
        keep = math.exp(-elapsed_seconds / memory_seconds)
        slack = self.slack + _SLACK_GAIN * (spec.eps * begun - late)
        return Estimates(
            self.service.after(held_seconds),
            executed,
            keep * self.arrival_rate + (1.0 - keep) * sample.arrivals / elapsed_seconds,
            _clamped(_MIN_SLACK, slack, _MAX_SLACK),
            self.gaps.after(needed, at=sample.at, turn_seconds=self.turn_seconds(spec)),
            self.outcomes.after(sample.finished) if held_seconds else self.outcomes,
            forked,
            forks,
            nodes,
            bool(nodes.seconds) and (unplaced > 0 or nodes.is_expected(size=size)),
        )

    def restart_seconds(self, spec: PoolSpec) -> float:
        """Return the cost of letting a worker go and needing it again, in worker-seconds."""
        churn = FORK_CHURN_SECONDS if self.forks and spec.churn == DEFAULT_CHURN_SECONDS else spec.churn
        return self.startup.mean_seconds + churn

    def to_json(self) -> dict[str, object]:
        """Return plain values with a version; instants are left out, as they are valid for one boot only."""
        return {
            "version": _STATE_VERSION,
            "service": asdict(self.service),
            "startup": asdict(self.executed),
            "forked": asdict(self.forked),
            "forks": self.forks,
            "arrival_rate": self.arrival_rate,
            "slack": self.slack,
            "gaps": self.gaps.to_json(),
            **({"nodes": self.nodes.to_json()} if self.nodes.seconds else {}),
        }

    @staticmethod
    def from_json(data: object) -> "Estimates":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping) or data.get("version") != _STATE_VERSION:
            raise ValueError(f"not a state of version {_STATE_VERSION}")
        slack = _number(data.get("slack"), "slack")
        return Estimates(
            service=ServiceTime(**_numbers(data.get("service"), ServiceTime)),
            executed=_startup(_numbers(data.get("startup"), Startup)),
            arrival_rate=_number(data.get("arrival_rate"), "arrival_rate"),
            slack=_clamped(_MIN_SLACK, slack, _MAX_SLACK),
            gaps=IdleGaps.from_json(data.get("gaps")),
            forked=_startup(_numbers(data.get("forked", asdict(_PRIOR_FORK)), Startup)),
            forks=data.get("forks") is True,
            nodes=NodeWaits.from_json(data.get("nodes", {})),
        )


@value
class LeaseActivity:
    """The summary of a sample's leases.

    `running_seconds` and `finished_seconds` say how long each was held; `begun` counts those that began since the
    previous sample, `late` those of them that waited longer than the slo; `done_seconds` is the work done since, in
    slot-seconds.
    """

    running_seconds: Sequence[float]
    finished_seconds: Sequence[float]
    begun: int
    late: int
    done_seconds: float


def activity(sample: QueueSample, *, elapsed_seconds: float, slo_seconds: float) -> LeaseActivity:
    """Summarise a sample's leases; the previous sample was `elapsed_seconds` ago."""
    running: list[float] = []
    finished: list[float] = []
    begun = late = 0
    done: list[float] = []
    for lease in sample.running:
        held = lease.held_seconds
        running.append(held)
        if held < elapsed_seconds:
            begun += 1
            late += lease.waited_seconds > slo_seconds
            done.append(held)
        else:
            done.append(elapsed_seconds)
    done_seconds = math.fsum(done)
    for ended in sample.finished:
        held, ago = ended.held_seconds, ended.ended_seconds_ago
        finished.append(held)
        if held + ago < elapsed_seconds:
            begun += 1
            late += ended.waited_seconds > slo_seconds
        within = elapsed_seconds - ago
        if within > 0.0:
            if held < within:
                within = held
            done_seconds += within
    return LeaseActivity(running, finished, begun, late, done_seconds)


def peak_leases(sample: QueueSample, *, elapsed_seconds: float) -> int:
    """Return the most leases held at one time since the previous sample.

    At most the last 1,000 finished leases count: in a fleet that finishes more in a turn, the held ones suffice.
    """
    if not sample.finished:
        return len(sample.running)
    steps: list[tuple[float, int]] = []
    for lease in sample.finished[-_PEAK_LEASES:]:
        ended = -lease.ended_seconds_ago
        steps.append((max(-elapsed_seconds, ended - lease.held_seconds), 1))
        steps.append((ended, -1))
    steps.extend((max(-elapsed_seconds, -lease.held_seconds), 1) for lease in sample.running)
    peak = held = 0
    for _, change in sorted(steps):
        held += change
        peak = max(peak, held)
    return peak


def _clamped(low: float, number: float, high: float) -> float:
    """Return the number, clamped to the bounds."""
    if number < low:
        return low
    if number > high:
        return high
    return number


def _startup(numbers: dict[str, float]) -> Startup:
    return Startup(int(numbers["count"]), numbers["mean_seconds"])


def _numbers(data: object, kind: type[ServiceTime | Startup]) -> dict[str, float]:
    if not isinstance(data, Mapping):
        raise ValueError(f"not a {kind.__name__}: {data!r}")  # noqa: TRY004  callers handle one class of error
    return {f.name: _number(data.get(f.name), f"{kind.__name__}.{f.name}") for f in fields(kind)}


def _number(given: object, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= sys.float_info.max:
        raise ValueError(f"{name} must be a number, 0 or more: {given!r}")
    return float(given)
