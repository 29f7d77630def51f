"""Use a Celery fleet's broker as the source of work of the pools that name one: a watch per broker (ADR 2)."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import PresentWorker, QueueSample, UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.config.sources import CelerySource
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.source import ReleasedTask, SampleQuery
from orchestrator.sources.celery.nodes import CeleryNode

if TYPE_CHECKING:  # a supervisor without such a pool does not load kombu
    from orchestrator.sources.celery.watch import BrokerWatch

POLL_SECONDS: Final = 0.25
"""Interval at which the last probes are looked at for an arrival."""
RETIRING_SECONDS: Final = 1.0
"""Time that retirements may take of one turn: each waits for answers of its node. The others come in the next turns."""
TURN_SECONDS: Final = 1.0
"""Pause between two retirements from which they belong to different turns."""
SILENT_SECONDS: Final = 30.0
"""Silence after which a node that does not answer is taken to hang, so that it may be ended."""

Settings: TypeAlias = tuple[object, ...]


class CeleryFleets:
    """A `WorkSource` of pools with a Celery source; it has no leadership, which is the store's."""

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        clock: MonotonicClock,
        pause: Callable[[float], object],
        rng: random.Random,
    ) -> None:
        """Args:
        environment: has the variables that settings name.
        pause: waits for so many seconds.
        rng: spreads the probes.
        """
        self._environment = environment
        self._clock = clock
        self._pause = pause
        self._rng = rng
        self._watches: dict[Settings, BrokerWatch] = {}
        self._settings: dict[Settings, CelerySource] = {}
        self._pools: dict[str, PoolSpec] = {}
        self._retired_at = Monotonic(float("-inf"))
        self._retiring_seconds = 0.0

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        """See `WorkSource.sample`."""
        self._pools[pool.name] = pool
        return self._watch(pool).sample(pool, workers=workers, ahead_seconds=ahead_seconds, now=now)

    def samples(
        self,
        queries: Sequence[SampleQuery],  # noqa: ARG002
        *,
        now: Monotonic,
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        """See `WorkSource.samples`: each pool's is at hand already."""
        self._close_unused(now)
        return {}

    def unserved(self, pools: Sequence[PoolSpec]) -> Sequence[UnservedTag]:  # noqa: ARG002
        """See `WorkSource.unserved`: messages have no tags."""
        return ()

    def publish(self, pools: Sequence[PoolSpec], *, gone: Collection[str] = ()) -> None:
        """See `WorkSource.publish`: messages have no tags."""

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        """See `WorkSource.present`: the nodes that take tasks from the pool's queues."""
        now = self._clock.monotonic()
        watch = self._watch(pool)
        if not watch.has_pool(pool.name):
            watch.sample(pool, workers=(), ahead_seconds=0.0, now=now)
        return [
            PresentWorker(name, max(0.0, now - node.heard_at))
            for name, node in watch.nodes_of(pool).items()
            if not node.is_offline
        ]

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        """See `WorkSource.retire`: its consumers are taken away, and then it is looked whether it runs anything."""
        began_at = self._clock.monotonic()
        if began_at - self._retired_at > TURN_SECONDS:
            self._retiring_seconds = 0.0
        if self._retiring_seconds > RETIRING_SECONDS:
            return False
        try:
            return self._retired(worker, busy)
        finally:
            self._retired_at = self._clock.monotonic()
            self._retiring_seconds += self._retired_at - began_at

    def _retired(self, worker: str, busy: Literal["keep", "finish"]) -> bool:
        found = self._watch_of(worker)
        node = found.node_of(worker) if found is not None else None
        if found is None or node is None or node.is_offline:
            return True  # it takes nothing, or it never came up
        silent_seconds = self._clock.monotonic() - node.heard_at
        queues = found.control.queues_of(node.node)
        if queues is None:  # no answer
            return silent_seconds > SILENT_SECONDS and not (node.active or node.is_single)
        wall_seconds = self._clock.wall_seconds()
        found.fenced(worker)
        outcome = found.control.retire(node.node, queues, busy=busy, wall_seconds=wall_seconds)
        if outcome == "busy":
            found.unfenced(worker)
        if outcome == "free":
            etas = tuple(eta for eta in found.control.etas_of(node.node) if eta > wall_seconds)
            if etas:
                found.deferred(worker, etas)
        return outcome == "free"

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:  # noqa: ARG002
        """See `WorkSource.given_back_by`: unknown."""
        return ()

    def lapsed_by(self, worker: str, pool: PoolSpec, *, named: Collection[str] = ()) -> Sequence[ReleasedTask]:  # noqa: ARG002
        """See `WorkSource.lapsed_by`: messages of a broker have no leases that end."""
        return ()

    def release_held_by(self, worker: str, notice: DeathNotice) -> Sequence[ReleasedTask]:  # noqa: ARG002
        """See `WorkSource.release_held_by`: the broker gives its tasks to others, RabbitMQ at once, Redis after long.

        With `restore_lost`, those that it ran when it last told are put back on Redis now.
        """
        watch = self._watch_of(worker)
        pool = self._pool_of(worker)
        node = watch.forget_worker(worker) if watch is not None else None
        if watch is None or pool is None or node is None or not pool.celery_source.restore_lost:
            return ()
        return self._restored(watch, pool, node)

    def _restored(self, watch: "BrokerWatch", pool: PoolSpec, node: CeleryNode) -> list[ReleasedTask]:
        from orchestrator.sources.celery.readers import reader_of

        settings = pool.celery_source
        held = {one.task: one.started for one in node.answered}
        reader = reader_of(settings.url(self._environment), settings.broker_transport_options)
        try:
            done = watch.restore(node.task_ids, pool.celery_queues, reader)
        finally:
            reader.close()
        now = self._clock.wall_seconds()
        return [ReleasedTask(pool.queue, task, None, max(0.0, now - (held.get(task) or now))) for task in done]

    def held_by(self, worker: str, pool: PoolSpec, *, payload_bytes: int = 0) -> Sequence[SuspectedTask]:  # noqa: ARG002
        """See `WorkSource.held_by`: none is suspected, as no task of a broker can be held back."""
        return ()

    def give_back(self, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> Sequence[ReleasedTask]:  # noqa: ARG002
        """See `WorkSource.give_back`: there are none."""
        return ()

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        """See `WorkSource.has_worked`."""
        node = self._watch(pool).node_of(worker)
        return node is not None and node.begun > 0

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> Sequence[str]:  # noqa: ARG002
        """See `WorkSource.apply_verdicts`: there are none."""
        return [""] * len(verdicts)

    def recall(self, tasks: Sequence[IsolatedTask]) -> None:
        """See `WorkSource.recall`: there are none."""

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        """See `WorkSource.wait_for_arrival`: as the probes see them."""
        until = self._clock.monotonic() + timeout_seconds
        while True:
            now = self._clock.monotonic()
            by_watch: dict[int, tuple[BrokerWatch, list[str]]] = {}
            for pool in pools:
                watch = self._watch(pool)
                by_watch.setdefault(id(watch), (watch, []))[1].append(pool.name)
            for watch, names in by_watch.values():
                watch.keep_watching(names, now=now)
                found = watch.ready_pool(names)
                if found is not None:
                    return found
            if now >= until:
                return None
            self._pause(min(POLL_SECONDS, until - now))

    def kept(self) -> str | None:
        """See `WorkSource.kept`: a broker keeps nothing for supervisors."""
        return None

    def keep(self, text: str) -> None:
        """See `WorkSource.keep`: a broker keeps nothing for supervisors."""

    def lead(self, supervisor: str, *, seconds: float) -> bool:  # noqa: ARG002
        """See `WorkSource.lead`: nobody leads by a broker."""
        return True

    def has_worker(self, worker: str) -> bool:
        """Return whether a worker belongs to a pool with a Celery source."""
        return self._watch_of(worker) is not None

    def close(self) -> None:
        """End all threads."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _pool_of(self, worker: str) -> PoolSpec | None:
        return self._pools.get(worker.rpartition("-")[0])

    def _watch_of(self, worker: str) -> "BrokerWatch | None":
        for watch in self._watches.values():
            if watch.has_worker(worker):
                return watch
        pool = self._pool_of(worker)
        return None if pool is None else self._watch(pool)

    def _watch(self, pool: PoolSpec) -> "BrokerWatch":
        """Return the watch of the pool's broker. Raises `SourceUnavailableError` while its URL is unknown."""
        settings = pool.celery_source
        try:
            url = settings.url(self._environment)
        except ValueError as error:
            raise SourceUnavailableError(f"can't sample {pool.queue}: {error}") from error
        options = settings.broker_transport_options
        key: Settings = (
            url,
            repr(sorted(options.items())),
            settings.management,
            settings.control_exchange,
            settings.event_exchange,
        )
        known = self._watches.get(key)
        if known is None:
            from orchestrator.sources.celery.control import EventListener, FleetControl
            from orchestrator.sources.celery.readers import reader_of
            from orchestrator.sources.celery.watch import BrokerWatch

            control = FleetControl(url, options, exchange=settings.control_exchange, pause=self._pause)
            known = self._watches[key] = BrokerWatch(
                reader_of(url, options, management=settings.management),
                control,
                lambda heard: EventListener(url, options, exchange=settings.event_exchange, on_signal=heard),
                clock=self._clock,
                rng=self._rng,
            )
        return known

    def _close_unused(self, now: Monotonic) -> None:
        for key, watch in list(self._watches.items()):
            if watch.is_unused(now=now):
                watch.close()
                del self._watches[key]
