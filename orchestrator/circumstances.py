"""What bears on a pool's size beside its work: bounds of the hour, people's orders, the host's room, its budget.

Looks clocks, files and the host up; what follows from them is decided elsewhere.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import structlog

from orchestrator import budget, events
from orchestrator.appetite import Appetites
from orchestrator.budget import Budget
from orchestrator.clock import Clock, Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import Conditions, Decision, FinishBy
from orchestrator.fleet import Fleet
from orchestrator.host import SETTLED_SECONDS, HostMeter
from orchestrator.orders import NO_ORDERS, NOT_DRAINED, Moment, Orders, told
from orchestrator.room import MOST_AT_A_TIME, Claim, Host, Room, shared
from orchestrator.runtime import Usage
from orchestrator.runtimes.procfs import boot
from orchestrator.schedule import Bounds, bounds_at, next_daily
from orchestrator.state import StateDir
from orchestrator.trouble import Trouble

log = structlog.get_logger()

KEEP_SECONDS: Final = 60.0
UNTOLD_SECONDS: Final = 3.0
"""A worker that is busy for so long without having been measured will not be measured at all."""

_MEASURED: Final = frozenset({"process", "docker"})
_AT_ONCE: Final = Monotonic(float("-inf"))


class Circumstances:
    """The circumstances of all pools of one supervisor. Belongs to one thread."""

    def __init__(self, files: StateDir, *, clock: Clock, host: HostMeter | None = None) -> None:
        """`host` is the one whose room is shared; this one by default."""
        self._files = files
        self._clock = clock
        self._host = host or HostMeter()
        self._cores = len(os.sched_getaffinity(0))
        self._boot = boot()
        self._mark: tuple[int, int, int] | None = None
        self._orders: dict[str, Orders] = {}
        self._host_mark: tuple[int, int, int] | None = None
        self._host_order = NOT_DRAINED
        self._unread = Trouble()
        self._bounds: dict[str, tuple[PoolSpec, float, Bounds]] = {}
        self._specs: dict[str, tuple[PoolSpec, PoolSpec]] = {}
        self._dailies: dict[str, tuple[float, int]] = {}
        self._wanting: dict[str, Claim] = {}
        self._resting: dict[str, Claim] = {}
        self._untold: set[str] = set()
        self._keep_at = Monotonic(clock.monotonic() + KEEP_SECONDS)
        self._is_failing = False
        self._troubles: list[str] = []
        self.appetites, self._budgets, self._spent_at = self._restored()

    # -- what was asked -------------------------------------------------------------------------------------------

    def heed_orders(self) -> Mapping[str, Orders]:
        """Read the orders anew when they were changed; those of the pools that were asked something else."""
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
            if self._unread.is_news(error):
                log.warning(events.STATE_NOT_READ, path=str(self._files.path), error=error.strerror)
            return {}
        self._unread.ends()
        self._mark = mark
        before, self._orders = self._orders, orders
        changed = [name for name in sorted({*before, *orders}) if before.get(name) != orders.get(name)]
        return {name: orders.get(name, NO_ORDERS) for name in changed}

    def drained_at(self) -> float | None:
        """Since when no worker is to be on this host, in seconds since the epoch; None when they may be."""
        mark = self._files.host_mark()
        if mark != self._host_mark:
            try:
                self._host_order = self._files.read_host_order()
            except ValueError as error:
                self._troubles.append(str(error))
            except OSError as error:
                if self._unread.is_news(error):
                    log.warning(events.STATE_NOT_READ, path=str(self._files.path), error=error.strerror)
                return self._host_order.drained_at
            self._host_mark = mark
        return self._host_order.drained_at

    def troubles(self) -> list[str]:
        """What could not be read, and is done without; told once."""
        found, self._troubles = self._troubles, []
        return found

    # -- what bears on a decision ---------------------------------------------------------------------------------

    def of(self, spec: PoolSpec, fleet: Fleet) -> tuple[PoolSpec, Conditions]:
        """The pool with its bounds of this moment, and everything else that bears on its size."""
        moment = self._moment()
        found = self._orders.get(spec.name)
        orders = NO_ORDERS if found is None else found.in_force(moment)
        bounds = self._bounds_of(spec, orders, moment)
        notes = told(orders, moment)
        if bounds.by and orders.scale is None:
            notes.append(f"{bounds.by}: min {bounds.min}, max {bounds.max}")
        if spec.dry_run:
            notes.append("dry run: nobody is started or stopped")
        is_process, bounded = spec.runtime_kind == "process", self._bounded(spec, bounds)
        now = Monotonic(moment.monotonic)
        conditions = Conditions(
            paused=orders.paused,
            cores=self._cores_of(self._host.look(now=now)),
            start_seconds=self.appetites.of(spec.name).start_seconds if is_process else None,
            room=self._room(bounded, fleet, now=now),
            budget=self._budget(spec, fleet, now=now),
            bounds_by=bounds.by,
            finish_by=self._finish_by(spec, orders, moment),
            notes=tuple(notes),
        )
        return bounded, conditions

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

    def forget(self, names: Iterable[str]) -> None:
        """Pools other than these are no more."""
        kept = set(names)
        self._untold &= kept
        for name in {*self._bounds, *self._specs, *self._wanting, *self._resting, *self._budgets} - kept:
            self._bounds.pop(name, None)
            self._specs.pop(name, None)
            self._wanting.pop(name, None)
            self._resting.pop(name, None)
            self._budgets.pop(name, None)
            self._spent_at.pop(name, None)
        self.appetites.forget(kept)

    def is_untried(self, spec: PoolSpec) -> bool:
        """Whether nobody knows yet how much CPU the pool's workers take, and it can still be found out."""
        is_told = spec.runtime_kind in _MEASURED and spec.name not in self._untold
        return is_told and self.appetites.of(spec.name).cores is None

    def is_to_measure(self, spec: PoolSpec, fleet: Fleet) -> bool:
        """Whether a measurement now would tell what was not known: what a start takes, or a busy worker."""
        workers = fleet.workers.values()
        if spec.runtime_kind == "process" and self.appetites.of(spec.name).start_seconds is None:
            return any(w.started_at is not None and not w.adopted for w in workers)
        return self.is_untried(spec) and any(w.state == "busy" for w in workers)

    def measured(self, fleets: Collection[Fleet], usage: Mapping[str, Usage], *, now: Monotonic) -> None:
        """Learn what workers take from a new measurement."""
        self.appetites.learn(fleets, usage, now=now)
        self._untold.update(fleet.pool for fleet in fleets if _is_untold(fleet, usage, now=now))

    def keep(self, *, at_once: bool = False) -> None:
        """Keep once a minute what was used and what workers take."""
        now = self._clock.monotonic()
        if now < self._keep_at and not at_once:
            return
        self._keep_at = Monotonic(now + KEEP_SECONDS)
        try:
            self._files.write_usage(
                {
                    "budgets": budget.kept(self._budgets, wall_seconds=round(self._clock.wall_seconds(), 3)),
                    "appetites": self.appetites.to_json(),
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

    def _restored(self) -> tuple[Appetites, dict[str, Budget], dict[str, Monotonic]]:
        usage = self._files.read_usage()
        try:
            appetites = Appetites.from_json(usage.get("appetites", {}))
            kept_at, budgets = budget.found(usage["budgets"]) if "budgets" in usage else (0.0, {})
        except ValueError as error:
            self._troubles.append(str(error))
            return Appetites(), {}, {}
        ago = max(0.0, self._clock.wall_seconds() - kept_at)
        then = Monotonic(self._clock.monotonic() - ago)
        return appetites, budgets, dict.fromkeys(budgets, then)

    def _moment(self) -> Moment:
        return Moment(self._clock.wall_seconds(), self._clock.monotonic(), self._boot)

    def _bounds_of(self, spec: PoolSpec, orders: Orders, moment: Moment) -> Bounds:
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

    def _bounded(self, spec: PoolSpec, bounds: Bounds) -> PoolSpec:
        """One and the same value as long as nothing changes: it is compared, and its digest is kept."""
        if (bounds.min, bounds.max) == (spec.workers.min, spec.workers.max):
            return spec
        known = self._specs.get(spec.name)
        if known is not None and known[0] is spec:
            workers = known[1].workers
            if (workers.min, workers.max) == (bounds.min, bounds.max):
                return known[1]
        bounded = spec.bounded(bounds.min, bounds.max)
        self._specs[spec.name] = (spec, bounded)
        return bounded

    def _finish_by(self, spec: PoolSpec, orders: Orders, moment: Moment) -> FinishBy | None:
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

    def _room(self, spec: PoolSpec, fleet: Fleet, *, now: Monotonic) -> Room | None:
        if spec.runtime_kind == "external":
            return None
        own = self._claim(spec, fleet, wanted=len(fleet.alive) + MOST_AT_A_TIME, now=now)
        host = self._host.look(now=now)
        # Of the others only those have a part in it that want something, or have something to give.
        others = [*self._wanting.values(), *(self._resting.values() if host.is_pressed else ())]
        return shared(host, [own, *(claim for claim in others if claim.pool != spec.name)])[spec.name]

    def _cores_of(self, host: Host) -> int:
        """The cores that are ours to run on; a control group may allow less than there are."""
        return max(1, math.ceil(min(self._cores, host.cores)))

    def _claim(self, spec: PoolSpec, fleet: Fleet, *, wanted: int, now: Monotonic) -> Claim:
        alive = fleet.alive
        settled_at = now - SETTLED_SECONDS
        appetite = self.appetites.of(spec.name)
        starting = [w for w in alive if w.state == "starting" or not w.memory_bytes]
        return Claim(
            spec.name,
            len(alive),
            min(wanted, len(alive) if spec.dry_run else spec.workers.max),
            appetite,
            idle=sum(1 for w in alive if w.state == "idle"),
            starting=sum(1 for w in alive if w.started_at is None or w.started_at > settled_at),
            promised_bytes=math.fsum(max(0.0, appetite.memory_bytes - w.memory_bytes) for w in starting),
            priority=spec.priority,
            hung=sum(1 for w in fleet.workers.values() if w.hung_at is not None),
            untried=self._most_untried(spec, now=now) if self.is_untried(spec) else None,
        )

    def _most_untried(self, spec: PoolSpec, *, now: Monotonic) -> int:
        return max(self._cores_of(self._host.look(now=now)), spec.workers.min)

    def _budget(self, spec: PoolSpec, fleet: Fleet, *, now: Monotonic) -> budget.Left:
        if spec.budget is None:
            return "left"
        known = self._budgets.get(spec.name) or budget.full(spec.budget)
        elapsed = now - self._spent_at.get(spec.name, now)
        known = known.after(len(fleet.workers), elapsed_seconds=elapsed, hours_per_day=spec.budget)
        self._budgets[spec.name], self._spent_at[spec.name] = known, now
        return known.state


def _is_untold(fleet: Fleet, usage: Mapping[str, Usage], *, now: Monotonic) -> bool:
    """Whether a worker works for long, and none of the pool's is told of."""
    workers = fleet.workers.values()
    works = any(w.state == "busy" and now - w.since >= UNTOLD_SECONDS for w in workers)
    return works and not any(w.worker in usage for w in workers)
