"""One turn of a pool: sample, decide, plan, act; and what is done at once when a worker ends.

Decisions and plans are pure functions of other modules; here they meet a source and a runtime.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Clock, Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import Conditions, Decision
from orchestrator.errors import SourceUnavailableError, SpawnError
from orchestrator.fleet import Fleet, adopted, draining, exited, joined, killed, measured, observe, spawn_failed
from orchestrator.launch import Launch
from orchestrator.metrics import QueueSample
from orchestrator.morgue import Morgue
from orchestrator.plan import Leave, Plan, Spawn, plan
from orchestrator.policy import PolicyState, decide
from orchestrator.runtime import Exit, Runtime, SpawnRequest, WorkerHandle
from orchestrator.source import WorkSource
from orchestrator.state import StateDir

log = structlog.get_logger()

USAGE_SECONDS: Final = 5.0
LEAVING_GRACE_SECONDS: Final = 30.0
"""How long the workers of a pool nobody knows any more may take to finish."""

_AT_ONCE: Final = Monotonic(float("-inf"))


@dataclass(slots=True)
class ManagedPool:
    """One pool as it is now; `spec` None: it is no longer in the settings, and its workers leave."""

    name: str
    spec: PoolSpec | None
    fleet: Fleet
    state: PolicyState = field(default_factory=PolicyState)
    sample: QueueSample | None = None
    decision: Decision | None = None
    due_at: Monotonic = _AT_ONCE
    is_stale: bool = False
    grace_seconds: float = LEAVING_GRACE_SECONDS
    told: tuple[object, ...] = ()


class Reconciler:
    """The pools of one supervisor, turn by turn. Belongs to one thread."""

    def __init__(
        self,
        *,
        source: WorkSource,
        runtime: Runtime,
        clock: Clock,
        files: StateDir,
        launch: Launch,
        identify: Callable[[str], str],
    ) -> None:
        """`identify` makes a fresh worker identity from its pool's name."""
        self._source = source
        self._runtime = runtime
        self._clock = clock
        self._files = files
        self._launch = launch
        self._identify = identify
        self._morgue = Morgue(source, files.deaths, clock=clock)
        self._conditions = Conditions(cores=len(os.sched_getaffinity(0)))
        self._usage_at = _AT_ONCE
        self.pools: dict[str, ManagedPool] = {}

    @property
    def workers(self) -> dict[str, str]:
        """Every worker and its pool."""
        return {worker: pool.name for pool in self.pools.values() for worker in pool.fleet.workers}

    # -- the set of pools -----------------------------------------------------------------------------------------

    def set_pools(self, specs: Mapping[str, PoolSpec], *, learned: Mapping[str, object] | None = None) -> None:
        """Work with these pools from now on.

        A pool that did not change is not touched; the workers of one that is gone are asked to finish; one whose
        settings changed has its workers replaced by the turns that follow, new before old.
        """
        now = self._clock.monotonic()
        for name, spec in specs.items():
            known = self.pools.get(name)
            if known is None:
                self.pools[name] = ManagedPool(name, spec, Fleet(name), _state(name, learned or {}))
            elif known.spec != spec:
                log.info(events.POOL_CHANGED, pool=name, replaces=_digest(known.spec) != spec.digest())
                known.spec, known.due_at = spec, _AT_ONCE
        for pool in list(self.pools.values()):
            if pool.name not in specs and pool.spec is not None:
                log.info(events.POOL_CHANGED, pool=pool.name, removed=True)
                pool.grace_seconds = pool.spec.grace
                pool.spec = None
                self.drain_pool(pool, why="its pool was removed", now=now)
                self._forget_if_empty(pool)

    def adopt(self, roster: Sequence[WorkerHandle]) -> None:
        """Take over the workers that an earlier supervisor left, and bury those of its `roster` that are gone."""
        now = self._clock.monotonic()
        found = self._runtime.adopt(remembered=roster, now=now)
        for handle in found:
            self._adopted(handle, now=now)
        living = {handle.worker for handle in found}
        for handle in roster:
            if handle.worker not in living:
                self._morgue.missing(handle.worker, pool=handle.pool)

    def _adopted(self, handle: WorkerHandle, *, now: Monotonic) -> None:
        pool = self.pools.setdefault(handle.pool, ManagedPool(handle.pool, None, Fleet(handle.pool)))
        pool.fleet = adopted(
            pool.fleet,
            worker=handle.worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
            now=now,
        )
        log.info(events.WORKER_ADOPTED, pool=handle.pool, worker=handle.worker, ref=handle.ref)
        if pool.spec is None:
            self.drain_pool(pool, why="its pool is not in the settings", now=now)

    # -- what happens ---------------------------------------------------------------------------------------------

    def reap(self) -> bool:
        """Collect the workers that ended, give back what they held at once; True when there were any."""
        now = self._clock.monotonic()
        exits = self._runtime.reap(now=now)
        self._morgue.release(ended.worker for ended in exits)
        for ended in exits:
            self._ended(ended, now=now)
        return bool(exits)

    def _ended(self, ended: Exit, *, now: Monotonic) -> None:
        pool = self.pools.setdefault(ended.pool, ManagedPool(ended.pool, None, Fleet(ended.pool)))
        pool.fleet, death = exited(pool.fleet, ended, now=now)
        pool.due_at = _AT_ONCE
        self._morgue.certify(death, ended)
        self._forget_if_empty(pool)

    def _forget_if_empty(self, pool: ManagedPool) -> None:
        if pool.spec is None and not pool.fleet.workers:
            del self.pools[pool.name]

    def arrived(self, name: str) -> None:
        """A task arrived for a pool without workers: its turn is now."""
        pool = self.pools.get(name)
        if pool is not None:
            pool.due_at = _AT_ONCE

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
        """A turn of every pool that is due; False when one of them failed."""
        self._morgue.release(())
        is_well = True
        for pool in list(self.pools.values()):
            now = self._clock.monotonic()
            if now < pool.due_at:
                continue
            # Moved on first: a turn that fails must not be tried again at once.
            pool.due_at = Monotonic(now + (pool.spec.turn_seconds if pool.spec else 1.0))
            try:
                self._measure(now)
                self._turn(pool, now=now)
            except Exception:
                log.exception(events.TURN_FAILED, pool=pool.name)
                is_well = False
        return is_well

    def _turn(self, pool: ManagedPool, *, now: Monotonic) -> None:
        spec = pool.spec
        if spec is None:
            self._end_overdue(pool, now=now)
            return
        self._sample(pool, spec)
        if pool.sample is None:
            return
        now = self._clock.monotonic()
        decision, pool.state = decide(
            pool.sample, fleet=pool.fleet, spec=spec, state=pool.state, now=now, conditions=self._conditions
        )
        pool.decision = decision
        todo = plan(decision, fleet=pool.fleet, spec=spec, now=now)
        self._tell(pool, decision, todo)
        self._act(pool, spec, todo, now=now)

    def _sample(self, pool: ManagedPool, spec: PoolSpec) -> None:
        """Look at the work. Without an answer the last sample stands, and grows old (see `guards.stale_sample`)."""
        try:
            sample = self._source.sample(spec, workers=pool.fleet.workers.keys(), now=self._clock.monotonic())
        except SourceUnavailableError as error:
            if not pool.is_stale:
                log.warning(events.SOURCE_UNAVAILABLE, pool=pool.name, error=str(error))
            pool.is_stale = True
            return
        if pool.is_stale:
            log.info(events.SOURCE_RECOVERED, pool=pool.name)
        pool.is_stale = False
        before = pool.fleet
        pool.sample, pool.fleet = sample, observe(before, sample)
        if pool.fleet is not before:
            for started in pool.fleet.started:
                log.info(
                    events.WORKER_STARTED, pool=pool.name, worker=started.worker, seconds=round(started.seconds, 3)
                )

    def _measure(self, now: Monotonic) -> None:
        if now < self._usage_at or not any(pool.fleet.workers for pool in self.pools.values()):
            return
        self._usage_at = Monotonic(now + USAGE_SECONDS)
        memory = {worker: usage.memory_bytes for worker, usage in self._runtime.usage().items()}
        for pool in self.pools.values():
            pool.fleet = measured(pool.fleet, memory)

    def _tell(self, pool: ManagedPool, decision: Decision, todo: Plan) -> None:
        """Log the decision with every input, when it changes the pool or is held back in a new way."""
        before, pool.told = pool.told, (decision.target, decision.limited_by)
        if todo.is_empty and (not decision.limited_by or pool.told == before):
            return
        record = decision.record()
        log.info(events.POOL_DECIDED, **record)
        self._files.decisions.append({"at": round(self._clock.wall_seconds(), 3), **record})

    # -- acts -----------------------------------------------------------------------------------------------------

    def _act(self, pool: ManagedPool, spec: PoolSpec, todo: Plan, *, now: Monotonic) -> None:
        for leave in todo.kill:
            self._kill(pool, leave.worker, why=leave.why, now=now)
        for leave in todo.retire:
            if not self._retire(pool, leave, grace_seconds=spec.grace, now=now):
                break
        for leave in todo.drain:
            self._drain(pool, leave.worker, why=leave.why, grace_seconds=spec.grace, now=now)
        for spawn in todo.spawn:
            if not self._spawn(pool, spec, spawn):
                break

    def _spawn(self, pool: ManagedPool, spec: PoolSpec, spawn: Spawn) -> bool:
        now = self._clock.monotonic()
        worker = self._identify(pool.name)
        request = SpawnRequest(worker, spec, self._launch.environment(worker, spec))
        try:
            handle = self._runtime.spawn(request, now=now)
        except SpawnError as error:
            pool.fleet = spawn_failed(pool.fleet, spec_digest=spec.digest(), spawned_at=now, now=now)
            log.warning(
                events.WORKER_SPAWN_FAILED, pool=pool.name, error=str(error), failures=pool.fleet.crash.failures
            )
            return False
        pool.fleet = joined(
            pool.fleet,
            worker=worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
            replaces=spawn.replaces,
        )
        log.info(events.WORKER_SPAWNED, pool=pool.name, worker=worker, ref=handle.ref, replaces=spawn.replaces)
        return True

    def _retire(self, pool: ManagedPool, leave: Leave, *, grace_seconds: float, now: Monotonic) -> bool:
        """Let an idle worker go: the queue fences it, and only a fenced one is asked to finish.

        False when the queue did not answer.
        """
        try:
            is_fenced = self._source.retire(leave.worker)
        except SourceUnavailableError:
            return False
        if is_fenced:
            log.info(events.WORKER_RETIRED, pool=pool.name, worker=leave.worker, why=leave.why)
            self._runtime.drain(leave.worker)
            pool.fleet = draining(pool.fleet, leave.worker, grace_seconds=grace_seconds, now=now)
        return True

    def _drain(self, pool: ManagedPool, worker: str, *, why: str, grace_seconds: float, now: Monotonic) -> None:
        log.info(events.WORKER_DRAINING, pool=pool.name, worker=worker, why=why)
        self._runtime.drain(worker)
        pool.fleet = draining(pool.fleet, worker, grace_seconds=grace_seconds, now=now)

    def _kill(self, pool: ManagedPool, worker: str, *, why: str, now: Monotonic) -> None:
        log.warning(events.WORKER_KILLED, pool=pool.name, worker=worker, why=why)
        self._runtime.kill(worker)
        pool.fleet = killed(pool.fleet, worker, now=now)

    def _end_overdue(self, pool: ManagedPool, *, now: Monotonic) -> None:
        for worker in pool.fleet.leaving:
            if worker.deadline_at is not None and now >= worker.deadline_at:
                self._kill(pool, worker.worker, why="it did not finish within its grace", now=now)

    # -- the end --------------------------------------------------------------------------------------------------

    def drain_pool(self, pool: ManagedPool, *, why: str, now: Monotonic) -> None:
        """Ask every worker of the pool to finish."""
        grace = pool.spec.grace if pool.spec else pool.grace_seconds
        for worker in [w.worker for w in pool.fleet.workers.values() if not w.is_leaving]:
            self._drain(pool, worker, why=why, grace_seconds=grace, now=now)

    def drain_all(self, *, why: str) -> None:
        """Ask every worker to finish; `end_overdue` ends those that do not."""
        for pool in self.pools.values():
            self.drain_pool(pool, why=why, now=self._clock.monotonic())

    def end_overdue(self) -> None:
        """End the workers that were asked to finish and did not within their grace."""
        for pool in self.pools.values():
            self._end_overdue(pool, now=self._clock.monotonic())

    def kill_all(self, *, why: str) -> None:
        """End every worker now."""
        for pool in self.pools.values():
            for worker in pool.fleet.workers:
                self._kill(pool, worker, why=why, now=self._clock.monotonic())


def _state(name: str, learned: Mapping[str, object]) -> PolicyState:
    if name not in learned:
        return PolicyState()
    try:
        return PolicyState.from_json(learned[name])
    except ValueError as error:
        log.warning(events.STATE_DISCARDED, pool=name, error=str(error))
        return PolicyState()


def _digest(spec: PoolSpec | None) -> str:
    return spec.digest() if spec else ""
