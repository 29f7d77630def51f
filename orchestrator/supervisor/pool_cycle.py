"""One turn of a pool: sample, learn, decide, plan, act.

What is learned, decisions and plans are pure functions of other modules; here they meet a source and a runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.external import ExternalWorkers, observe_external, wanted_again
from orchestrator.fleet.observation import observe
from orchestrator.fleet.quarantine import reserved
from orchestrator.fleet.responsiveness import mark_unresponsive, next_watch
from orchestrator.samples import QueueSample
from orchestrator.scaling.context import context_of
from orchestrator.scaling.deadline import HelperPool
from orchestrator.scaling.decision import Decision
from orchestrator.scaling.learning import learn
from orchestrator.scaling.plan import Plan, plan_actions
from orchestrator.scaling.policy import decide
from orchestrator.scaling.replay import recorded
from orchestrator.scaling.sharing import SharingPool, helper, sharers
from orchestrator.source import SampleQuery, WorkSource
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.conditions import ConditionsTracker
from orchestrator.supervisor.executor import PlanExecutor
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.quarantine_runner import QuarantineRunner

log = structlog.get_logger()


class PoolTurn:
    """What one turn does to one pool; a turn of several pools is `look` of each, then `settle` of each."""

    def __init__(
        self,
        *,
        source: WorkSource,
        clock: MonotonicClock,
        files: StateDir,
        acts: PlanExecutor,
        errands: QuarantineRunner,
        conditions: ConditionsTracker,
        may_act: Callable[[], bool],
        pools: Mapping[str, Pool],
    ) -> None:
        """`may_act`: whether to change the fleet right now; `pools` are all there are, by name."""
        self._source = source
        self._clock = clock
        self._files = files
        self._acts = acts
        self._errands = errands
        self._conditions = conditions
        self._may_act = may_act
        self._pools = pools
        self._ahead: dict[str, QueueSample | SourceUnavailableError] = {}
        self._specs: dict[str, PoolSpec] = {}
        self._sharers: dict[str, list[str]] = {}

    def look_ahead(self, pools: Sequence[Pool]) -> None:
        """Look at the work of those whose turn it is, all at once; the `look` at each goes on from there."""
        specs = {pool.name: pool.spec for pool in self._pools.values() if pool.spec is not None}
        if specs.keys() != self._specs.keys() or any(self._specs[name] is not spec for name, spec in specs.items()):
            self._specs, self._sharers = specs, sharers(specs.values())
        # Of an external pool the queue is to tell who is present too: a sample alone does not say all.
        asked = [
            SampleQuery(pool.spec, pool.fleet.workers.keys(), pool.ahead_seconds(pool.spec))
            for pool in pools
            if pool.spec is not None and pool.spec.runtime_kind != "external"
        ]
        self._ahead = dict(self._source.samples(asked, now=self._clock.monotonic())) if len(asked) > 1 else {}

    def look(self, pool: Pool, spec: PoolSpec) -> None:
        """See what there is to do, and what the pool wishes."""
        self._sample(pool, spec)
        if pool.suspects:
            self._isolate(pool, spec)
        self._decide(pool)

    def _isolate(self, pool: Pool, spec: PoolSpec) -> None:
        """Start workers for suspects, before the pool is given another size."""
        if self._may_act() and not spec.dry_run and self._conditions.overrides.drained_at() is None:
            bounded, conditions = self._conditions.of(spec, pool.fleet)
            if conditions.paused == "no":
                self._errands.run(pool, bounded)

    def _decide(self, pool: Pool) -> None:
        if pool.spec is None or pool.sample is None or not self._may_act():
            return
        now = self._clock.monotonic()
        spec, conditions = self._conditions.of(pool.spec, pool.fleet)
        if pool.outage is not None and now < pool.outage.retry_at:
            conditions = replace(conditions, runtime_trouble=pool.outage.why)
        if pool.name in self._sharers:
            conditions = replace(conditions, helpers=self._helpers(spec, pool, pool.sample, now))
        learned = learn(pool.state, pool.sample, fleet=pool.fleet, spec=spec, now=now)
        pool.decision = decide(
            context_of(pool.sample, fleet=pool.fleet, spec=spec, state=learned, now=now, conditions=conditions)
        )
        pool.state = learned.after(pool.decision)
        pool.effective, pool.conditions = spec, conditions
        self._conditions.share.decided(spec, pool.fleet, pool.decision)

    def _helpers(self, spec: PoolSpec, pool: Pool, sample: QueueSample, now: Monotonic) -> tuple[HelperPool, ...]:
        """The other pools whose workers take tasks of this one, as they are now: with those they have just started."""
        own = SharingPool(spec, pool.fleet, sample, pool.state)
        return tuple(
            [
                helper(own, SharingPool(other.spec, other.fleet, other.sample, other.state), now=now)
                for other in map(self._pools.get, self._sharers[spec.name])
                if other is not None and other.spec is not None and other.sample is not None and other.fleet.alive
            ]
        )

    def settle(self, pool: Pool) -> None:
        """Bring the pool towards the size decided."""
        if pool.decision is not None and pool.decision.target > pool.decision.current:
            self._decide(pool)  # by now the others have told what they want of the host
        decision, spec, sample = pool.decision, pool.effective, pool.sample
        if not (pool.spec and decision and spec and sample and self._may_act()):
            return
        if spec.runtime_kind == "external" and not spec.dry_run:
            pool.fleet = wanted_again(pool.fleet, decision.target - len(pool.fleet.alive), now=decision.at)
        todo = plan_actions(
            decision,
            fleet=pool.fleet,
            spec=spec,
            now=decision.at,
            conditions=pool.conditions,
            reserved=reserved(pool.suspects, running=len(pool.errands)),
        )
        pool.tally.decided(decision)
        if self._tell(pool, decision, todo, dry_run=spec.dry_run):
            inputs = recorded(
                sample, pool.fleet, spec=spec, state=pool.state, now=decision.at, conditions=pool.conditions
            )
            head = {"at": round(self._clock.wall_seconds(), 3), "pool": pool.name, "target": decision.target}
            self._files.replays.append({**head, "inputs": inputs})
        if not (spec.dry_run or todo.is_empty):
            self._acts.carry_out(todo, pool, spec, now=decision.at)
            self._conditions.share.decided(spec, pool.fleet, decision)

    def _sample(self, pool: Pool, spec: PoolSpec) -> None:
        """Look at the work. Without an answer the last sample stands, and grows old (see `guards.stale_sample`)."""
        try:
            sample = self._sampled(pool, spec)
        except SourceUnavailableError as error:
            if not pool.is_stale:
                log.warning(events.SOURCE_UNAVAILABLE, pool=pool.name, error=str(error))
            pool.is_stale = True
            return
        if pool.is_stale:
            log.info(events.SOURCE_RECOVERED, pool=pool.name)
        last, pool.is_stale = None if pool.is_stale else pool.sample, False
        before = pool.fleet
        since = pool.sample.at if pool.sample else None
        pool.watch = next_watch(pool.watch, sample, last=last, turn_seconds=spec.turn_seconds)
        pool.sample = sample
        pool.fleet = mark_unresponsive(observe(before, sample), sample, spec=spec, watch=pool.watch)
        pool.tally.sampled(sample, since=since, slo_seconds=spec.slo)
        if pool.fleet is not before:
            for started in pool.fleet.started:
                log.info(
                    events.WORKER_STARTED, pool=pool.name, worker=started.worker, seconds=round(started.seconds, 3)
                )
            self._acts.tell_of_unresponsive(pool, before)

    def _sampled(self, pool: Pool, spec: PoolSpec) -> QueueSample:
        """Return the pool's work, as looked at ahead or now; where only the queue tells of workers, see who is there.

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
        called = observe_external(pool.fleet, present, sample, spec=spec, now=now)
        _count_and_log(pool, called)
        pool.fleet = called.fleet
        return sample

    def _tell(self, pool: Pool, decision: Decision, todo: Plan, *, dry_run: bool) -> bool:
        """Log the decision with its numbers, when it changes the pool or is held back in a new way; whether it did.

        A dry run changes nothing: there it is told when it would do something else than before.
        """
        before, pool.told = pool.told, (decision.target, decision.limited_by)
        is_news = pool.told != before
        if (todo.is_empty and not (decision.limited_by and is_news)) or (dry_run and not is_news):
            return False
        record = decision.record()
        log.info(events.POOL_DECIDED, **record)
        self._files.decisions.append({"at": round(self._clock.wall_seconds(), 3), **record})
        return True


def _count_and_log(pool: Pool, called: ExternalWorkers) -> None:
    for worker in called.came:
        log.info(events.WORKER_CAME, pool=pool.name, worker=worker)
    pool.tally.starts += called.answers
    for gone in called.gone:
        cause = Cause.DRAINED if gone.released else Cause.UNKNOWN
        pool.tally.died(cause, failed_start=False)
        lived_seconds = round(gone.lived_seconds, 3)
        log.info(
            events.WORKER_LEFT, pool=pool.name, worker=gone.worker, released=gone.released, lived_seconds=lived_seconds
        )
