"""Give each pool its own source of work: a queue of ours, or a Celery fleet's broker. The store has the leadership."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import PresentWorker, QueueSample, UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.source import ReleasedTask, SampleQuery, WorkSource
from orchestrator.sources.celery.source import CeleryFleets

SLICE_SECONDS: Final = 1.0
"""Where pools of both kinds sleep, each kind is waited for in turn for so long."""


class PoolSources:
    """A `WorkSource` that asks the source of each pool."""

    def __init__(self, queues: WorkSource, fleets: CeleryFleets) -> None:
        self._queues = queues
        self._fleets = fleets

    def _source_of_pool(self, pool: PoolSpec) -> WorkSource:
        return self._queues if pool.source is None else self._fleets

    def _source_of_worker(self, worker: str) -> WorkSource:
        return self._fleets if self._fleets.has_worker(worker) else self._queues

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        """See `WorkSource.sample`."""
        return self._source_of_pool(pool).sample(pool, workers=workers, ahead_seconds=ahead_seconds, now=now)

    def samples(
        self, queries: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        """See `WorkSource.samples`: those of our queues; the others are sampled one by one, from what is at hand."""
        self._fleets.samples((), now=now)
        return self._queues.samples([query for query in queries if query.pool.source is None], now=now)

    def unserved(self, pools: Sequence[PoolSpec]) -> Sequence[UnservedTag]:
        """See `WorkSource.unserved`."""
        ours = [pool for pool in pools if pool.source is None]
        return self._queues.unserved(ours) if ours else ()

    def publish(self, pools: Sequence[PoolSpec], *, gone: Collection[str] = ()) -> None:
        """See `WorkSource.publish`."""
        self._queues.publish([pool for pool in pools if pool.source is None], gone=gone)

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        """See `WorkSource.present`."""
        return self._source_of_pool(pool).present(pool)

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        """See `WorkSource.retire`."""
        return self._source_of_worker(worker).retire(worker, busy=busy)

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        """See `WorkSource.given_back_by`."""
        return self._source_of_pool(pool).given_back_by(worker, pool, within_seconds=within_seconds)

    def lapsed_by(self, worker: str, pool: PoolSpec, *, named: Collection[str] = ()) -> Sequence[ReleasedTask]:
        """See `WorkSource.lapsed_by`."""
        return self._source_of_pool(pool).lapsed_by(worker, pool, named=named)

    def release_held_by(self, worker: str, notice: DeathNotice) -> Sequence[ReleasedTask]:
        """See `WorkSource.release_held_by`."""
        return self._source_of_worker(worker).release_held_by(worker, notice)

    def give_back(self, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> Sequence[ReleasedTask]:
        """See `WorkSource.give_back`: only tasks of our queues are ever suspected."""
        return self._queues.give_back(tasks, notice)

    def held_by(self, worker: str, pool: PoolSpec, *, payload_bytes: int = 0) -> Sequence[SuspectedTask]:
        """See `WorkSource.held_by`."""
        return self._source_of_pool(pool).held_by(worker, pool, payload_bytes=payload_bytes)

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        """See `WorkSource.has_worked`."""
        return self._source_of_pool(pool).has_worked(worker, pool)

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> Sequence[str]:
        """See `WorkSource.apply_verdicts`: only tasks of our queues are ever suspected."""
        return self._queues.apply_verdicts(verdicts, notice)

    def recall(self, tasks: Sequence[IsolatedTask]) -> None:
        """See `WorkSource.recall`."""
        self._queues.recall(tasks)

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        """See `WorkSource.wait_for_arrival`: a call for each kind of source, where there are both."""
        ours = [pool for pool in pools if pool.source is None]
        fleets = [pool for pool in pools if pool.source is not None]
        if not fleets:
            return self._queues.wait_for_arrival(ours, timeout_seconds=timeout_seconds)
        if not ours:
            return self._fleets.wait_for_arrival(fleets, timeout_seconds=timeout_seconds)
        try:
            found = self._fleets.wait_for_arrival(fleets, timeout_seconds=0.0)
        except SourceUnavailableError:
            found = None  # a broker that is away must not hold up our queues
        if found is not None:
            return found
        return self._queues.wait_for_arrival(ours, timeout_seconds=min(SLICE_SECONDS, timeout_seconds))

    def kept(self) -> str | None:
        """See `WorkSource.kept`."""
        return self._queues.kept()

    def keep(self, text: str) -> None:
        """See `WorkSource.keep`."""
        self._queues.keep(text)

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        """See `WorkSource.lead`."""
        return self._queues.lead(supervisor, seconds=seconds)
