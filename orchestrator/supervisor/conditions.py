"""Collect the conditions of a pool's size besides its work: overrides, schedule bounds, and its share of the host.

Reads clocks, files and the host; the decision itself is made in `orchestrator.scaling`.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.capacity.allocation import MOST_AT_A_TIME, Allocation, CapacityDemand, allocate
from orchestrator.capacity.host import SETTLED_SECONDS, HostMeter
from orchestrator.capacity.worker_usage import WorkerUsages
from orchestrator.config import budget
from orchestrator.config.budget import Budget
from orchestrator.config.overrides import NO_OVERRIDES, NOT_DRAINED, Moment, Overrides, describe_overrides
from orchestrator.config.pools import PoolSpec
from orchestrator.config.schedule import Bounds, bounds_at, next_daily
from orchestrator.fleet.workers import Fleet
from orchestrator.runtime import Usage
from orchestrator.runtimes.procfs import boot
from orchestrator.scaling.decision import Conditions, Decision, FinishBy
from orchestrator.state.directory import StateDir
from orchestrator.state.journal import WriteErrors
from orchestrator.supervisor.log_once import LogOnce
from queue_core.log import get_logger

log = get_logger()

Kept = TypeVar("Kept")

KEEP_SECONDS: Final = 60.0
"""Interval between two writes of usage and budgets to disk: a crash loses at most this much of them."""
UNMEASURED_SECONDS: Final = 3.0
"""A worker that is busy for this long and has not been measured counts as never measurable."""

_MEASURED: Final = frozenset({"process", "docker"})
_AT_ONCE: Final = Monotonic(float("-inf"))


class OverrideReader:
    """Operators' overrides for each pool and for the host, read again whenever their files change (ADR 7)."""

    def __init__(self, files: StateDir) -> None:
        self._files = files
        self._mark: tuple[int, int, int] | None = None
        self._overrides: dict[str, Overrides] = {}
        self._host_mark: tuple[int, int, int] | None = None
        self._host_override = NOT_DRAINED
        self._read_errors = LogOnce()
        self._errors: list[str] = []

    def changed(self) -> Mapping[str, Overrides]:
        """Return the overrides of the pools whose overrides changed since the last call."""
        mark = self._files.overrides_mark()
        if mark == self._mark:
            return {}
        try:
            overrides = self._files.read_overrides()
        except ValueError as error:
            self._mark = mark
            self._errors.append(str(error))
            return {}
        except OSError as error:  # the file exists: retry at the next turn
            self._warn(error)
            return {}
        self._read_errors.recovers()
        self._mark = mark
        before, self._overrides = self._overrides, overrides
        changed = [name for name in sorted({*before, *overrides}) if before.get(name) != overrides.get(name)]
        return {name: overrides.get(name, NO_OVERRIDES) for name in changed}

    def in_force(self, pool: str, moment: Moment) -> Overrides:
        """Return the pool's overrides that have not expired at `moment`."""
        found = self._overrides.get(pool)
        return NO_OVERRIDES if found is None else found.in_force(moment)

    def drained_at(self) -> float | None:
        """Return since when this host is drained, in seconds since the epoch; None when it is not."""
        mark = self._files.host_mark()
        if mark != self._host_mark:
            try:
                self._host_override = self._files.read_host_override()
            except ValueError as error:
                self._errors.append(str(error))
            except OSError as error:
                self._warn(error)
                return self._host_override.drained_at
            self._host_mark = mark
        return self._host_override.drained_at

    def take_errors(self) -> list[str]:
        """Return the read errors since the last call."""
        found, self._errors = self._errors, []
        return found

    def _warn(self, error: OSError) -> None:
        if self._read_errors.is_new(error):
            log.warning(events.STATE_NOT_READ, path=str(self._files.path), error=error.strerror)


