"""Watch one broker for all pools of it: a thread that probes its queues every second or so and hears its workers."""

import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.sources.celery.control import PING_SECONDS, EventListener, FleetControl
from orchestrator.sources.celery.messages import NodeSignal, active_in, etas_in, queues_in, totals_in, uses_one_thread
from orchestrator.sources.celery.nodes import CeleryNode, after_answer, after_signal, present_nodes
from orchestrator.sources.celery.readers import DepthReader
from orchestrator.sources.celery.sampling import PoolMeter, QueueDepth, sample_of
from queue_core.log import get_logger

log = get_logger()

PROBE_SECONDS: Final = 1.0
"""Interval of the probes of a broker; each is up to a fifth earlier or later, so that supervisors don't keep step."""
JITTER: Final = 0.2
INSPECT_SECONDS: Final = 4.0
"""Interval of questions to the nodes while they have work; heartbeats come by themselves."""
FETCHED_SECONDS: Final = 1.0
"""The same while tasks have left a queue and no heartbeat has them yet: workers may have fetched them in advance."""
QUIET_INSPECT_SECONDS: Final = 30.0
SCHEDULED_SECONDS: Final = 30.0
"""Interval of the question for tasks that nodes keep until their eta: the answer lists them all."""
QUEUES_SECONDS: Final = 60.0
PING_INTERVAL_SECONDS: Final = 10.0
"""Interval of a call to all nodes while some worker of ours has not been heard: it may send no heartbeats."""
FIRST_SECONDS: Final = 6.0
"""How long the first sample of a pool waits for a probe."""
OLD_SECONDS: Final = 5.0
"""Age of the last probe beyond which a pool is not sampled any more."""
RETRY_SECONDS: Final = (1.0, 5.0)
DEAF_SECONDS: Final = 10.0
"""Pause before the events are listened to again after that failed."""
FORGET_SECONDS: Final = 120.0
"""Time without a sample after which a pool is no longer probed."""
DRAIN_SECONDS: Final = 0.5
_AT_ONCE: Final = Monotonic(float("-inf"))


@dataclass(slots=True)
class WatchedPool:
    """A pool of the broker: its settings, its live workers, its estimates, and when it was last sampled."""

    spec: PoolSpec
    workers: frozenset[str]
    sampled_at: Monotonic
    meter: PoolMeter = field(default_factory=PoolMeter)
    is_probed: bool = False

    def nodes(self, nodes: Mapping[str, CeleryNode]) -> dict[str, str]:
        """Return the nodes that count for the pool, each with its name in the fleet."""
        is_external = self.spec.runtime_kind == "external"
        source = self.spec.celery_source
        queues = frozenset(self.spec.celery_queues)
        found = {}
        for name, node in nodes.items():
            if not is_external and node.worker in self.workers:
                found[name] = node.worker
            elif (is_external or source.adopt) and not queues.isdisjoint(node.queues):
                found[name] = f"{self.spec.name}/{name}" if is_external else name
        return found


