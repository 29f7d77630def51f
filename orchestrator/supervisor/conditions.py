"""What bears on a pool's size beside its work: what operators ordered, bounds of the hour, its share of the host.

Looks clocks, files and the host up; what follows from them is decided elsewhere.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

import structlog

from orchestrator import events
from orchestrator.capacity.allocation import MOST_AT_A_TIME, Allocation, CapacityDemand, allocate
from orchestrator.capacity.host import SETTLED_SECONDS, HostMeter
from orchestrator.capacity.worker_usage import WorkerUsages
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config import budget
from orchestrator.config.budget import Budget
from orchestrator.config.overrides import NO_OVERRIDES, NOT_DRAINED, Moment, Overrides, describe_overrides
from orchestrator.config.pools import PoolSpec
from orchestrator.config.schedule import Bounds, bounds_at, next_daily
from orchestrator.fleet.workers import Fleet
from orchestrator.log_once import LogOnce
from orchestrator.runtime import Usage
from orchestrator.runtimes.procfs import boot
from orchestrator.scaling.decision import Conditions, Decision, FinishBy
from orchestrator.state.directory import StateDir

log = structlog.get_logger()

Kept = TypeVar("Kept")

KEEP_SECONDS: Final = 60.0
UNTOLD_SECONDS: Final = 3.0
"""A worker that is busy for so long without having been measured will not be measured at all."""

_MEASURED: Final = frozenset({"process", "docker"})
_AT_ONCE: Final = Monotonic(float("-inf"))


class OverrideReader:
    """What operators ordered, of each pool and of the whole host; read anew whenever the files were changed."""

    def __init__(self, files: StateDir) -> None:
        self._files = files
        self._mark: tuple[int, int, int] | None = None
        self._orders: dict[str, Overrides] = {}
        self._host_mark: tuple[int, int, int] | None = None
        self._host_order = NOT_DRAINED
        self._unread = LogOnce()
        self._troubles: list[str] = []

    def changed(self) -> Mapping[str, Overrides]:
        """Return the orders of the pools that were ordered something else since the last call."""
        mark = self._files.orders_mark()
        if mark == self._mark:
            return {}
        try:
            orders = self._files.read_orders()
        except ValueError as error:
            self._mark = mark
            self._troubles.append(str(error))
            return {}
        except OSError as error:  # there is one, and it will be read when that is possible
            self._warn(error)
            return {}
        self._unread.recovers()
        self._mark = mark
        before, self._orders = self._orders, orders
        changed = [name for name in sorted({*before, *orders}) if before.get(name) != orders.get(name)]
        return {name: orders.get(name, NO_OVERRIDES) for name in changed}

    def in_force(self, pool: str, moment: Moment) -> Overrides:
        """Return what is ordered of a pool and not over."""
        found = self._orders.get(pool)
        return NO_OVERRIDES if found is None else found.in_force(moment)

    def drained_at(self) -> float | None:
        """Since when no worker is to be on this host, in seconds since the epoch; None when they may be."""
        mark = self._files.host_mark()
        if mark != self._host_mark:
            try:
                self._host_order = self._files.read_host_order()
            except ValueError as error:
                self._troubles.append(str(error))
            except OSError as error:
                self._warn(error)
                return self._host_order.drained_at
            self._host_mark = mark
        return self._host_order.drained_at

    def take_troubles(self) -> list[str]:
        """Return what could not be read since the last call, and is done without."""
        found, self._troubles = self._troubles, []
        return found

    def _warn(self, error: OSError) -> None:
        if self._unread.is_new(error):
            log.warning(events.STATE_NOT_READ, path=str(self._files.path), error=error.strerror)


class ScheduleBounds:
    """The bounds of each pool at a moment: of its windows, its deadline, its budget, unless an order says otherwise."""

    def __init__(self, budgets: Mapping[str, Budget], *, at: Monotonic) -> None:
        """`budgets` are what was left of them at that instant."""
        self._bounds: dict[str, tuple[PoolSpec, float, Bounds]] = {}
        self._specs: dict[str, tuple[PoolSpec, PoolSpec]] = {}
        self._dailies: dict[str, tuple[float, int]] = {}
        self.budgets = dict(budgets)
        self._spent_at = dict.fromkeys(budgets, at)

    def of(self, spec: PoolSpec, orders: Overrides, moment: Moment) -> tuple[PoolSpec, Bounds]:
        """Return the pool with its bounds of this moment, and those.

        The pool is one and the same value as long as nothing changes: it is compared, and its digest is kept.
        """
        bounds = self._bounds_of(spec, orders, moment)
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

    def _bounds_of(self, spec: PoolSpec, orders: Overrides, moment: Moment) -> Bounds:
        if orders.scale is not None:
            workers = orders.scale.workers
            return Bounds(workers, workers, f"scaled to {workers} by hand")
        if not spec.schedule:
            return Bounds(spec.workers.min, spec.workers.max)
        wall = moment.wall_seconds
        known = self._bounds.get(spec.name)
        if known is None or known[0] is not spec or not known[1] <= wall < known[2].until:
            known = (spec, wall, bounds_at(spec.workers, spec.schedule, now=wall))
            self._bounds[spec.name] = known
        return known[2]

    def finish_by(self, spec: PoolSpec, orders: Overrides, moment: Moment) -> FinishBy | None:
        """Return by when what waits is to be done; None when nobody asked for that."""
        if orders.finish_by is not None:
            left = orders.finish_by.until.left_seconds(moment)
            return FinishBy(left, moment.wall_seconds + left, orders.finish_by.utc_offset_seconds)
        if spec.finish_by is None:
            return None
        wall = moment.wall_seconds
        at, offset = self._dailies.get(spec.finish_by, (-math.inf, 0))
        if not wall < at <= wall + 2 * 86_400:
            at, offset = self._dailies[spec.finish_by] = next_daily(spec.finish_by, now=wall)
        return FinishBy(at - wall, at, offset)

    def budget_left(self, spec: PoolSpec, fleet: Fleet, *, now: Monotonic) -> budget.Left:
        """Return whether worker-hours are left, once those that were used until now are taken off."""
        if spec.budget is None:
            return "left"
        known = self.budgets.get(spec.name) or budget.full_budget(spec.budget)
        elapsed = now - self._spent_at.get(spec.name, now)
        known = known.after(len(fleet.workers), elapsed_seconds=elapsed, hours_per_day=spec.budget)
        self.budgets[spec.name], self._spent_at[spec.name] = known, now
        return known.state

    def forget(self, kept: Collection[str]) -> None:
        """Pools other than these are no more."""
        _keep_only(kept, self._bounds)
        _keep_only(kept, self._specs)
        _keep_only(kept, self.budgets)
        _keep_only(kept, self._spent_at)


class CapacityShare:
    """What of the host each pool may have: by what its workers take, and by what the others have and want."""

    def __init__(self, host: HostMeter, usages: WorkerUsages) -> None:
        self._host = host
        self._cores = len(os.sched_getaffinity(0))
        self._wanting: dict[str, CapacityDemand] = {}
        self._resting: dict[str, CapacityDemand] = {}
        self._untold: set[str] = set()
        self.usages = usages

    def allocation(self, spec: PoolSpec, fleet: Fleet, *, now: Monotonic) -> Allocation | None:
        """Return the workers that the pool may add now; None for one whose workers are elsewhere."""
        if spec.runtime_kind == "external":
            return None
        own = self._claim(spec, fleet, wanted=len(fleet.alive) + MOST_AT_A_TIME, now=now)
        host = self._host.measure(now=now)
        # Of the others only those have a part in it that want something, or have something to give.
        others = [*self._wanting.values(), *(self._resting.values() if host.is_pressed else ())]
        return allocate(host, [own, *(claim for claim in others if claim.pool != spec.name)])[spec.name]

    def cores(self, *, now: Monotonic) -> int:
        """Return the cores that are ours to run on; a control group may allow less than there are."""
        return max(1, math.ceil(min(self._cores, self._host.measure(now=now).cores)))

    def start_seconds(self, spec: PoolSpec) -> float | None:
        """Return the CPU time of one start; None where it is not known, or spent elsewhere."""
        return self.usages.of(spec.name).start_seconds if spec.runtime_kind == "process" else None

    def decided(self, spec: PoolSpec, fleet: Fleet, decision: Decision) -> None:
        """Remember what the pool has and wants of the host, for the turns of the others."""
        if spec.runtime_kind == "external":
            return
        claim = self._claim(spec, fleet, wanted=decision.unguarded, now=decision.at)
        is_wanting = claim.wanted > claim.alive or claim.starting > 0
        self._wanting.pop(spec.name, None)
        self._resting.pop(spec.name, None)
        if is_wanting:
            self._wanting[spec.name] = claim
        elif claim.idle:
            self._resting[spec.name] = claim

    def is_to_measure(self, spec: PoolSpec, fleet: Fleet) -> bool:
        """Whether a measurement now would tell what was not known: what a start takes, or a busy worker."""
        workers = fleet.workers.values()
        if spec.runtime_kind == "process" and self.usages.of(spec.name).start_seconds is None:
            return any(w.started_at is not None and not w.adopted for w in workers)
        return self._is_untried(spec) and any(w.state == "busy" for w in workers)

    def measured(self, fleets: Collection[Fleet], usage: Mapping[str, Usage], *, now: Monotonic) -> None:
        """Learn what workers take from a new measurement."""
        self.usages.learn(fleets, usage, now=now)
        self._untold.update(fleet.pool for fleet in fleets if _is_untold(fleet, usage, now=now))

    def forget(self, kept: Collection[str]) -> None:
        """Pools other than these are no more."""
        self._untold &= set(kept)
        _keep_only(kept, self._wanting)
        _keep_only(kept, self._resting)
        self.usages.forget(kept)

    def _is_untried(self, spec: PoolSpec) -> bool:
        """Whether nobody knows yet how much CPU the pool's workers take, and it can still be found out."""
        is_told = spec.runtime_kind in _MEASURED and spec.name not in self._untold
        return is_told and self.usages.of(spec.name).cores is None

    def _claim(self, spec: PoolSpec, fleet: Fleet, *, wanted: int, now: Monotonic) -> CapacityDemand:
        alive = fleet.alive
        settled_at = now - SETTLED_SECONDS
        usage = self.usages.of(spec.name)
        starting = [w for w in alive if w.state == "starting" or not w.memory_bytes]
        return CapacityDemand(
            spec.name,
            len(alive),
            min(wanted, len(alive) if spec.dry_run else spec.workers.max),
            usage,
            idle=sum(1 for w in alive if w.state == "idle"),
            starting=sum(1 for w in alive if w.started_at is None or w.started_at > settled_at),
            promised_bytes=math.fsum(max(0.0, usage.memory_bytes - w.memory_bytes) for w in starting),
            priority=spec.priority,
            hung=sum(1 for w in fleet.workers.values() if w.hung_at is not None),
            untried=max(self.cores(now=now), spec.workers.min) if self._is_untried(spec) else None,
        )


