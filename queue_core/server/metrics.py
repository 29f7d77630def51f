"""Metrics for Prometheus: counts and totals per queue. Tags are never labels: there may be a million of them."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queue_core.clock import ClockSteps, Instant
from queue_core.server.callers.access import QueueAccess
from queue_core.server.callers.auth import Principal
from queue_core.stats import QueueStats
from queue_core.task import ANY
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import HeldSnapshot

GAUGES = {
    "ready": "Tasks leasable now.",
    "held": "Tasks that limits of their tags hold back.",
    "delayed": "Tasks whose eta is ahead.",
    "in_flight": "Tasks under a lease.",
    "dead": "Tasks kept aside after their last lease.",
}
COUNTERS = {
    "added": "Tasks added.",
    "leased": "Leases granted.",
    "deleted": "Tasks deleted inside a lease.",
    "released": "Leases given back.",
    "expired": "Leases that expired.",
    "died": "Tasks that became dead.",
}

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

AllStats = tuple[Instant, Sequence[QueueStats]]


def read_all_stats(work: UnitOfWork, access: QueueAccess, caller: Principal) -> AllStats:
    """Return the counts of every queue that the caller may see, at one instant."""
    return work.now, [work.stats(spec.name, ANY) for spec in access.visible(caller, work.transaction.queues())]


class QueueMetrics(Collector):
    """Reads the counts when it is scraped; keeps nothing."""

    def __init__(
        self,
        read: Callable[[], AllStats],
        waiting: Callable[[], int],
        lost: Callable[[], int],
        steps: Callable[[], ClockSteps],
        held: Callable[[], HeldSnapshot | None],
    ) -> None:
        """Args:
        read: returns the counts of all queues.
        waiting: returns the number of waiting lease calls.
        lost: returns the number of lines of the lifecycle log that could not be written.
        steps: returns the steps of the store's clock.
        held: returns the snapshot of the store that somebody holds for too long.
        """
        self._steps = steps
        self._read = read
        self._waiting = waiting
        self._lost = lost
        self._held = held

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registering must not read the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield one family per count."""
        now, queues = self._read()
        yield GaugeMetricFamily("towline_waiting_leases", "Lease calls that wait for a task.", value=self._waiting())
        yield CounterMetricFamily(
            "towline_log_lost_lines", "Lines of the lifecycle log that could not be written.", value=self._lost()
        )
        steps = self._steps()
        yield CounterMetricFamily(
            "towline_clock_steps", "Steps of the clock below the store's time.", value=steps.steps
        )
        yield GaugeMetricFamily(
            "towline_clock_lag_seconds",
            "How far that clock is ahead of the store's time, which follows it little by little.",
            value=steps.lag_seconds,
        )
        yield from _held_metrics(self._held())
        for name, description in GAUGES.items():
            gauge = GaugeMetricFamily(f"towline_queue_{name}", description, labels=["queue"])
            for stats in queues:
                gauge.add_metric([stats.queue], getattr(stats, name))
            yield gauge
        oldest = GaugeMetricFamily(
            "towline_queue_oldest_ready_seconds", "How long the oldest ready task has waited.", labels=["queue"]
        )
        paused = GaugeMetricFamily("towline_queue_paused", "1 while no leases are granted.", labels=["queue"])
        for stats in queues:
            oldest.add_metric([stats.queue], stats.oldest_ready_seconds(now))
            paused.add_metric([stats.queue], float(stats.paused))
        yield oldest
        yield paused
        for name, description in COUNTERS.items():
            counter = CounterMetricFamily(f"towline_queue_{name}", description, labels=["queue"])
            for stats in queues:
                counter.add_metric([stats.queue], getattr(stats, f"{name}_total"))
            yield counter


def _held_metrics(held: HeldSnapshot | None) -> Iterator[Metric]:
    snapshot = GaugeMetricFamily(
        "towline_store_held_snapshot", "1 while somebody holds a snapshot of the store for too long.", labels=["kind"]
    )
    if held is not None:
        snapshot.add_metric([held.kind], 1.0)
    yield snapshot
    yield GaugeMetricFamily(
        "towline_store_held_dead_rows",
        "Dead rows that a held snapshot keeps from being removed.",
        value=held.dead_rows if held else 0,
    )
    yield GaugeMetricFamily(
        "towline_store_held_log_bytes",
        "Bytes of the log that a held snapshot keeps from being used again.",
        value=held.log_bytes if held else 0,
    )


def exposition(*collectors: Collector) -> bytes:
    """Return the text format of these collectors, from a registry of their own."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)
