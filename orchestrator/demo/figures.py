"""The figures of a run at one instant, by the store or by the lifecycle log. Values only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orchestrator.base.values import value
from orchestrator.demo.record import DemoRecord
from orchestrator.demo.script import STAGES
from queue_core.clock import Instant
from queue_core.stats import QueueStats, TagStats

_NOTHING: Final = QueueStats("")


@value
class StageFigures:
    """One pool and its tasks. `oldest_seconds`: how long its oldest ready task has waited."""

    workers: int = 0
    ready: int = 0
    in_flight: int = 0
    done: int = 0
    oldest_seconds: float = 0.0


@value
class RunFigures:
    """All pools, by name, at a time of the run."""

    at_seconds: float
    stages: Mapping[str, StageFigures]

    @property
    def total(self) -> StageFigures:
        """The sums of the pools' figures, and the longest wait."""
        stages = self.stages.values()
        return StageFigures(
            sum(stage.workers for stage in stages),
            sum(stage.ready for stage in stages),
            sum(stage.in_flight for stage in stages),
            sum(stage.done for stage in stages),
            max((stage.oldest_seconds for stage in stages), default=0.0),
        )


def figures_of(counts: Sequence[TagStats], workers: Iterable[str], *, now: Instant, at_seconds: float) -> RunFigures:
    """Return the figures by a store's counts per tag, which is also the pool, and the names of living workers."""
    sizes = _sizes(workers)
    by_tag = {found.tag: found.stats for found in counts}
    stages = {}
    for stage in STAGES:
        stats = by_tag.get(stage, _NOTHING)
        oldest = stats.oldest_ready_seconds(stats.as_of or now)
        stages[stage] = StageFigures(sizes[stage], stats.ready, stats.in_flight, stats.deleted_total, oldest)
    return RunFigures(at_seconds, stages)


def recorded_figures(record: DemoRecord, workers: Iterable[str], *, at_seconds: float) -> RunFigures:
    """Return the figures by the events so far, for when no server answers."""
    sizes = _sizes(workers)
    stages = {
        stage: StageFigures(sizes[stage], record.ready[stage], record.in_flight[stage], record.done[stage])
        for stage in STAGES
    }
    return RunFigures(at_seconds, stages)


def pool_of(worker: str) -> str:
    """Return the pool in a worker's name; it is also the tag of its tasks."""
    return worker.rpartition("-")[0]


def _sizes(workers: Iterable[str]) -> dict[str, int]:
    pools = [pool_of(worker) for worker in workers]
    return {stage: pools.count(stage) for stage in STAGES}