class BrokerWatch:
    """The state of one broker, kept by a thread of its own. Its verbs never wait for the broker, but for the first."""

    def __init__(
        self,
        reader: DepthReader,
        control: FleetControl,
        listener: Callable[[Callable[[NodeSignal], None]], EventListener],
        *,
        clock: MonotonicClock,
        rng: random.Random,
    ) -> None:
        """`listener` makes what hears events, given what is to be called with each."""
        self._reader = reader
        self.control = control
        self._listener = listener(self._receive)
        self._clock = clock
        self._rng = rng
        self._changed = threading.Condition()
        self._pools: dict[str, WatchedPool] = {}
        self._nodes: dict[str, CeleryNode] = {}
        self._fenced: set[str] = set()
        self._deferred: dict[str, tuple[float, ...]] = {}
        self._failure: str = ""
        self._failures = 0
        self._probed_at = _AT_ONCE
        self._probe_at = _AT_ONCE
        self._inspected_at = _AT_ONCE
        self._scheduled_at = _AT_ONCE
        self._queues_at = _AT_ONCE
        self._ping_at = _AT_ONCE
        self._listen_at = _AT_ONCE
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    # -- from the supervisor's threads ----------------------------------------------------------------------------

    def sample(self, spec: PoolSpec, *, workers: Collection[str], ahead_seconds: float, now: Monotonic) -> QueueSample:
        """Return the pool's sample as of the last probe. Raises `SourceUnavailableError` without a recent one."""
        with self._changed:
            pool = self._watched(spec, workers, now)
            if not pool.is_probed:
                self._failure = ""
                self._probe_at = _AT_ONCE
                self._changed.notify_all()
                self._changed.wait_for(lambda: pool.is_probed or self._failure, timeout=FIRST_SECONDS)
                now = max(now, self._clock.monotonic())
            if self._failure:
                raise SourceUnavailableError(self._failure)
            if not pool.is_probed or now - self._probed_at > OLD_SECONDS:
                raise SourceUnavailableError(f"can't sample {spec.queue}: its broker does not answer")
            names = pool.nodes(self._nodes)
            return sample_of(
                pool.meter,
                [self._nodes[name] for name in names],
                names,
                workers=pool.workers,
                ahead_seconds=ahead_seconds,
                at=now,
                wall_seconds=self._clock.wall_seconds(),
            )

    def _watched(self, spec: PoolSpec, workers: Collection[str], now: Monotonic) -> WatchedPool:
        known = self._pools.get(spec.name)
        if known is None or known.spec.celery_queues != spec.celery_queues:
            known = self._pools[spec.name] = WatchedPool(spec, frozenset(workers), now)
        known.spec, known.workers, known.sampled_at = spec, frozenset(workers), now
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="celery-broker", daemon=True)
            self._thread.start()
        return known

    def nodes_of(self, pool: PoolSpec) -> dict[str, CeleryNode]:
        """Return the nodes of a pool by their names in the fleet, as far as they have been heard."""
        with self._changed:
            known = self._pools.get(pool.name)
            return (
                {} if known is None else {shown: self._nodes[name] for name, shown in known.nodes(self._nodes).items()}
            )

    def node_of(self, worker: str) -> CeleryNode | None:
        """Return the node of a worker of ours; None while it has not been heard."""
        with self._changed:
            return next((node for node in self._nodes.values() if node.worker == worker), None)

    def has_worker(self, worker: str) -> bool:
        """Return whether a pool of this broker has this worker."""
        with self._changed:
            return any(worker in pool.workers for pool in self._pools.values())

    def has_pool(self, name: str) -> bool:
        """Return whether this pool is watched."""
        with self._changed:
            return name in self._pools

    def ready_pool(self, names: Collection[str]) -> str | None:
        """Return one of these pools that has a waiting task."""
        with self._changed:
            return next((name for name in names if name in self._pools and self._pools[name].meter.curve.waiting), None)

    def keep_watching(self, names: Collection[str], *, now: Monotonic) -> None:
        """Go on probing these pools, though they are not sampled."""
        with self._changed:
            for name in names:
                if name in self._pools:
                    self._pools[name].sampled_at = now

    def fenced(self, worker: str) -> None:
        """Remember that a worker's consumers are taken away on purpose."""
        with self._changed:
            self._fenced.add(worker)

    def unfenced(self, worker: str) -> None:
        """Forget that: the worker stays."""
        with self._changed:
            self._fenced.discard(worker)

    def deferred(self, worker: str, etas: tuple[float, ...]) -> None:
        """Remember the times of tasks that go back into their queues with a worker that ends.

        Where a queue does not show them, they would be taken for work that is due.
        """
        with self._changed:
            self._deferred[worker] = etas

    def restore(self, tasks: Sequence[str], queues: Sequence[str], reader: DepthReader) -> Sequence[str]:
        """Put tasks of a dead worker back that no other worker is known to run."""
        with self._changed:
            elsewhere = {task for node in self._nodes.values() for task in node.task_ids}
        return reader.restore([task for task in tasks if task not in elsewhere], queues)

    def forget_worker(self, worker: str) -> CeleryNode | None:
        """Forget the node of a dead worker; return it."""
        with self._changed:
            found = next((name for name, node in self._nodes.items() if node.worker == worker), None)
            self._fenced.discard(worker)
            return self._nodes.pop(found) if found is not None else None

    def is_unused(self, *, now: Monotonic) -> bool:
        """Return whether no pool has been sampled for long."""
        with self._changed:
            return all(now - pool.sampled_at > FORGET_SECONDS for pool in self._pools.values())

    def close(self) -> None:
        """End the thread, and close all connections."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=FIRST_SECONDS)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            now = self._clock.monotonic()
            if now >= self._probe_at:
                self._probe(now)
            if self._failure:
                self._sleep(self._probe_at - self._clock.monotonic())
                continue
            if self._clock.monotonic() >= self._next_inspection():
                self._inspect()
            self._listen()
        self._listener.close()
        self.control.close()
        self._reader.close()

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            if seconds > 0 and not self._is_stopping and self._probe_at != _AT_ONCE:
                self._changed.wait(timeout=seconds)

    def _probe(self, now: Monotonic) -> None:
        """Probe the queues of all pools at once, and let each pool learn from it."""
        with self._changed:
            self._pools = {name: pool for name, pool in self._pools.items() if now - pool.sampled_at <= FORGET_SECONDS}
            pools = dict(self._pools)
            seconds = PROBE_SECONDS * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0))
            self._probe_at = Monotonic(now + seconds)
        queues = sorted({queue for pool in pools.values() for queue in pool.spec.celery_queues})
        wall_seconds = self._clock.wall_seconds()
        try:
            depths = self._reader.read(queues, wall_seconds=wall_seconds)
        except SourceUnavailableError as error:
            self._failed(str(error), now)
            return
        except Exception as error:
            log.exception(events.TURN_FAILED, thread="celery-broker")
            self._failed(f"can't read the queues: {type(error).__name__}", now)
            return
        at = self._clock.monotonic()
        with self._changed:
            self._failure, self._failures, self._probed_at = "", 0, at
            every = frozenset(worker for pool in pools.values() for worker in pool.workers)
            self._nodes = present_nodes(self._nodes, workers=every, at=at)
            for pool in pools.values():
                of_pool = [self._nodes[name] for name in pool.nodes(self._nodes)]
                own = [depths.get(queue, QueueDepth(0)) for queue in pool.spec.celery_queues]
                pool.meter.probed(self._without_deferred(own, wall_seconds), of_pool, at=at, wall_seconds=wall_seconds)
                pool.is_probed = True
            self._changed.notify_all()

    def _without_deferred(self, depths: Sequence[QueueDepth], wall_seconds: float) -> list[QueueDepth]:
        """Take out tasks whose time has not come and that a queue does not show as such."""
        self._deferred = {
            worker: left
            for worker, etas in self._deferred.items()
            if (left := tuple(eta for eta in etas if eta > wall_seconds))
        }
        hidden = sorted(eta for etas in self._deferred.values() for eta in etas)
        found = []
        for depth in depths:
            count = 0 if depth.future else min(len(hidden), depth.due)
            found.append(replace(depth, future=count, etas=tuple(hidden[:count])) if count else depth)
            hidden = hidden[count:]
        return found

    def _failed(self, why: str, now: Monotonic) -> None:
        least, most = RETRY_SECONDS
        with self._changed:
            self._failure, self._failures = why, self._failures + 1
            self._probe_at = Monotonic(now + min(most, least * 2.0 ** min(self._failures - 1, 8)))
            self._changed.notify_all()

    def _listen(self) -> None:
        """Hear events until the next probe."""
        now = self._clock.monotonic()
        seconds = max(0.01, min(self._probe_at - now, DRAIN_SECONDS))
        if now < self._listen_at:
            self._sleep(seconds)
            return
        try:
            if self._listener.drain(seconds=seconds):
                return
        except SourceUnavailableError as error:
            log.info(events.SOURCE_UNAVAILABLE, error=str(error))
            self._listen_at = Monotonic(now + DEAF_SECONDS)
            return
        except Exception:
            log.exception(events.TURN_FAILED, thread="celery-broker")
            self._listen_at = Monotonic(now + DEAF_SECONDS)
            return
        self._listen_at = Monotonic(now + PROBE_SECONDS)

    def _receive(self, signal: NodeSignal) -> None:
        at = self._clock.monotonic()
        with self._changed:
            node, runs = after_signal(self._nodes.get(signal.node), signal, at=at)
            is_new = signal.node not in self._nodes
            self._nodes[signal.node] = node
            if is_new:
                self._inspected_at = _AT_ONCE
            if runs:
                for pool in self._pools.values():
                    if signal.node in pool.nodes({signal.node: node}):
                        pool.meter.ended(runs)

    def _has_work(self) -> bool:
        is_waiting = any(pool.meter.curve.waiting or pool.meter.curve.unconfirmed for pool in self._pools.values())
        return is_waiting or any(node.active or node.reserved for node in self._nodes.values())

    def _next_inspection(self) -> Monotonic:
        """Return when to query the nodes next: soon after tasks left a queue that no node has begun yet."""
        with self._changed:
            seconds = INSPECT_SECONDS if self._has_work() else QUIET_INSPECT_SECONDS
            if any(pool.meter.curve.unconfirmed for pool in self._pools.values()):
                seconds = FETCHED_SECONDS
            known = {node.worker for node in self._nodes.values()}
            if any(not pool.workers <= known for pool in self._pools.values()):
                seconds = min(seconds, PING_INTERVAL_SECONDS)
            return Monotonic(self._inspected_at + seconds)

    def _inspect(self) -> None:
        """Ask the nodes that count what they run and keep; seldom while there is nothing to do."""
        now = self._clock.monotonic()
        with self._changed:
            counted = {name for pool in self._pools.values() for name in pool.nodes(self._nodes)}
            takes_all = any(takes_others(pool.spec) for pool in self._pools.values())
            nodes = {name: node for name, node in self._nodes.items() if name in counted or takes_all}
            workers = {worker for pool in self._pools.values() for worker in pool.workers}
            has_work = self._has_work()
            self._inspected_at = now
        live = [name for name, node in nodes.items() if not node.is_offline]
        unheard = workers - {node.worker for node in nodes.values()}
        try:
            if (unheard or takes_all) and now >= self._ping_at:
                self._ping_at = Monotonic(now + PING_INTERVAL_SECONDS)
                self._answered("ping", self.control.query([], "ping", seconds=PING_SECONDS))
            unknown = [name for name in live if not nodes[name].queues]
            if live and (unknown or now >= self._queues_at):
                self._queues_at = Monotonic(now + QUEUES_SECONDS)
                answers = self.control.query(live, "active_queues")
                self._answered("active_queues", answers)
                self._resume_consuming([name for name, answer in answers.items() if queues_in(answer) == ()])
                self._answered("stats", self.control.query(live, "stats"))
            if live and has_work:
                self._query_tasks(live, nodes, now)
        except SourceUnavailableError as error:
            log.info(events.SOURCE_UNAVAILABLE, error=str(error))

    def _resume_consuming(self, nodes: Sequence[str]) -> None:
        """Let workers take tasks again that an earlier supervisor fenced and did not end."""
        with self._changed:
            left = {
                name: pool.spec.celery_queues
                for pool in self._pools.values()
                for name, worker in pool.nodes(self._nodes).items()
                if name in nodes and worker in pool.workers and worker not in self._fenced
            }
        for name, queues in left.items():
            self.control.resume_consuming(name, queues)

    def _query_tasks(self, live: Sequence[str], nodes: Mapping[str, CeleryNode], now: Monotonic) -> None:
        silent = [name for name in live if not nodes[name].has_heartbeats]
        if silent:
            self._answered("stats", self.control.query(silent, "stats"))
        self._answered("active", self.control.query(live, "active", {"safe": True}))
        self._answered("reserved", self.control.query(live, "reserved"))
        if now >= self._scheduled_at:
            self._scheduled_at = Monotonic(now + SCHEDULED_SECONDS)
            self._answered("scheduled", self.control.query(live, "scheduled"))

    def _answered(self, command: str, answers: Mapping[str, object]) -> None:
        """Keep what nodes answered."""
        at = self._clock.monotonic()
        with self._changed:
            for name, answer in answers.items():
                active = active_in(answer) if command in ("active", "reserved") else None
                node, runs = after_answer(
                    self._nodes.get(name),
                    name,
                    at=at,
                    active=active if command == "active" else None,
                    reserved=len(active) if command == "reserved" and active is not None else None,
                    etas=etas_in(answer) if command == "scheduled" else None,
                    queues=queues_in(answer) if command == "active_queues" else None,
                    totals=totals_in(answer) if command == "stats" else None,
                    is_single=uses_one_thread(answer) if command == "stats" else None,
                )
                self._nodes[name] = node
                for pool in self._pools.values():
                    if runs and name in pool.nodes({name: node}):
                        pool.meter.ended(runs)


def takes_others(spec: PoolSpec) -> bool:
    """Return whether nodes count for the pool that it has not started."""
    return spec.runtime_kind == "external" or spec.celery_source.adopt
