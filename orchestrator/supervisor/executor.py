"""Execute a plan: spawn, retire, drain and kill workers, and log each action."""

from collections.abc import Callable
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import (
    QuotaError,
    RuntimeUnavailableError,
    SourceUnavailableError,
    SpawnError,
    StartPendingError,
)
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.external import is_external, released
from orchestrator.fleet.workers import (
    Fleet,
    draining,
    examined,
    finishing,
    joined,
    killed,
    next_stop,
    spawn_failed,
    stopped_further,
)
from orchestrator.launch import Launch
from orchestrator.runtime import STANDSTILLS, Runtime, SpawnRequest
from orchestrator.scaling.estimates import SOON_SECONDS
from orchestrator.scaling.plan import Plan, Spawn, WorkerRemoval
from orchestrator.source import WorkSource
from orchestrator.supervisor.pool import Outage, Pool, WorkerFailure
from queue_core.log import get_logger

log = get_logger()

SPAWNING_SECONDS: Final = 1.0
"""Time of a turn after which no pool starts a second worker in it: an engine that answers slowly must not make the next
decision late. The rest is started in the turns that follow."""
QUOTA_SECONDS: Final = 30.0
"""Pause after a start that a cluster's quota forbade."""
MAX_OUTAGE_SECONDS: Final = 10.0
"""The longest pause between two tries of a runtime that is unavailable."""


