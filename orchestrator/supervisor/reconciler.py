"""Reconcile the pools of one supervisor: run the turns that are due, and handle ended workers at once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.config.diff import PoolChange, changes_between
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import ENDS_WELL, at_fault, ending_of
from orchestrator.fleet.external import without_external
from orchestrator.fleet.placement import Placement
from orchestrator.fleet.quarantine import SuspectedTask
from orchestrator.fleet.workers import (
    Fleet,
    RememberedWorker,
    Worker,
    adopted,
    cause_in,
    exited,
    measured,
    placed,
    recalled,
    without,
)
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, Runtime, WorkerHandle, is_shared
from orchestrator.scaling.guards import turn_seconds_after
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.plan import WorkerRemoval
from orchestrator.scaling.sharing import order_of
from orchestrator.source import WorkSource
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.application_checks import ApplicationChecks
from orchestrator.supervisor.conditions import ConditionsTracker
from orchestrator.supervisor.executor import PlanExecutor
from orchestrator.supervisor.pool import ASLEEP_SECONDS, AT_ONCE, Pool, WorkerFailure
from orchestrator.supervisor.pool_turn import PoolTurn
from orchestrator.supervisor.post_mortem import PostMortems, WorkerEnd
from orchestrator.supervisor.quarantine_runner import QuarantineRunner
from orchestrator.supervisor.worker_request_runner import WorkerRequestRunner
from queue_core.log import get_logger

log = get_logger()

USAGE_SECONDS: Final = 5.0
"""Interval between two measurements of all workers' memory and CPU."""
MAX_ASKED: Final = 10
"""Workers whose tasks are looked up when the supervisor stops."""
UNTRIED_USAGE_SECONDS: Final = 0.2
"""The same interval while a pool's workers have never been measured."""
NO_MEMORIES: Final[Mapping[str, RememberedWorker]] = {}