class ConditionsTracker:
    """The conditions of all pools of one supervisor, and what of them survives a restart. Belongs to one thread."""

    def __init__(self, files: StateDir, *, clock: MonotonicClock, host: HostMeter | None = None) -> None:
        """`host` is the one whose room is shared; this one by default."""
        self._files = files
        self._clock = clock
        self._boot = boot()
        self._keep_at = Monotonic(clock.monotonic() + KEEP_SECONDS)
        self._is_failing = False
        self._troubles: list[str] = []
        usages, budgets, at = self._restored()
        self.overrides = OverrideReader(files)
        self.share = CapacityShare(host or HostMeter(), usages)
        self._bounds = ScheduleBounds(budgets, at=at)

    def of(self, spec: PoolSpec, fleet: Fleet) -> tuple[PoolSpec, Conditions]:
        """The pool with its bounds of this moment, and everything else that bears on its size."""
        moment = Moment(self._clock.wall_seconds(), self._clock.monotonic(), self._boot)
        now = Monotonic(moment.monotonic)
        orders = self.overrides.in_force(spec.name, moment)
        bounded, bounds = self._bounds.of(spec, orders, moment)
        notes = describe_overrides(orders, moment)
        if bounds.by and orders.scale is None:
            notes.append(f"{bounds.by}: min {bounds.min}, max {bounds.max}")
        if spec.dry_run:
            notes.append("dry run: nobody is started or stopped")
        conditions = Conditions(
            paused=orders.paused,
            cores=self.share.cores(now=now),
            start_seconds=self.share.start_seconds(spec),
            allocation=self.share.allocation(bounded, fleet, now=now),
            budget=self._bounds.budget_left(spec, fleet, now=now),
            bounds_by=bounds.by,
            finish_by=self._bounds.finish_by(spec, orders, moment),
            notes=tuple(notes),
        )
        return bounded, conditions

    def troubles(self) -> list[str]:
        """What could not be read, and is done without; told once."""
        found, self._troubles = [*self._troubles, *self.overrides.take_troubles()], []
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Pools other than these are no more."""
        kept = set(names)
        self._bounds.forget(kept)
        self.share.forget(kept)

    def keep(self, *, at_once: bool = False) -> None:
        """Keep once a minute what was used and what workers take."""
        now = self._clock.monotonic()
        if now < self._keep_at and not at_once:
            return
        self._keep_at = Monotonic(now + KEEP_SECONDS)
        try:
            self._files.write_usage(
                {
                    "budgets": budget.budgets_to_json(
                        self._bounds.budgets, wall_seconds=round(self._clock.wall_seconds(), 3)
                    ),
                    "appetites": self.share.usages.to_json(),
                }
            )
        except OSError as error:
            if not self._is_failing:
                log.warning(events.STATE_NOT_WRITTEN, path=str(self._files.path), error=error.strerror)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info(events.STATE_RECOVERED, path=str(self._files.path))
            self._is_failing = False

    def _restored(self) -> tuple[WorkerUsages, Mapping[str, Budget], Monotonic]:
        """Return what workers take, and what was left of budgets at an instant, as an earlier supervisor kept it."""
        usage = self._files.read_usage()
        try:
            usages = WorkerUsages.from_json(usage.get("appetites", {}))
            kept_at, budgets = budget.budgets_from_json(usage["budgets"]) if "budgets" in usage else (0.0, {})
        except ValueError as error:
            self._troubles.append(str(error))
            return WorkerUsages(), {}, _AT_ONCE
        ago = max(0.0, self._clock.wall_seconds() - kept_at)
        return usages, budgets, Monotonic(self._clock.monotonic() - ago)


def _keep_only(names: Collection[str], known: dict[str, Kept]) -> None:
    for name in known.keys() - names:
        del known[name]


def _is_untold(fleet: Fleet, usage: Mapping[str, Usage], *, now: Monotonic) -> bool:
    """Whether a worker works for long, and none of the pool's is told of."""
    workers = fleet.workers.values()
    works = any(w.state == "busy" and now - w.since >= UNTOLD_SECONDS for w in workers)
    return works and not any(w.worker in usage for w in workers)
