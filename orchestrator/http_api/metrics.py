"""Prometheus metrics of a fleet, explained in docs/reference/metrics.md. Workers and tasks are never labels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.samples import Outcome, QueueSample
from orchestrator.fleet.exits import Cause
from orchestrator.scaling.decision import GuardName
from orchestrator.scaling.lease_waits import BUCKETS as WAIT_BUCKETS
from orchestrator.supervisor.pool import ConcernKind
from orchestrator.supervisor.view import DURATION_BUCKETS, WORKER_STATES, FleetView, Heartbeat, PoolView, TurnDurations

GUARDS: Final[Sequence[GuardName]] = get_args(GuardName)
OUTCOMES: Final[Sequence[Outcome]] = get_args(Outcome)

Number = Callable[[PoolView], float]


def _is_concern(pool: PoolView, *kinds: ConcernKind) -> float:
    return float(pool.concern is not None and not set(kinds).isdisjoint(pool.concern.kinds))


_ALWAYS: Final[Mapping[str, tuple[str, Number]]] = {
    "alive_workers": ("Workers that are not asked to leave.", lambda pool: pool.alive),
    "min_workers": ("The lower bound in force.", lambda pool: pool.spec.workers.min),
    "max_workers": ("The upper bound in force.", lambda pool: pool.spec.workers.max),
    "memory_bytes": ("Memory of all workers.", lambda pool: pool.memory_bytes),
    "slo_seconds": ("The longest a task may wait.", lambda pool: pool.spec.slo),
    "late": ("1 while a task waits longer than the slo.", lambda pool: _is_concern(pool, "late")),
    "bounded": ("1 while a bound denies it workers.", lambda pool: _is_concern(pool, "at_max", "held_back")),
    "suspects": ("Tasks that wait for workers of their own.", lambda pool: pool.suspected),
    "failed_starts_in_a_row": ("Starts that failed since the last successful one.", lambda pool: pool.failed_starts),
}
_TOTALS: Final[Mapping[str, tuple[str, Number]]] = {
    "late_leases": ("First leases that began later than the slo.", lambda pool: pool.counters.late_leases),
    "starts": ("Workers started.", lambda pool: pool.counters.starts),
    "failed_starts": ("Starts that failed.", lambda pool: pool.counters.failed_starts),
}
_SAMPLED: Final[Mapping[str, tuple[str, Callable[[QueueSample], float]]]] = {
    "ready": ("Tasks leasable now.", lambda sample: sample.ready),
    "held": ("Tasks kept from being leased by limits of the queue or of their tags.", lambda sample: sample.held),
    "delayed": ("Tasks whose eta is ahead.", lambda sample: sample.delayed),
    "in_flight": ("Tasks under a lease.", lambda sample: sample.in_flight),
    "dead": ("Tasks kept aside after their last lease.", lambda sample: sample.dead),
    "paused": ("1 while the queue grants no lease.", lambda sample: sample.paused),
}


class FleetMetrics(Collector):
    """Reads the supervisor's fleet view at each scrape; stores nothing."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        clock: MonotonicClock,
        pools: frozenset[str] | None = None,
        queues: frozenset[str] | None = None,
    ) -> None:
        """`pools`, `queues`: those that are shown; None: all."""
        self._heartbeat = heartbeat
        self._clock = clock
        self._pools = pools
        self._queues = queues

    def of(self, pools: frozenset[str], queues: frozenset[str]) -> "FleetMetrics":
        """Return the metrics of these pools and queues only."""
        return FleetMetrics(self._heartbeat, self._clock, pools, queues)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the labels depend on the pools."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per name."""
        heartbeat, view, now = self._heartbeat, self._heartbeat.view, self._clock.monotonic()
        started_at = self._clock.wall_seconds() - (now - heartbeat.started_at)
        yield from _supervisor(heartbeat, view, now=now, started_at=started_at)
        pools = [one for one in sorted(view.pools.items()) if self._pools is None or one[0] in self._pools]
        yield _info(pools)
        yield from _simple(pools)
        yield from _labelled(pools)
        yield _waits(pools)
        yield from _sampled(pools, now=now)
        yield from _decided(pools, now=now)
        yield _unserved(view, self._queues)


Pools = Sequence[tuple[str, PoolView]]


def _supervisor(heartbeat: Heartbeat, view: FleetView, *, now: Monotonic, started_at: float) -> Iterator[Metric]:
    rounds = heartbeat.rounds
    for name, help_text, number in (
        ("leading", "1 while this supervisor is the leader.", float(view.phase == "leading")),
        ("live", "1 while the supervisor's turns finish.", float(heartbeat.is_live(now=now))),
        ("turn_age_seconds", "Seconds since the last turn finished.", max(0.0, now - heartbeat.passed_at)),
        ("pools", "Pools in the settings.", len(view.pools)),
        ("start_time_seconds", "Start time of the supervisor, in seconds since the epoch.", round(started_at, 3)),
    ):
        yield GaugeMetricFamily(f"towline_supervisor_{name}", help_text, value=number)
    yield CounterMetricFamily(
        "towline_supervisor_failed_turns", "Rounds of turns in which one failed.", value=rounds.failed
    )
    yield _durations(rounds)


def _unserved(view: FleetView, shown: frozenset[str] | None) -> Metric:
    """Return the tasks that no pool works on, by queue: tags are no labels, as anybody may make new ones."""
    help_text = "Tasks that wait with a tag, or without one, on which no pool works."
    family = GaugeMetricFamily("towline_queue_unserved_tasks", help_text, labels=["queue"])
    counts = dict.fromkeys(sorted(queue for pool in view.pools.values() for queue in pool.spec.queues), 0)
    for one in view.unserved:
        counts[one.queue] = counts.get(one.queue, 0) + one.tasks
    for queue, count in counts.items():
        if shown is not None and queue not in shown:
            continue
        family.add_metric([queue], count)
    return family


