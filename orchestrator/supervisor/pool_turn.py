"""Run one turn of a pool: sample, learn, decide, plan, execute.

Learning, decisions and plans are pure functions of other modules; here they meet a source and a runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.external import ExternalWorkers, observe_external, wanted_again
from orchestrator.fleet.observation import observe
from orchestrator.fleet.quarantine import reserved
from orchestrator.fleet.responsiveness import mark_unresponsive, next_watch
from orchestrator.fleet.trend import point_of, trend_after
from orchestrator.scaling.context import context_of
from orchestrator.scaling.deadline import HelperPool
from orchestrator.scaling.decision import Decision
from orchestrator.scaling.learning import learn
from orchestrator.scaling.plan import Plan, plan_actions
from orchestrator.scaling.policy import decide
from orchestrator.scaling.replay import recorded
from orchestrator.scaling.rules import NOTHING_TO_CHANGE
from orchestrator.scaling.sharing import SharingPool, helper, sharers
from orchestrator.source import SampleQuery, WorkSource
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.conditions import ConditionsTracker
from orchestrator.supervisor.episodes import TroubleEpisode, after_check
from orchestrator.supervisor.executor import PlanExecutor
from orchestrator.supervisor.pool import Pool, severity_of
from orchestrator.supervisor.quarantine_runner import QuarantineRunner
from queue_core.log import get_logger
from queue_core.process.wording import shown_seconds, shown_setting

log = get_logger()

REPEAT_SECONDS: Final = 1.0
"""A decision that is made again within this time is logged once."""


class PoolTurn:
    """Runs turns. For several pools, call `sample_and_decide` for each, then `act` for each."""

    def __init__(
        self,
        *,
        source: WorkSource,
        clock: MonotonicClock,
        files: StateDir,
        executor: PlanExecutor,
        quarantine: QuarantineRunner,
        conditions: ConditionsTracker,
        may_act: Callable[[], bool],
        forks: Callable[[PoolSpec], bool],
        pools: Mapping[str, Pool],
    ) -> None:
        """`may_act` tells whether workers may be changed now; `forks` is the runtime's; `pools` are all by name."""
        self._source = source
        self._clock = clock
        self._files = files
        self._executor = executor
        self._quarantine = quarantine
        self._conditions = conditions
        self._may_act = may_act
        self._forks = forks
        self._pools = pools
        self._ahead: dict[str, QueueSample | SourceUnavailableError] = {}
        self._specs: dict[str, PoolSpec] = {}
        self._sharers: dict[str, list[str]] = {}

    def sample_ahead(self, pools: Sequence[Pool]) -> None:
        """Sample all pools that are due in few calls; `sample_and_decide` uses the results."""
        specs = {pool.name: spec for pool in self._pools.values() if (spec := pool.works_on) is not None}
        if specs.keys() != self._specs.keys() or any(self._specs[name] is not spec for name, spec in specs.items()):
            self._specs, self._sharers = specs, sharers(specs.values())
        # An external pool also needs its list of workers from the queue, so it is sampled on its own.
        queries = [
            SampleQuery(spec, pool.fleet.workers.keys(), pool.ahead_seconds(spec))
            for pool in pools
            if (spec := pool.works_on) is not None and spec.runtime_kind != "external"
        ]
        self._ahead = dict(self._source.samples(queries, now=self._clock.monotonic())) if len(queries) > 1 else {}

    def sample_and_decide(self, pool: Pool, spec: PoolSpec) -> None:
        """Sample the pool's queue, start solo workers for suspected tasks, and decide on a size."""
        self._sample(pool, spec)
        if pool.suspected:
            self._isolate(pool, spec)
        self._decide(pool)

    def _isolate(self, pool: Pool, spec: PoolSpec) -> None:
        """Start solo workers for suspected tasks before the pool is resized."""
        if self._may_act() and not spec.dry_run and self._conditions.overrides.drained_at() is None:
            bounded, conditions = self._conditions.of(spec, pool.fleet)
            if conditions.paused == "no":
                self._quarantine.run(pool, bounded)

    def _decide(self, pool: Pool) -> None:
        if pool.spec is None or pool.sample is None or not self._may_act():
            return
        now = self._clock.monotonic()
        spec, conditions = self._conditions.of(pool.spec, pool.fleet)
        if pool.outage is not None and now < pool.outage.retry_at:
            why = pool.outage.why
            conditions = (
                replace(conditions, quota=why) if pool.outage.is_quota else replace(conditions, runtime_trouble=why)
            )
        if pool.application_failure:
            conditions = replace(conditions, application_failure=pool.application_failure)
        if pool.name in self._sharers:
            conditions = replace(conditions, helpers=self._helpers(spec, pool, pool.sample, now))
        learned = learn(pool.state, pool.sample, fleet=pool.fleet, spec=spec, now=now)
        pool.decision = decide(
            context_of(pool.sample, fleet=pool.fleet, spec=spec, state=learned, now=now, conditions=conditions)
        )
        pool.state = learned.after(pool.decision)
        pool.effective, pool.conditions = spec, conditions
        self._conditions.share.record_demand(spec, pool.fleet, pool.decision)

    def _helpers(self, spec: PoolSpec, pool: Pool, sample: QueueSample, now: Monotonic) -> tuple[HelperPool, ...]:
        """Return the other pools whose workers also take this pool's tasks, with the workers they have just started."""
        own = SharingPool(spec, pool.fleet, sample, pool.state)
        return tuple(
            [
                helper(own, SharingPool(other.spec, other.fleet, other.sample, other.state), now=now)
                for other in map(self._pools.get, self._sharers[spec.name])
                if other is not None and other.spec is not None and other.sample is not None and other.fleet.alive
            ]
        )

    def act(self, pool: Pool) -> None:
        """Execute the actions that bring the pool towards the decided size."""
        if pool.decision is not None and pool.decision.target > pool.decision.current:
            self._decide(pool)  # by now the demand of the other pools is known
        decision, spec, sample = pool.decision, pool.effective, pool.sample
        if not (pool.spec and decision and spec and sample and self._may_act()):
            return
        if spec.runtime_kind == "external" and not spec.dry_run:
            pool.fleet = wanted_again(pool.fleet, decision.target - len(pool.fleet.alive), now=decision.at)
        plan = plan_actions(
            decision,
            fleet=pool.fleet,
            spec=spec,
            now=decision.at,
            conditions=pool.conditions,
            reserved=reserved(pool.suspected, running=len(pool.solo_workers)),
        )
        pool.counters.count_decision(decision)
        _log_trouble(pool, decision, spec)
        if record := self._log_decision(pool, decision, plan, dry_run=spec.dry_run):
            inputs = recorded(
                sample, pool.fleet, spec=spec, state=pool.state, now=decision.at, conditions=pool.conditions
            )
            at = round(self._clock.wall_seconds(), 3)  # one time for both, and inputs first: a reader finds a pair
            self._files.replays.append({"at": at, "pool": pool.name, "target": decision.target, "inputs": inputs})
            self._files.decisions.append({"at": at, **record})
        if not (spec.dry_run or plan.is_empty):
            if not self._executor.execute(plan, pool, spec, now=decision.at):
                pool.due_at = self._clock.monotonic()
            self._conditions.share.record_demand(spec, pool.fleet, decision)

    def _sample(self, pool: Pool, spec: PoolSpec) -> None:
        """Sample the queue. While that fails, the last sample stays and ages (see `guards.stale_sample`)."""
        try:
            sample = self._sampled(pool, pool.works_on or spec)
        except SourceUnavailableError as error:
            if not pool.is_stale:
                log.warning(events.SOURCE_UNAVAILABLE, pool=pool.name, error=str(error))
            pool.is_stale, pool.stale_why = True, str(error)
            return
        if pool.is_stale:
            log.info(events.SOURCE_RECOVERED, pool=pool.name)
        last, pool.is_stale = None if pool.is_stale else pool.sample, False
        before = pool.fleet
        since = pool.sample.at if pool.sample else None
        pool.watch = next_watch(pool.watch, sample, last=last, turn_seconds=spec.turn_seconds)
        pool.sample = sample
        pool.fleet = mark_unresponsive(observe(before, sample), sample, spec=spec, watch=pool.watch)
        if pool.fleet.forks != self._forks(spec):
            pool.fleet = replace(pool.fleet, forks=not pool.fleet.forks)
        pool.record_leases()
        pool.counters.count_sample(sample, since=since, slo_seconds=spec.slo)
        busy = sum(worker.state == "busy" for worker in pool.fleet.alive)
        pool.trend = trend_after(pool.trend, point_of(sample, workers=len(pool.fleet.alive), busy=busy))
        if pool.fleet is not before:
            for started in pool.fleet.started:
                log.info(
                    events.WORKER_STARTED, pool=pool.name, worker=started.worker, seconds=round(started.seconds, 3)
                )
            self._executor.log_unresponsive(pool, before)

    def _sampled(self, pool: Pool, spec: PoolSpec) -> QueueSample:
        """Return the pool's sample, prefetched or taken now; for an external pool, also find its workers.

        Raises `SourceUnavailableError`, with nothing changed.
        """
        ahead = self._ahead.pop(pool.name, None)
        if isinstance(ahead, SourceUnavailableError):
            raise ahead
        if ahead is not None:
            return ahead
        now, ahead_seconds = self._clock.monotonic(), pool.ahead_seconds(spec)
        if spec.runtime_kind != "external":
            return self._source.sample(spec, workers=pool.fleet.workers.keys(), ahead_seconds=ahead_seconds, now=now)
        present = self._source.present(spec)
        names = {*pool.fleet.workers, *(one.worker for one in present)}
        sample = self._source.sample(spec, workers=names, ahead_seconds=ahead_seconds, now=now)
        external = observe_external(pool.fleet, present, sample, spec=spec, now=now)
        _count_and_log(pool, external)
        pool.fleet = external.fleet
        return sample

    def _log_decision(self, pool: Pool, decision: Decision, plan: Plan, *, dry_run: bool) -> dict[str, object]:
        """Log a decision that changes the pool or is limited in a new way; return its record, empty if not logged.

        A dry run changes nothing: its decision is logged when it differs from the one before.
        """
        before, pool.last_logged = pool.last_logged, (decision.target, decision.limited_by)
        is_news = pool.last_logged != before
        if (plan.is_empty and not (decision.limited_by and is_news)) or (dry_run and not is_news):
            return {}
        if self._was_just_logged(pool, decision):
            return {}
        record = decision.record()
        if decision.why == NOTHING_TO_CHANGE and plan.replacing:
            record["why"] = plan.replacing  # of the pool's size there is nothing to say
        log.info(events.POOL_DECIDED, **record)
        return record

    @staticmethod
    def _was_just_logged(pool: Pool, decision: Decision) -> bool:
        """Return whether the same decision was made a moment ago: one whose worker took a task instead is repeated."""
        said = (decision.current, decision.target, decision.why, decision.limited_by)
        before, at = pool.last_decided
        pool.last_decided = said, at if said == before and decision.at - at < REPEAT_SECONDS else decision.at
        return said == before and decision.at - at < REPEAT_SECONDS