class ScheduleBounds:
    """Each pool's bounds at a moment: from its windows, deadline and budget, unless an override replaces them."""

    def __init__(self, budgets: Mapping[str, Budget], *, at: Monotonic) -> None:
        """`budgets` are what was left at the instant `at`."""
        self._bounds: dict[str, tuple[PoolSpec, float, Bounds]] = {}
        self._specs: dict[str, tuple[PoolSpec, PoolSpec]] = {}
        self._dailies: dict[str, tuple[float, int]] = {}
        self.replace_budgets(budgets, at=at)

    def replace_budgets(self, budgets: Mapping[str, Budget], *, at: Monotonic) -> None:
        """Take what was left of each budget at the instant `at`."""
        self.budgets = dict(budgets)
        self._spent_at = dict.fromkeys(budgets, at)

    def of(self, spec: PoolSpec, overrides: Overrides, moment: Moment) -> tuple[PoolSpec, Bounds]:
        """Return the pool's spec with its bounds of this moment, and those bounds.

        Returns the identical spec object while nothing changes: callers compare it by identity, and it caches its
        digest.
        """
        bounds = self._bounds_of(spec, overrides, moment)
        if (bounds.min, bounds.max) == (spec.workers.min, spec.workers.max):
            return spec, bounds
        known = self._specs.get(spec.name)
        if known is not None and known[0] is spec:
            workers = known[1].workers
            if (workers.min, workers.max) == (bounds.min, bounds.max):
                return known[1], bounds
        bounded = spec.bounded(bounds.min, bounds.max)
        self._specs[spec.name] = (spec, bounded)
        return bounded, bounds

    def _bounds_of(self, spec: PoolSpec, overrides: Overrides, moment: Moment) -> Bounds:
        if overrides.scale is not None:
            workers = overrides.scale.workers
            return Bounds(workers, workers, f"scaled to {workers} by hand")
        if not spec.schedule:
            return Bounds(spec.workers.min, spec.workers.max)
        wall = moment.wall_seconds
        known = self._bounds.get(spec.name)
        if known is None or known[0] is not spec or not known[1] <= wall < known[2].until:
            known = (spec, wall, bounds_at(spec.workers, spec.schedule, now=wall))
            self._bounds[spec.name] = known
        return known[2]

    def finish_by(self, spec: PoolSpec, overrides: Overrides, moment: Moment) -> FinishBy | None:
        """Return the deadline of the pool's backlog; None without one."""
        if overrides.finish_by is not None:
            left = overrides.finish_by.until.left_seconds(moment)
            return FinishBy(left, moment.wall_seconds + left, overrides.finish_by.utc_offset_seconds)
        if spec.finish_by is None:
            return None
        wall = moment.wall_seconds
        at, offset = self._dailies.get(spec.finish_by, (-math.inf, 0))
        if not wall < at <= wall + 2 * 86_400:
            at, offset = self._dailies[spec.finish_by] = next_daily(spec.finish_by, now=wall)
        return FinishBy(at - wall, at, offset)

    def budget_left(self, spec: PoolSpec, fleet: Fleet, *, now: Monotonic) -> budget.Left:
        """Subtract the worker-hours used up to `now`, and return whether any are left."""
        if spec.budget is None:
            return "left"
        known = self.budgets.get(spec.name) or budget.full_budget(spec.budget)
        elapsed = now - self._spent_at.get(spec.name, now)
        known = known.after(len(fleet.workers), elapsed_seconds=elapsed, hours_per_day=spec.budget)
        self.budgets[spec.name], self._spent_at[spec.name] = known, now
        return known.state

    def forget(self, kept: Collection[str]) -> None:
        """Drop all pools but these."""
        _keep_only(kept, self._bounds)
        _keep_only(kept, self._specs)
        _keep_only(kept, self.budgets)
        _keep_only(kept, self._spent_at)