def _durations(rounds: TurnDurations) -> Metric:
    help_text = "How long one round of due turns took, in seconds."
    buckets = _buckets(DURATION_BUCKETS, rounds.counts)
    return HistogramMetricFamily(
        "towline_supervisor_turn_duration_seconds", help_text, buckets=buckets, sum_value=rounds.seconds
    )


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative counts per bucket, with +Inf last, as Prometheus expects."""
    titles = [*[f"{bound:g}" for bound in bounds], "+Inf"]
    return [(title, float(count)) for title, count in zip(titles, accumulate(counts), strict=True)]


def _info(pools: Pools) -> Metric:
    family = GaugeMetricFamily("towline_pool_info", "Always 1.", labels=["pool", "queue", "runtime"])
    for name, pool in pools:
        family.add_metric([name, pool.spec.queue, pool.spec.runtime_kind], 1.0)
    return family


def _simple(pools: Pools) -> Iterator[Metric]:
    for name, (help_text, number) in _ALWAYS.items():
        gauge = GaugeMetricFamily(f"towline_pool_{name}", help_text, labels=["pool"])
        for pool, view in pools:
            gauge.add_metric([pool], number(view))
        yield gauge
    for name, (help_text, number) in _TOTALS.items():
        counter = CounterMetricFamily(f"towline_pool_{name}", help_text, labels=["pool"])
        for pool, view in pools:
            counter.add_metric([pool], number(view))
        yield counter


def _labelled(pools: Pools) -> Iterator[Metric]:
    workers = GaugeMetricFamily("towline_pool_workers", "Workers by state.", labels=["pool", "state"])
    deaths = CounterMetricFamily("towline_pool_deaths", "Workers that ended, by cause.", labels=["pool", "cause"])
    leases = CounterMetricFamily("towline_pool_leases", "Leases that ended.", labels=["pool", "outcome"])
    labels = ["pool", "rule", "direction"]
    decisions = CounterMetricFamily("towline_pool_decisions", "Decisions, by rule and direction.", labels=labels)
    for name, pool in pools:
        for state in WORKER_STATES:
            workers.add_metric([name, state], pool.states[state])
        for cause in Cause:
            deaths.add_metric([name, cause.value.replace(" ", "_")], pool.counters.deaths.get(cause, 0))
        for outcome in OUTCOMES:
            leases.add_metric([name, outcome], pool.counters.leases.get(outcome, 0))
        for (rule, direction), count in pool.counters.decisions.items():
            decisions.add_metric([name, rule, direction], count)
    yield from (workers, deaths, leases, decisions)


def _waits(pools: Pools) -> Metric:
    help_text = "How long tasks had waited when a lease of them began, over the slo."
    family = HistogramMetricFamily("towline_wait_over_slo", help_text, labels=["pool"])
    for name, pool in pools:
        waits = pool.counters.waits
        family.add_metric([name], buckets=_buckets(WAIT_BUCKETS, waits.counts), sum_value=waits.total)
    return family


def _sampled(pools: Pools, *, now: Monotonic) -> Iterator[Metric]:
    sampled = [(name, pool, pool.sample) for name, pool in pools if pool.sample is not None]
    for metric, (help_text, number) in _SAMPLED.items():
        gauge = GaugeMetricFamily(f"towline_pool_{metric}", help_text, labels=["pool"])
        for name, _, sample in sampled:
            gauge.add_metric([name], number(sample))
        yield gauge
    help_text = "How long the oldest ready task had waited."
    oldest = GaugeMetricFamily("towline_pool_oldest_age_seconds", help_text, labels=["pool"])
    age = GaugeMetricFamily(
        "towline_pool_sample_age_seconds", "Seconds since the queue was last sampled.", labels=["pool"]
    )
    for name, pool, sample in sampled:
        oldest.add_metric([name], pool.oldest_seconds)
        age.add_metric([name], max(0.0, now - sample.at))
    yield from (oldest, age)


def _decided(pools: Pools, *, now: Monotonic) -> Iterator[Metric]:
    desired = GaugeMetricFamily("towline_pool_desired_workers", "Workers it should have.", labels=["pool"])
    help_text = "Workers it should have without guards."
    unguarded = GaugeMetricFamily("towline_pool_unguarded_workers", help_text, labels=["pool"])
    age = GaugeMetricFamily("towline_pool_decision_age_seconds", "Seconds since the last decision.", labels=["pool"])
    rate = GaugeMetricFamily("towline_pool_arrival_rate", "Tasks a second that become leasable.", labels=["pool"])
    service = GaugeMetricFamily("towline_pool_service_seconds", "How long a lease takes.", labels=["pool"])
    startup = GaugeMetricFamily("towline_pool_startup_seconds", "How long a start takes.", labels=["pool"])
    guards = GaugeMetricFamily(
        "towline_pool_guard_active", "1 while the guard holds the pool back.", labels=["pool", "guard"]
    )
    for name, pool in pools:
        decision = pool.decision
        active = decision.limited_by if decision else ()
        for guard in GUARDS:
            guards.add_metric([name, guard], float(guard in active))
        if decision is None or pool.desired is None:
            continue
        desired.add_metric([name], pool.desired)
        unguarded.add_metric([name], decision.unguarded)
        age.add_metric([name], max(0.0, now - decision.at))
        rate.add_metric([name], decision.inputs.arrival_rate)
        service.add_metric([name], decision.inputs.service_seconds)
        startup.add_metric([name], decision.inputs.startup_seconds)
    yield from (desired, unguarded, age, rate, service, startup, guards)