class PlanExecutor:
    """Executes plans; each action also updates the pool's fleet. Belongs to one thread."""

    def __init__(
        self,
        *,
        source: WorkSource,
        runtime: Runtime,
        clock: MonotonicClock,
        launch: Launch,
        identify: Callable[[str], str],
        may_act: Callable[[], bool],
        may_end: Callable[[str], bool] = lambda _ref: True,
    ) -> None:
        """Args:
        identify: makes a new worker name from a pool's name.
        may_act: tells whether workers may be changed now, as the plan says.
        may_end: tells of a worker's `ref` whether it may be ended now, for any reason: of one that another supervisor
            may lead only the leader says so.
        """
        self._may_end = may_end
        self._source = source
        self._runtime = runtime
        self._clock = clock
        self._launch = launch
        self._identify = identify
        self._may_act = may_act
        self._spawns_until = Monotonic(float("inf"))

    def begin_turn(self) -> None:
        """Begin a turn, in which all pools share the time for starts."""
        self._spawns_until = Monotonic(self._clock.monotonic() + SPAWNING_SECONDS)

    def execute(self, plan: Plan, pool: Pool, spec: PoolSpec, *, now: Monotonic) -> bool:
        """Execute the plan's actions in order, until `may_act` forbids it or an action can't be done now.

        False when the turn's time for starts was over first: the pool needs another turn at once.
        """
        for removal in plan.kill:
            self.end_overdue(pool, removal.worker, why=removal.why, now=now)
        for removal in plan.retire:
            if not self._may_act() or not self._retire(pool, removal, grace_seconds=spec.grace, now=now):
                break
        for removal in plan.end:
            if not self._may_act() or not self._end(pool, removal, spec, now=now):
                break
        for removal in plan.finish:
            if not self._may_act() or not self.finish(pool, removal, grace_seconds=spec.grace, now=now):
                break
        for index, spawn in enumerate(plan.spawn):
            if index and self._clock.monotonic() >= self._spawns_until:
                return False
            if not self._may_act() or not self._spawn(pool, spec, spawn):
                break
        return True

    def _spawn(self, pool: Pool, spec: PoolSpec, spawn: Spawn) -> bool:
        now = self._clock.monotonic()
        worker = self._identify(pool.name)
        try:
            request = SpawnRequest(worker, spec, self._launch.environment(worker, spec))
            handle = self._runtime.spawn(request, now=now)
        except RuntimeUnavailableError as error:
            self._back_off(pool, error, now=now)
            return False
        except SpawnError as error:
            pool.fleet = spawn_failed(pool.fleet, spec_digest=spec.digest(), spawned_at=now, now=now)
            pool.counters.failed_starts += 1
            pool.last_failure = WorkerFailure(now, str(error))
            log.warning(
                events.WORKER_SPAWN_FAILED, pool=pool.name, error=str(error), failures=pool.fleet.crash.failures
            )
            return False
        if pool.outage is not None:
            log.info(events.RUNTIME_RECOVERED, pool=pool.name)
            pool.outage = None
        is_ours = not is_external(handle.ref)
        pool.counters.starts += is_ours
        pool.fleet = joined(
            pool.fleet,
            worker=handle.worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
            replaces=spawn.replaces,
            is_forked=handle.is_forked,
        )
        begun = events.WORKER_SPAWNED if is_ours else events.WORKER_EXPECTED
        log.info(begun, pool=pool.name, worker=handle.worker, ref=handle.ref, replaces=spawn.replaces)
        # Forks were planned, as many as the cores fork at a time: far fewer may be executed at a time.
        return handle.is_forked or not pool.fleet.forks

    def _back_off(self, pool: Pool, error: RuntimeUnavailableError, *, now: Monotonic) -> None:
        """Back off for 2, 4, 8, then 10 s; until the next turn, or the time it names, if a start is only pending.

        For a quota it is half a minute. It does not count as a failed start.
        """
        before, why, is_quota = pool.outage, str(error), isinstance(error, QuotaError)
        soon = isinstance(error, StartPendingError)
        if before is None or before.why != why:
            log.warning(events.RUNTIME_UNAVAILABLE, pool=pool.name, error=why)
        times = (before.times if before else 0) + (not soon)
        pause_seconds = 0.0 if soon else min(MAX_OUTAGE_SECONDS, 2.0 ** min(times, 6))
        pause_seconds = QUOTA_SECONDS if is_quota else pause_seconds
        pool.outage = Outage(why, times, Monotonic(now + pause_seconds), is_quota)
        if isinstance(error, StartPendingError) and error.seconds is not None:
            pool.due_at = min(pool.due_at, Monotonic(now + max(SOON_SECONDS, error.seconds)))

    def _retire(
        self, pool: Pool, removal: WorkerRemoval, *, grace_seconds: float, now: Monotonic, hangs: bool = False
    ) -> bool:
        """Fence an idle worker at the queue, and drain it only if fenced. False when the queue is unavailable."""
        if self._release(pool, removal.worker, why=removal.why, now=now):
            return True
        try:
            is_fenced = self._source.retire(removal.worker)
        except SourceUnavailableError:
            return False
        if is_fenced and hangs:
            condition = self._runtime.examine(removal.worker, before="end")
            pool.fleet = examined(pool.fleet, removal.worker, condition)
            if condition in STANDSTILLS:  # it can't finish, and resumed it would begin what another worker has done
                self.kill(pool, removal.worker, why=f"{removal.why}: {condition}", now=now)
                return True
        if is_fenced:
            self._drain_fenced(pool, removal, grace_seconds=grace_seconds, now=now)
        return True

    def _drain_fenced(self, pool: Pool, removal: WorkerRemoval, *, grace_seconds: float, now: Monotonic) -> None:
        """Drain a fenced worker. It holds no lease: a signal is safe, and also ends a worker that no longer polls."""
        log.info(events.WORKER_RETIRED, pool=pool.name, worker=removal.worker, why=removal.why)
        self._runtime.drain(removal.worker)
        pool.fleet = draining(pool.fleet, removal.worker, grace_seconds=grace_seconds, now=now, why=removal.why)

    def finish(self, pool: Pool, removal: WorkerRemoval, *, grace_seconds: float, now: Monotonic) -> bool:
        """Grant a worker no more leases, and drain it once it holds none (ADR 17); repeat until it is gone.

        False when the queue is unavailable.
        """
        if self._release(pool, removal.worker, why=removal.why, now=now) or self._is_others(pool, removal.worker):
            return True
        try:
            is_free = self._source.retire(removal.worker, busy="finish")
        except SourceUnavailableError:
            return False
        known = pool.fleet.workers.get(removal.worker)
        if is_free:
            self._drain_fenced(pool, removal, grace_seconds=grace_seconds, now=now)
        elif known is not None and not known.is_leaving:
            log.info(events.WORKER_FINISHING, pool=pool.name, worker=removal.worker, why=removal.why, held=known.leases)
            pool.fleet = finishing(pool.fleet, removal.worker, now=now, why=removal.why)
        return True

    def log_unresponsive(self, pool: Pool, before: Fleet) -> None:
        """Log workers that became unresponsive since `before`, with the runtime's diagnosis, or that recovered."""
        for worker in pool.fleet.workers.values():
            known = before.workers.get(worker.worker)
            is_news = (worker.hung_at is None) != (known is None or known.hung_at is None)
            if not is_news:
                continue
            if worker.hung_at is None:
                log.info(events.WORKER_RESPONSIVE, pool=pool.name, worker=worker.worker)
                continue
            condition = self._runtime.examine(worker.worker, before="mark")
            pool.fleet = examined(pool.fleet, worker.worker, condition)
            seconds = round(max(0.0, worker.since - worker.hung_at), 3)
            log.warning(
                events.WORKER_UNRESPONSIVE, pool=pool.name, worker=worker.worker, seconds=seconds, condition=condition
            )

    def _end(self, pool: Pool, removal: WorkerRemoval, spec: PoolSpec, *, now: Monotonic) -> bool:
        """Fence and drain an unresponsive worker: it may recover and hold a lease again before the fence.

        Its grace counts from when it became unresponsive; one that stands still is killed at once. False when the queue
        is unavailable.
        """
        known = pool.fleet.workers.get(removal.worker)
        left = spec.grace if known is None else max(0.0, spec.grace - (now - known.since))
        return self._retire(pool, removal, grace_seconds=left, now=now, hangs=True)

    def _release(self, pool: Pool, worker: str, *, why: str, now: Monotonic) -> bool:
        """Release a worker that an external system started: that system ends it. False for a worker of ours."""
        known = pool.fleet.workers.get(worker)
        if known is None or not known.is_external:
            return False
        log.info(events.WORKER_RELEASED, pool=pool.name, worker=worker, why=why)
        pool.fleet = released(pool.fleet, worker, now=now)
        return True

    def _is_others(self, pool: Pool, worker: str) -> bool:
        """Return whether another supervisor may lead a worker of ours now: then it is not touched."""
        known = pool.fleet.workers.get(worker)
        return known is not None and not self._may_end(known.ref)

    def drain(self, pool: Pool, worker: str, *, why: str, grace_seconds: float, now: Monotonic) -> None:
        """Ask a worker to finish the tasks it holds and exit."""
        if self._release(pool, worker, why=why, now=now) or self._is_others(pool, worker):
            return
        log.info(events.WORKER_DRAINING, pool=pool.name, worker=worker, why=why)
        self._runtime.drain(worker)
        pool.fleet = draining(pool.fleet, worker, grace_seconds=grace_seconds, now=now, why=why)

    def end_overdue(self, pool: Pool, worker: str, *, why: str, now: Monotonic) -> None:
        """Take the next step of the pool's way to stop a worker: a further signal, or in the end SIGKILL."""
        if self._is_others(pool, worker):
            return
        known = pool.fleet.workers.get(worker)
        step = next_stop(known, pool.further_stops) if known is not None and not known.is_external else None
        if step is None:
            self.kill(pool, worker, why=why, now=now)
            return
        log.warning(events.WORKER_CUT_SHORT, pool=pool.name, worker=worker, signal=step.signal, why=why)
        self._runtime.insist(worker, step.signal)
        pool.fleet = stopped_further(pool.fleet, worker, step, now=now)

    def kill(
        self, pool: Pool, worker: str, *, why: str, now: Monotonic, is_cut_short: bool = False, by: str = ""
    ) -> None:
        """End a worker now (`is_cut_short`: before its grace is over); an external worker is left alone.

        `by`: the operator who ordered it.
        """
        known = pool.fleet.workers.get(worker)
        if (known is not None and known.is_external) or self._is_others(pool, worker):
            return
        log.warning(events.WORKER_KILLED, pool=pool.name, worker=worker, why=why)
        self._runtime.kill(worker)
        pool.fleet = killed(pool.fleet, worker, now=now, is_cut_short=is_cut_short, by=by)
