"""The pools of one supervisor: which there are, whose turn it is, and what is done at once when a worker ends."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.diff import PoolChange, changes_between
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.fleet.exits import ENDS_WELL
from orchestrator.fleet.external import without_external
from orchestrator.fleet.workers import Fleet, RememberedWorker, Worker, adopted, cause_in, exited, measured, recalled
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, Runtime, WorkerHandle
from orchestrator.scaling.guards import turn_seconds_after
from orchestrator.scaling.plan import WorkerRemoval
from orchestrator.scaling.sharing import order_of
from orchestrator.source import WorkSource
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.conditions import ConditionsTracker
from orchestrator.supervisor.executor import PlanExecutor
from orchestrator.supervisor.pool import ASLEEP_SECONDS, AT_ONCE, Pool, WorkerFailure, state_of
from orchestrator.supervisor.pool_cycle import PoolTurn
from orchestrator.supervisor.post_mortem import PostMortems, WorkerEnd
from orchestrator.supervisor.quarantine_runner import QuarantineRunner

log = structlog.get_logger()

USAGE_SECONDS: Final = 5.0
UNTRIED_USAGE_SECONDS: Final = 0.2
"""The same while pools wait for a first measurement."""
NOTHING_KEPT: Final[Mapping[str, RememberedWorker]] = {}


class Reconciler:
    """The pools of one supervisor, turn by turn. Belongs to one thread."""

    def __init__(
        self,
        *,
        source: WorkSource,
        runtime: Runtime,
        clock: MonotonicClock,
        files: StateDir,
        launch: Launch,
        identify: Callable[[str], str],
        may_act: Callable[[], bool] = lambda: True,
        conditions: ConditionsTracker | None = None,
    ) -> None:
        """`identify` makes a fresh identity from a pool's name; `may_act`: whether to change the fleet right now."""
        self._source = source
        self._runtime = runtime
        self._clock = clock
        self._files = files
        self._may_act = may_act
        self._acts = PlanExecutor(
            source=source, runtime=runtime, clock=clock, launch=launch, identify=identify, may_act=may_act
        )
        self._morgue = PostMortems(source, files, clock=clock)
        self._errands = QuarantineRunner(source=source, runtime=runtime, clock=clock, launch=launch, identify=identify)
        self._conditions = conditions or ConditionsTracker(files, clock=clock)
        self.pools: dict[str, Pool] = {}
        self._turn = PoolTurn(
            source=source,
            clock=clock,
            files=files,
            acts=self._acts,
            errands=self._errands,
            conditions=self._conditions,
            may_act=may_act,
            pools=self.pools,
        )
        self._measured_at = AT_ONCE

    @property
    def workers(self) -> dict[str, str]:
        """Every worker that is ours to end, and its pool."""
        return {
            name: pool.name
            for pool in self.pools.values()
            for name, worker in pool.fleet.workers.items()
            if not worker.is_external
        }

    # -- the set of pools -----------------------------------------------------------------------------------------

    def set_pools(
        self, specs: Mapping[str, PoolSpec], *, learned: Mapping[str, object] | None = None
    ) -> list[PoolChange]:
        """Work with these pools from now on; returns what is different.

        A pool that did not change is not touched; the workers of one that is gone finish what they hold and go; one
        whose settings changed has its workers replaced by the turns that follow, new before old.
        """
        now = self._clock.monotonic()
        changes = changes_between({name: pool.spec for name, pool in self.pools.items() if pool.spec}, specs)
        for name, spec in specs.items():
            known = self.pools.get(name)
            if known is None:
                self.pools[name] = Pool(name, spec, Fleet(name), state_of(name, learned or {}))
            elif known.spec != spec:
                log.info(events.POOL_CHANGED, pool=name, replaces=_digest(known.spec) != spec.digest())
                known.spec, known.due_at = spec, AT_ONCE
                if spec.runtime_kind != "external":
                    known.fleet = without_external(known.fleet)
        for pool in list(self.pools.values()):
            if pool.name not in specs and pool.spec is not None:
                log.info(events.POOL_CHANGED, pool=pool.name, removed=True)
                pool.grace_seconds = pool.spec.grace
                pool.spec = None
                self._finish_pool(pool, why="its pool was removed", now=now)
                self._forget_if_empty(pool)
        self._conditions.forget(specs)
        return changes

    def adopt(self, roster: Sequence[WorkerHandle], *, memories: Mapping[str, RememberedWorker] = NOTHING_KEPT) -> None:
        """Take over the workers that an earlier supervisor left, and bury those of its `roster` that are gone.

        `memories` tell whom it had asked to finish, and whom it was replacing: that goes on where it was.
        """
        now = self._clock.monotonic()
        found = self._runtime.adopt(remembered=roster, now=now)
        for handle in found:
            self._adopted(handle, now=now)
        living = {handle.worker for handle in found}
        for pool in self.pools.values():
            pool.fleet = recalled(pool.fleet, memories)
            if pool.spec is None:
                self._finish_pool(pool, why="its pool is not in the settings", now=now)
        for handle in roster:
            if handle.worker not in living:
                self._morgue.missing(handle.worker, pool=handle.pool)

    def _adopted(self, handle: WorkerHandle, *, now: Monotonic) -> None:
        pool = self.pools.setdefault(handle.pool, Pool(handle.pool, None, Fleet(handle.pool)))
        pool.fleet = adopted(
            pool.fleet,
            worker=handle.worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
            now=now,
        )
        log.info(events.WORKER_ADOPTED, pool=handle.pool, worker=handle.worker, ref=handle.ref)

    # -- what happens ---------------------------------------------------------------------------------------------

    def reap(self) -> bool:
        """Collect the workers that ended, give back what they held at once; True when there were any."""
        now = self._clock.monotonic()
        exits = self._runtime.reap(now=now)
        self._morgue.bury([self._end_of(ended) for ended in exits])
        for ended in exits:
            self._ended(ended, now=now)
        self._suspect()
        return bool(exits)

    def _end_of(self, ended: Exit) -> WorkerEnd:
        pool = self.pools.get(ended.pool) or Pool(ended.pool, None, Fleet(ended.pool))
        cause, detail = cause_in(pool.fleet, ended)
        asked = _asked_seconds(ended, pool.fleet.workers.get(ended.worker), pool.spec)
        return WorkerEnd(ended.worker, pool.name, cause, detail, pool.spec, len(pool.suspects), ended.is_stopped, asked)

    def _suspect(self) -> None:
        """Put the suspects of the dead in line for workers of their own."""
        for name, suspect in self._morgue.take_suspects():
            if name in self.pools:
                self.pools[name].suspects += (suspect,)
                self.pools[name].due_at = AT_ONCE

    def _ended(self, ended: Exit, *, now: Monotonic) -> None:
        pool = self.pools.setdefault(ended.pool, Pool(ended.pool, None, Fleet(ended.pool)))
        held = self._morgue.held(ended.worker)
        pool.fleet, death = exited(pool.fleet, ended, now=now, held=held, worked=self._has_worked(pool, ended))
        pool.tally.died(death.cause, failed_start=death.failed_start)
        if death.failed_start or death.cause not in ENDS_WELL:
            pool.last_failure = WorkerFailure(now, f"{death.worker} {death.cause}: {death.detail}")
        pool.due_at = AT_ONCE
        if pool.errands:
            self._errands.over(pool, ended.worker, cause=death.cause, held=held)
        self._morgue.certify(death, ended)
        self._forget_if_empty(pool)

    def _has_worked(self, pool: Pool, ended: Exit) -> Literal["yes", "no"]:
        """Whether a worker of which no sample told any work did some: it may have come and gone between two."""
        worker = pool.fleet.workers.get(ended.worker)
        if pool.spec is None or worker is None or worker.finished or worker.is_leaving:
            return "no"
        try:
            return "yes" if self._source.has_worked(ended.worker, pool.spec) else "no"
        except SourceUnavailableError:
            return "no"

    def _forget_if_empty(self, pool: Pool) -> None:
        if pool.spec is None and not pool.fleet.workers:
            del self.pools[pool.name]

    def arrived(self, name: str) -> None:
        """Something happened to a pool, as a task arrived where nobody was: its turn is now."""
        if name in self.pools:
            self.pools[name].due_at = AT_ONCE

    def waiting_pools(self) -> list[PoolSpec]:
        """Pools with nobody who stays to lease, and nothing to be leased when last looked at: an arrival is news."""
        return [
            pool.spec
            for pool in self.pools.values()
            if pool.spec and not pool.fleet.alive and pool.sample is not None and not pool.sample.ready
        ]

    # -- turns ----------------------------------------------------------------------------------------------------

    def next_turn_at(self) -> Monotonic | None:
        """When the next pool is due; None when there is none."""
        return min((pool.due_at for pool in self.pools.values()), default=None)

    def turns(self) -> bool:
        """A turn of every pool that is due, or was asked something; False when one of them failed.

        First all of them look and wish, then they act: pools of one host share its room by what each of them wants.
        Those of higher priority come first: where pools share tasks, what one does counts for the next.
        """
        self._morgue.bury(())
        self._suspect()
        for name, orders in self._conditions.overrides.changed().items():
            log.info(events.POOL_OVERRIDDEN, pool=name, orders=orders.to_json())
            self.arrived(name)
        for trouble in self._conditions.troubles():
            log.warning(events.STATE_DISCARDED, error=trouble)
        now = self._clock.monotonic()
        due = sorted([pool for pool in self.pools.values() if now >= pool.due_at], key=_place_of)
        self._turn.look_ahead(due)
        looked = [pool for pool in due if self._tried(pool, self._look)]
        acted = [pool for pool in looked if self._tried(pool, self._turn.settle)]
        for pool in acted:
            if pool.trouble.recovers():
                log.info(events.TURN_RECOVERED, pool=pool.name)
        self._conditions.keep()
        return len(acted) == len(due)

    def _tried(self, pool: Pool, step: Callable[[Pool], None]) -> bool:
        try:
            step(pool)
        except Exception as error:
            if pool.trouble.is_new(error):
                log.exception(events.TURN_FAILED, pool=pool.name)
            return False
        return True

    def _look(self, pool: Pool) -> None:
        """See what there is to do, and what the pool wishes."""
        now = self._clock.monotonic()
        pool.effective = None
        # Moved on first: a turn that fails must not be tried again at once.
        pool.due_at = Monotonic(now + (pool.spec.turn_seconds if pool.spec else 1.0))
        self._measure(pool, now)
        if pool.spec is None:
            self._finish_pool(pool, why="its pool is not in the settings", now=now)
            self._end_overdue(pool, now=now)
            return
        self._turn.look(pool, pool.spec)
        pool.due_at = Monotonic(now + turn_seconds_after(pool.decision, pool.conditions, pool.spec))
        if pool.is_asleep:
            pool.due_at = Monotonic(now + max(pool.spec.turn_seconds, ASLEEP_SECONDS))

    def _measure(self, pool: Pool, now: Monotonic) -> None:
        """Measure all workers now and then; more often while nobody knows what those of `pool` take."""
        is_news = pool.spec is not None and self._conditions.share.is_to_measure(pool.spec, pool.fleet)
        if now < self._measured_at + (UNTRIED_USAGE_SECONDS if is_news else USAGE_SECONDS):
            return
        if not any(each.fleet.workers for each in self.pools.values()):
            return
        self._measured_at = now
        usage = self._runtime.usage()
        memory = {worker: used.memory_bytes for worker, used in usage.items()}
        for each in self.pools.values():
            each.fleet = measured(each.fleet, memory)
        self._conditions.share.measured([each.fleet for each in self.pools.values()], usage, now=now)

    def _end_overdue(self, pool: Pool, *, now: Monotonic) -> None:
        for worker in pool.fleet.leaving:
            if worker.deadline_at is not None and now >= worker.deadline_at:
                self._acts.kill(pool, worker.worker, why="it did not finish within its grace", now=now)

    # -- the end --------------------------------------------------------------------------------------------------

    def _finish_pool(self, pool: Pool, *, why: str, now: Monotonic) -> None:
        """Have every worker of a pool without settings end when what it holds is done; to be repeated until then."""
        pool.fleet = without_external(pool.fleet)
        for worker in [w.worker for w in pool.fleet.workers.values() if w.deadline_at is None]:
            if not self._acts.finish(pool, WorkerRemoval(worker, why), grace_seconds=pool.grace_seconds, now=now):
                break

    def drain_all(self, *, why: str) -> None:
        """Ask every worker to finish within its grace; `end_overdue` ends those that do not."""
        now = self._clock.monotonic()
        for pool in self.pools.values():
            grace = pool.spec.grace if pool.spec else pool.grace_seconds
            for w in pool.fleet.workers.values():
                if w.deadline_at is None and not w.is_external:
                    self._acts.drain(pool, w.worker, why=why, grace_seconds=grace, now=now)

    def drained_at(self) -> float | None:
        """Since when no worker is to be on this host (see `Overrides.drained_at`)."""
        return self._conditions.overrides.drained_at()

    def drain_host(self) -> None:
        """Ask every worker to finish, and forget what was decided: here nobody is wanted."""
        self.drain_all(why="this host is drained")
        for pool in self.pools.values():
            pool.decision = None

    def keep_usage(self) -> None:
        """Keep now what was used of budgets, and what workers take."""
        self._conditions.keep(at_once=True)

    def end_overdue(self) -> None:
        """End the workers that were asked to finish and did not within their grace."""
        for pool in self.pools.values():
            self._end_overdue(pool, now=self._clock.monotonic())

    def kill_all(self, *, why: str) -> None:
        """End every worker now."""
        for pool in self.pools.values():
            for worker in pool.fleet.workers:
                self._acts.kill(pool, worker, why=why, now=self._clock.monotonic())


def _asked_seconds(ended: Exit, worker: Worker | None, spec: PoolSpec | None) -> float | None:
    """For how long it had been asked to finish when it ended, at most; None when it was not."""
    grace = spec.grace if spec else 0.0
    if worker is None or worker.deadline_at is None:
        return grace if ended.is_stopped else None
    return max(0.0, ended.at - worker.since) + (grace if worker.state == "killed" else 0.0)


def _place_of(pool: Pool) -> tuple[int, str]:
    return order_of(pool.spec) if pool.spec else (0, pool.name)


def _digest(spec: PoolSpec | None) -> str:
    return spec.digest() if spec else ""