class CapacityShare:
    """Each pool's share of the host, from what its workers use and what other pools have and want."""

    def __init__(self, host: HostMeter, usages: WorkerUsages) -> None:
        self._host = host
        self._cores = len(os.sched_getaffinity(0))
        self._demanding: dict[str, CapacityDemand] = {}
        self._resting: dict[str, CapacityDemand] = {}
        self._unmeasurable: set[str] = set()
        self.usages = usages

    def allocation(self, spec: PoolSpec, fleet: Fleet, *, now: Monotonic) -> Allocation | None:
        """Return how many workers the pool may add now; None for a pool whose workers run elsewhere."""
        if spec.runtime.is_elsewhere:
            return None
        own = self._demand(spec, fleet, wanted=len(fleet.alive) + MOST_AT_A_TIME, now=now)
        host = self._host.measure(now=now)
        # Only pools that want workers, or have idle ones to give up, compete for the host.
        others = [*self._demanding.values(), *(self._resting.values() if host.is_pressed else ())]
        return allocate(host, [own, *(demand for demand in others if demand.pool != spec.name)])[spec.name]

    def cores(self, *, now: Monotonic) -> int:
        """Return the number of cores available to us; a control group may allow fewer than the host has."""
        return max(1, math.ceil(min(self._cores, self._host.measure(now=now).cores)))

    def start_seconds(self, spec: PoolSpec, fleet: Fleet) -> float | None:
        """Return the CPU seconds of the next start; None when unknown, or spent on another host."""
        usage = self.usages.of(spec.name)
        return usage.next_start_seconds(forks=fleet.forks) if spec.runtime_kind == "process" else None

    def record_demand(self, spec: PoolSpec, fleet: Fleet, decision: Decision) -> None:
        """Record what the pool has and wants of the host, for the turns of the other pools."""
        if spec.runtime.is_elsewhere:
            return
        demand = self._demand(spec, fleet, wanted=decision.unguarded, now=decision.at)
        is_wanting = demand.wanted > demand.alive or demand.starting > 0
        self._demanding.pop(spec.name, None)
        self._resting.pop(spec.name, None)
        if is_wanting:
            self._demanding[spec.name] = demand
        elif demand.idle:
            self._resting[spec.name] = demand

    def is_to_measure(self, spec: PoolSpec, fleet: Fleet) -> bool:
        """Return whether measuring now would show something new: the cost of a start, or of a busy worker."""
        workers = fleet.workers.values()
        if spec.runtime_kind == "process" and any(
            w.started_at is not None and not w.adopted and self.usages.is_start_unknown(spec.name, forked=w.is_forked)
            for w in workers
        ):
            return True
        return self._is_untried(spec) and any(w.state == "busy" for w in workers)

    def learn(self, fleets: Collection[Fleet], usage: Mapping[str, Usage], *, now: Monotonic) -> None:
        """Learn what workers use from a new measurement."""
        self.usages.learn(fleets, usage, now=now)
        self._unmeasurable.update(fleet.pool for fleet in fleets if _is_unmeasurable(fleet, usage, now=now))

    def forget(self, kept: Collection[str]) -> None:
        """Drop all pools but these."""
        self._unmeasurable &= set(kept)
        _keep_only(kept, self._demanding)
        _keep_only(kept, self._resting)
        self.usages.forget(kept)

    def _is_untried(self, spec: PoolSpec) -> bool:
        """Return whether the CPU use of the pool's workers is still unknown and can still be measured."""
        is_measurable = spec.runtime_kind in _MEASURED and spec.name not in self._unmeasurable
        return is_measurable and self.usages.of(spec.name).cores is None

    def _demand(self, spec: PoolSpec, fleet: Fleet, *, wanted: int, now: Monotonic) -> CapacityDemand:
        alive = fleet.alive
        settled_at = now - SETTLED_SECONDS
        usage = self.usages.of(spec.name)
        next_one = replace(usage, memory_bytes=usage.bytes_of(forked=fleet.forks))
        starting = [w for w in alive if w.state == "starting" or not w.memory_bytes]
        return CapacityDemand(
            spec.name,
            len(alive),
            min(wanted, len(alive) if spec.dry_run else spec.workers.max),
            next_one,
            idle=sum(1 for w in alive if w.state == "idle"),
            starting=sum(1 for w in alive if w.started_at is None or w.started_at > settled_at),
            promised_bytes=math.fsum(max(0.0, usage.bytes_of(forked=w.is_forked) - w.memory_bytes) for w in starting),
            priority=spec.priority,
            hung=sum(1 for w in fleet.workers.values() if w.hung_at is not None),
            untried=max(self.cores(now=now), spec.workers.min) if self._is_untried(spec) else None,
        )