class Reconciler:
    """The pools of one supervisor. Belongs to one thread."""

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
        may_end: Callable[[str], bool] = lambda _ref: True,
        conditions: ConditionsTracker | None = None,
        on_schedules: Callable[[str, Sequence[Mapping[str, object]]], None] | None = None,
    ) -> None:
        """Args:
        identify: makes a new worker name from a pool's name.
        may_act: tells whether workers may be changed now.
        may_end: see `PlanExecutor`.
        on_schedules: see `ApplicationChecks`.
        """
        self._source = source
        self._runtime = runtime
        self._clock = clock
        self._files = files
        self._may_act = may_act
        self._executor = PlanExecutor(
            source=source,
            runtime=runtime,
            clock=clock,
            launch=launch,
            identify=identify,
            may_act=may_act,
            may_end=may_end,
        )
        self._post_mortems = PostMortems(source, files, clock=clock)
        self._quarantine = QuarantineRunner(
            source=source, runtime=runtime, clock=clock, launch=launch, identify=identify, may_act=may_act
        )
        self._conditions = conditions or ConditionsTracker(files, clock=clock)
        self.pools: dict[str, Pool] = {}
        self._turn = PoolTurn(
            source=source,
            clock=clock,
            files=files,
            executor=self._executor,
            quarantine=self._quarantine,
            conditions=self._conditions,
            may_act=may_act,
            forks=runtime.forks,
            pools=self.pools,
        )
        self._worker_requests = WorkerRequestRunner(files, self._executor, clock)
        self._applications = ApplicationChecks(runtime, launch=launch, clock=clock, on_schedules=on_schedules)
        self._measured_at = AT_ONCE
        self._places: Mapping[str, Placement] = {}

    @property
    def workers(self) -> dict[str, str]:
        """The workers that are ours to end, each with its pool's name."""
        return {
            name: pool.name
            for pool in self.pools.values()
            for name, worker in pool.fleet.workers.items()
            if not worker.is_external
        }

    @property
    def specs(self) -> dict[str, PoolSpec]:
        """The pools of the settings, by name."""
        return {name: pool.spec for name, pool in self.pools.items() if pool.spec is not None}

    # -- the set of pools -----------------------------------------------------------------------------------------

    def set_pools(
        self, specs: Mapping[str, PoolSpec], *, learned: Mapping[str, object] | None = None
    ) -> list[PoolChange]:
        """Replace the set of pools; return the changes.

        An unchanged pool is not touched. Workers of a removed pool finish and exit; those of a changed pool are
        replaced by the following turns, new ones first (ADR 9).
        """
        now = self._clock.monotonic()
        changes = changes_between({name: pool.spec for name, pool in self.pools.items() if pool.spec}, specs)
        for name, spec in specs.items():
            known = self.pools.get(name)
            if known is None:
                self.pools[name] = Pool(name, spec, Fleet(name), _restored(name, learned or {}))
            elif known.spec != spec:
                log.info(events.POOL_CHANGED, pool=name, replaces=_digest(known.spec) != spec.digest())
                known.spec, known.due_at = spec, AT_ONCE
                if spec.runtime_kind != "external":
                    known.fleet = without_external(known.fleet)
        for pool in list(self.pools.values()):
            if pool.name not in specs and pool.spec is not None:
                log.info(events.POOL_CHANGED, pool=pool.name, removed=True)
                pool.grace_seconds, pool.leaving_stops = pool.spec.grace, pool.spec.further_stops
                pool.spec = None
                self._finish_pool(pool, why="its pool was removed", now=now)
                self._forget_if_empty(pool)
        self._conditions.forget(specs)
        self._applications.begin(self.pools)
        return changes

    def adopt_own(
        self, roster: Sequence[WorkerHandle], *, memories: Mapping[str, RememberedWorker] = NO_MEMORIES
    ) -> None:
        """Adopt an earlier supervisor's workers, and record the end of those in `roster` that are gone.

        `memories` tell which workers it had asked to finish or was replacing; that continues.
        """
        now = self._clock.monotonic()
        self._take_in(self._runtime.adopt_own(remembered=roster, now=now), roster, memories, now=now)

    def adopt(
        self, roster: Sequence[WorkerHandle] = (), *, memories: Mapping[str, RememberedWorker] = NO_MEMORIES
    ) -> Sequence[WorkerHandle]:
        """Adopt the fleet's workers, whoever started them: we lead. Arguments as for `adopt_own`; return the new ones.

        It may be repeated: what is ours stays as it is.
        """
        now = self._clock.monotonic()
        found = self._runtime.adopt(remembered=roster, now=now)
        self._take_in(found, roster, memories, now=now)
        return found

    def _take_in(
        self,
        found: Sequence[WorkerHandle],
        roster: Sequence[WorkerHandle],
        memories: Mapping[str, RememberedWorker],
        *,
        now: Monotonic,
    ) -> None:
        for handle in found:
            self._adopted(handle, now=now)
        new = {handle.worker for handle in found}
        for pool in self.pools.values():
            pool.fleet = recalled(pool.fleet, {name: known for name, known in memories.items() if name in new})
            if pool.spec is None:
                self._finish_pool(pool, why="its pool is not in the settings", now=now)
        living = {name for pool in self.pools.values() for name in pool.fleet.workers}
        for handle in roster:
            if handle.worker not in living:
                self._post_mortems.record_missing(handle.worker, pool=handle.pool)

    def take_up(self, learned: Mapping[str, object]) -> None:
        """Take up what another supervisor learned, and what is on disk of it."""
        for pool in self.pools.values():
            if pool.spec is not None and pool.name in learned:
                pool.state = _restored(pool.name, learned)
        self._conditions.restore()

    @property
    def shared(self) -> dict[str, str]:
        """The `ref` of each worker of ours that another supervisor could lead, by name."""
        return {
            name: worker.ref
            for pool in self.pools.values()
            for name, worker in pool.fleet.workers.items()
            if is_shared(worker.ref)
        }

    def let_go(self, workers: Collection[str]) -> None:
        """Forget workers without touching them: another supervisor leads them, or will."""
        for pool in list(self.pools.values()):
            gone = pool.fleet.workers.keys() & workers
            if gone:
                pool.fleet = without(pool.fleet, gone)
                log.info(events.WORKER_LET_GO, pool=pool.name, workers=sorted(gone))
            self._forget_if_empty(pool)
        self._runtime.let_go(workers)

    def _adopted(self, handle: WorkerHandle, *, now: Monotonic) -> None:
        pool = self.pools.setdefault(handle.pool, Pool(handle.pool, None, Fleet(handle.pool)))
        pool.fleet = adopted(
            pool.fleet,
            worker=handle.worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
            now=now,
            is_forked=handle.is_forked,
        )
        log.info(events.WORKER_ADOPTED, pool=handle.pool, worker=handle.worker, ref=handle.ref)

    # -- events ----------------------------------------------------------------------------------------------------

    def reap(self) -> bool:
        """Collect ended workers and release their leases at once; return whether there were any."""
        now = self._clock.monotonic()
        exits = self._runtime.reap(now=now)
        self._take_places(now)
        self._post_mortems.handle([self._end_of(ended) for ended in exits])
        for ended in exits:
            self._ended(ended, now=now)
        self._queue_suspected()
        return bool(exits)

    def _take_places(self, now: Monotonic) -> None:
        """Take in where clusters have placed workers; of one that a cluster takes away the successor starts now."""
        places = self._runtime.placements()
        if places == self._places:
            return
        self._places = places
        for pool in self.pools.values():
            before, pool.fleet = pool.fleet, placed(pool.fleet, places, now=now)
            taken = [w for w in pool.fleet.workers.values() if w.place.is_leaving and not w.is_leaving]
            if pool.fleet is not before and (taken or any(w.place.is_silent for w in pool.fleet.workers.values())):
                pool.due_at = AT_ONCE

    def _release_taken(self, pool: Pool, *, now: Monotonic) -> None:
        """Grant no more leases to workers that their cluster takes away."""
        for worker in list(pool.fleet.workers.values()):
            if worker.place.is_leaving and not worker.is_leaving:
                why = f"its cluster ends it: {worker.place.words}"
                grace = pool.spec.grace if pool.spec else pool.grace_seconds
                if not self._executor.finish(pool, WorkerRemoval(worker.worker, why), grace_seconds=grace, now=now):
                    return

    def _end_of(self, ended: Exit) -> WorkerEnd:
        pool = self.pools.get(ended.pool) or Pool(ended.pool, None, Fleet(ended.pool))
        cause, detail = cause_in(pool.fleet, ended)
        draining_seconds = _draining_seconds(ended, pool.fleet.workers.get(ended.worker), pool.spec)
        return WorkerEnd(
            ended.worker,
            pool.name,
            cause,
            detail,
            pool.spec,
            len(pool.suspected),
            ended.is_stopped,
            draining_seconds,
            ending_of(ended, cause),
            at_fault(ended, cause),
        )

    def _queue_suspected(self) -> None:
        """Queue new suspected tasks for solo workers."""
        for name, suspect in self._post_mortems.take_suspected():
            if name in self.pools:
                self.pools[name].suspected += (suspect,)
                self.pools[name].due_at = AT_ONCE

    def _ended(self, ended: Exit, *, now: Monotonic) -> None:
        pool = self.pools.setdefault(ended.pool, Pool(ended.pool, None, Fleet(ended.pool)))
        held = self._post_mortems.held_tasks(ended.worker)
        pool.fleet, death = exited(pool.fleet, ended, now=now, held=held, worked=self._has_worked(pool, ended))
        pool.counters.count_death(death.cause, failed_start=death.failed_start)
        if death.failed_start or death.cause not in ENDS_WELL:
            pool.last_failure = WorkerFailure(now, f"{death.worker} {death.cause}: {death.detail}")
        pool.due_at = AT_ONCE
        if pool.solo_workers:
            self._quarantine.ended(pool, ended.worker, cause=death.cause, held=held)
        self._post_mortems.certify(death, ended)
        self._forget_if_empty(pool)

    def _has_worked(self, pool: Pool, ended: Exit) -> Literal["yes", "no"]:
        """Return whether a worker without work in any sample ended a lease: it may have lived between two samples."""
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
        """Make the pool due now, as when a task arrives for a pool without workers."""
        if name in self.pools:
            self.pools[name].due_at = AT_ONCE

    @property
    def works(self) -> dict[str, PoolSpec]:
        """The pools of the settings with the tags that their workers lease, by name (see `Pool.works_on`)."""
        return {name: spec for name, pool in self.pools.items() if (spec := pool.works_on) is not None}

    def waiting_pools(self) -> list[PoolSpec]:
        """Return the pools that have no worker to lease and no ready task: a task's arrival must wake them."""
        return [
            spec
            for pool in self.pools.values()
            if (spec := pool.works_on) and not pool.fleet.alive and pool.sample is not None and not pool.sample.ready
        ]

    def heed_worker_requests(self) -> None:
        """Drain, kill and replace the workers that operators have ordered to."""
        self._worker_requests.run(self.pools)

    # -- turns ----------------------------------------------------------------------------------------------------

    def next_turn_at(self) -> Monotonic | None:
        """Return when the next pool is due; None without pools."""
        return min((pool.due_at for pool in self.pools.values()), default=None)

    def turns(self) -> bool:
        """Run a turn of every pool that is due or whose overrides changed; return False when one failed.

        All of them decide first, then all act, because pools share the host by what each of them wants. Pools of higher
        priority go first: where pools share tasks, one pool's action counts for the next.
        """
        self._post_mortems.handle(())
        self._queue_suspected()
        self._applications.run(self.pools)
        for name, overrides in self._conditions.overrides.changed().items():
            log.info(events.POOL_OVERRIDDEN, pool=name, overrides=overrides.to_json())
            self.arrived(name)
        for error in self._conditions.take_errors():
            log.warning(events.STATE_DISCARDED, error=error)
        now = self._clock.monotonic()
        due = sorted([pool for pool in self.pools.values() if now >= pool.due_at], key=_turn_order)
        self._turn.sample_ahead(due)
        decided = [pool for pool in due if self._tried(pool, self._sample_and_decide)]
        self._executor.begin_turn()
        acted = [pool for pool in decided if self._tried(pool, self._turn.act)]
        for pool in acted:
            if pool.turn_errors.recovers():
                log.info(events.TURN_RECOVERED, pool=pool.name)
        self._conditions.keep()
        return len(acted) == len(due)

    def _tried(self, pool: Pool, operation: Callable[[Pool], None]) -> bool:
        try:
            operation(pool)
        except Exception as error:
            if pool.turn_errors.is_new(error):
                log.exception(events.TURN_FAILED, pool=pool.name)
            return False
        return True

    def _sample_and_decide(self, pool: Pool) -> None:
        """Sample and decide, and set when the pool is due again."""
        now = self._clock.monotonic()
        pool.effective = None
        # Set first: a turn that fails must not be retried at once.
        pool.due_at = Monotonic(now + (pool.spec.turn_seconds if pool.spec else 1.0))
        self._measure(pool, now)
        if self._may_act():
            self._release_taken(pool, now=now)
        if pool.spec is None:
            self._finish_pool(pool, why="its pool is not in the settings", now=now)
            self._end_overdue(pool, now=now)
            return
        self._turn.sample_and_decide(pool, pool.spec)
        pool.due_at = Monotonic(now + turn_seconds_after(pool.decision, pool.conditions, pool.spec))
        if pool.is_asleep:
            pool.due_at = Monotonic(now + max(pool.spec.turn_seconds, ASLEEP_SECONDS))

    def _measure(self, pool: Pool, now: Monotonic) -> None:
        """Measure all workers at an interval; more often while the usage of `pool`'s workers is unknown."""
        is_news = pool.spec is not None and self._conditions.share.is_to_measure(pool.spec, pool.fleet)
        if now < self._measured_at + (UNTRIED_USAGE_SECONDS if is_news else USAGE_SECONDS):
            return
        if not any(each.fleet.workers for each in self.pools.values()):
            return
        self._measured_at = now
        usage = self._runtime.usage()
        memory = {worker: used.memory_bytes for worker, used in usage.items()}
        cpu = {worker: used.cpu_seconds for worker, used in usage.items()}
        for each in self.pools.values():
            each.fleet = measured(each.fleet, memory, cpu)
        self._conditions.share.learn([each.fleet for each in self.pools.values()], usage, now=now)

    def _end_overdue(self, pool: Pool, *, now: Monotonic) -> None:
        for worker in pool.fleet.leaving:
            if worker.deadline_at is not None and now >= worker.deadline_at:
                self._executor.end_overdue(pool, worker.worker, why="it did not finish within its grace", now=now)

    # -- shutdown -------------------------------------------------------------------------------------------------

    def _finish_pool(self, pool: Pool, *, why: str, now: Monotonic) -> None:
        """Let every worker of a removed pool finish and exit; repeat until none is left."""
        pool.fleet = without_external(pool.fleet)
        for worker in [w.worker for w in pool.fleet.workers.values() if w.deadline_at is None]:
            if not self._executor.finish(pool, WorkerRemoval(worker, why), grace_seconds=pool.grace_seconds, now=now):
                break

    def drain_all(self, *, why: str) -> None:
        """Ask every worker to finish within its grace; `end_overdue` kills those that do not."""
        now = self._clock.monotonic()
        for pool in self.pools.values():
            grace = pool.spec.grace if pool.spec else pool.grace_seconds
            for w in pool.fleet.workers.values():
                if w.deadline_at is None and not w.is_external:
                    self._executor.drain(pool, w.worker, why=why, grace_seconds=grace, now=now)

    def tasks_in_progress(self) -> tuple[list[dict[str, object]], int]:
        """Return tasks that our workers hold, each with its pool, worker and seconds so far; and how many there are.

        Of `MAX_ASKED` workers at most the tasks are named; those of the others are counted as last seen.
        """
        workers = [(pool, w) for pool in self.pools.values() for w in pool.fleet.workers.values() if not w.is_external]
        workers.sort(key=lambda pair: -pair[1].leases)
        held: list[dict[str, object]] = []
        uncounted = 0
        for index, (pool, worker) in enumerate(workers):
            found: Sequence[SuspectedTask] = ()
            if index < MAX_ASKED and pool.spec is not None:
                try:
                    found = self._source.held_by(worker.worker, pool.spec)
                except SourceUnavailableError:
                    uncounted += worker.leases
            else:
                uncounted += worker.leases
            held += [
                {"pool": pool.name, "worker": worker.worker, "task": one.task, "seconds": round(one.held_seconds, 3)}
                for one in found
            ]
        return held, len(held) + uncounted

    def drained_at(self) -> float | None:
        """Return since when this host is drained (see `OverrideReader.drained_at`)."""
        return self._conditions.overrides.drained_at()

    def drain_host(self) -> None:
        """Ask every worker to finish, and drop all decisions: this host is drained."""
        self.drain_all(why="this host is drained")
        for pool in self.pools.values():
            pool.decision = None

    def keep_usage(self) -> None:
        """Write budgets and workers' usage to disk now."""
        self._conditions.keep(at_once=True)

    def end_overdue(self) -> None:
        """Kill workers that did not finish within their grace."""
        for pool in self.pools.values():
            self._end_overdue(pool, now=self._clock.monotonic())

    @property
    def has_killed_all(self) -> bool:
        """Return whether every worker that is left was killed, so that only exits are missing."""
        workers = [w for pool in self.pools.values() for w in pool.fleet.workers.values() if not w.is_external]
        return all(worker.state == "killed" for worker in workers)

    def kill_all(self, *, why: str) -> None:
        """Kill every worker now, before its grace is over."""
        for pool in self.pools.values():
            for worker in pool.fleet.workers:
                self._executor.kill(pool, worker, why=why, now=self._clock.monotonic(), is_cut_short=True)


def _restored(name: str, learned: Mapping[str, object]) -> PolicyState:
    """Return the pool's stored policy state; a new one, with a warning, when that can't be read."""
    if name not in learned:
        return PolicyState()
    try:
        return PolicyState.from_json(learned[name])
    except ValueError as error:
        log.warning(events.STATE_DISCARDED, pool=name, error=str(error))
        return PolicyState()


def _draining_seconds(ended: Exit, worker: Worker | None, spec: PoolSpec | None) -> float | None:
    """Return how long before its end the worker was asked to finish, at most; None when it was not."""
    grace = spec.grace if spec else 0.0
    if worker is None or worker.deadline_at is None:
        return grace if ended.is_stopped else None
    return max(0.0, ended.at - worker.since) + (grace if worker.state == "killed" else 0.0)


def _turn_order(pool: Pool) -> tuple[int, str]:
    return order_of(pool.spec) if pool.spec else (0, pool.name)


def _digest(spec: PoolSpec | None) -> str:
    return spec.digest() if spec else ""