def _log_trouble(pool: Pool, decision: Decision, spec: PoolSpec) -> None:
    """Log the beginning and the end of tasks' lateness, or of a bound that denies workers; each once."""
    change = after_check(pool.episode, severity_of(pool), now=decision.at)
    pool.episode = change.episode
    if change.begins != "none":
        log.warning(
            events.POOL_TROUBLED,
            pool=pool.name,
            sentence=decision.trouble,
            is_late=decision.is_late,
            limited_by=list(decision.limited_by),
        )
    if change.ended is not None:
        log.info(
            events.POOL_RELIEVED,
            pool=pool.name,
            sentence=_relief(change.ended, spec),
            seconds=round(change.ended.seconds, 3),
        )


def _relief(ended: TroubleEpisode, spec: PoolSpec) -> str:
    lasted = f"that lasted {shown_seconds(ended.seconds)}" if ended.seconds > 0 else "that was for a moment"
    if ended.logged != "bounded":
        return f"no task waits longer than its SLO of {shown_setting(spec.slo)}: {lasted}"
    return f"no bound denies it workers any more: {lasted}"


def _count_and_log(pool: Pool, external: ExternalWorkers) -> None:
    for worker in external.came:
        log.info(events.WORKER_CAME, pool=pool.name, worker=worker)
    pool.counters.starts += external.answers
    for gone in external.gone:
        cause = Cause.DRAINED if gone.released else Cause.UNKNOWN
        pool.counters.count_death(cause, failed_start=False)
        lived_seconds = round(gone.lived_seconds, 3)
        log.info(
            events.WORKER_LEFT, pool=pool.name, worker=gone.worker, released=gone.released, lived_seconds=lived_seconds
        )