class ConditionsTracker:
    """Conditions of all pools of one supervisor, and the part that survives a restart. Belongs to one thread."""

    def __init__(self, files: StateDir, *, clock: MonotonicClock, host: HostMeter | None = None) -> None:
        """`host` is the host whose capacity is shared; this one by default."""
        self._files = files
        self._clock = clock
        self._boot = boot()
        self._keep_at = Monotonic(clock.monotonic() + KEEP_SECONDS)
        self._write_errors = WriteErrors(files.path)
        self._errors: list[str] = []
        usages, budgets, at = self._restored()
        self.overrides = OverrideReader(files)
        self.share = CapacityShare(host or HostMeter(), usages)
        self._bounds = ScheduleBounds(budgets, at=at)

    def of(self, spec: PoolSpec, fleet: Fleet) -> tuple[PoolSpec, Conditions]:
        """Return the pool's spec with its bounds of this moment, and its other conditions."""
        moment = Moment(self._clock.wall_seconds(), self._clock.monotonic(), self._boot)
        now = Monotonic(moment.monotonic)
        overrides = self.overrides.in_force(spec.name, moment)
        bounded, bounds = self._bounds.of(spec, overrides, moment)
        notes = describe_overrides(overrides, moment)
        if bounds.by and overrides.scale is None:
            notes.append(f"{bounds.by}: min {bounds.min}, max {bounds.max}")
        if spec.dry_run:
            notes.append("dry run: no worker is started or stopped")
        conditions = Conditions(
            paused=overrides.paused,
            cores=self.share.cores(now=now),
            start_seconds=self.share.start_seconds(spec, fleet),
            allocation=self.share.allocation(bounded, fleet, now=now),
            budget=self._bounds.budget_left(spec, fleet, now=now),
            bounds_by=bounds.by,
            finish_by=self._bounds.finish_by(spec, overrides, moment),
            notes=tuple(notes),
        )
        return bounded, conditions

    def take_errors(self) -> list[str]:
        """Return each read error once."""
        found, self._errors = [*self._errors, *self.overrides.take_errors()], []
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Drop all pools but these."""
        kept = set(names)
        self._bounds.forget(kept)
        self.share.forget(kept)

    def keep(self, *, at_once: bool = False) -> None:
        """Write usage and budgets to disk, at most once per `KEEP_SECONDS` unless `at_once`."""
        now = self._clock.monotonic()
        if now < self._keep_at and not at_once:
            return
        self._keep_at = Monotonic(now + KEEP_SECONDS)
        budgets = budget.budgets_to_json(self._bounds.budgets, wall_seconds=round(self._clock.wall_seconds(), 3))
        with self._write_errors.logged():
            self._files.write_usage({"budgets": budgets, "appetites": self.share.usages.to_json()})

    def restore(self) -> None:
        """Take up usage and budgets from disk again: another supervisor's were put there."""
        usages, budgets, at = self._restored()
        self.share.usages = usages
        self._bounds.replace_budgets(budgets, at=at)

    def _restored(self) -> tuple[WorkerUsages, Mapping[str, Budget], Monotonic]:
        """Return workers' usage, and the budgets with the instant they were stored at, from an earlier supervisor."""
        usage = self._files.read_usage()
        try:
            usages = WorkerUsages.from_json(usage.get("appetites", {}))
            kept_at, budgets = budget.budgets_from_json(usage["budgets"]) if "budgets" in usage else (0.0, {})
        except ValueError as error:
            self._errors.append(str(error))
            return WorkerUsages(), {}, _AT_ONCE
        ago = max(0.0, self._clock.wall_seconds() - kept_at)
        return usages, budgets, Monotonic(self._clock.monotonic() - ago)


def _keep_only(names: Collection[str], known: dict[str, Kept]) -> None:
    for name in known.keys() - names:
        del known[name]


def _is_unmeasurable(fleet: Fleet, usage: Mapping[str, Usage], *, now: Monotonic) -> bool:
    """Return whether a worker has been busy for long while no worker of the pool could be measured."""
    workers = fleet.workers.values()
    works = any(w.state == "busy" and now - w.since >= UNMEASURED_SECONDS for w in workers)
    return works and not any(w.worker in usage for w in workers)
