"""A simulated pool that sees its queue as a Celery fleet shows it: depths, and heartbeats that are up to 2 s old."""

from collections import Counter
from dataclasses import replace

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.simulation.pool import SimulatedPool, SimulationEvents
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.sources.celery.messages import NodeSignal
from orchestrator.sources.celery.nodes import CeleryNode, after_signal
from orchestrator.sources.celery.sampling import HEARTBEAT_SECONDS, PoolMeter, QueueDepth, sample_of


class EstimatingScaler(PolicyScaler):
    """A pool whose decisions are made from estimates; `errors` has estimated and true waits of the first task."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self._meter = PoolMeter()
        self._nodes: dict[str, CeleryNode] = {}
        self._done: Counter[str] = Counter()
        self.errors: list[tuple[float, float]] = []

    def _sample(self, pool: SimulatedPool, recent: SimulationEvents, now: Monotonic) -> QueueSample:
        true = super()._sample(pool, recent, now)
        self._done.update(lease.worker.name for lease in recent.finished)
        active = Counter(lease.worker.name for lease in pool.leases.values())
        self._nodes = {name: node for name, node in self._nodes.items() if name in pool.workers}
        for name, worker in pool.workers.items():
            known = self._nodes.get(name)
            if worker.up_at is None or (known is not None and now - known.heard_at < HEARTBEAT_SECONDS):
                continue
            signal = NodeSignal("heartbeat", name, active[name], self._done[name] + active[name])
            if known is None:  # it said that it is online before it began anything
                known, _ = after_signal(None, NodeSignal("online", name), at=Monotonic(worker.up_at))
            self._nodes[name], runs = after_signal(known, signal, at=now)
            self._meter.ended(runs)
        nodes = list(self._nodes.values())
        self._meter.probed([QueueDepth(true.ready)], nodes, at=now, wall_seconds=now)
        sample = sample_of(
            self._meter,
            nodes,
            {node.node: node.node for node in nodes},
            workers=(),
            ahead_seconds=0.0,
            at=now,
            wall_seconds=now,
        )
        if true.ready:
            self.errors.append((sample.oldest_seconds, true.oldest_seconds))
        return replace(
            sample,
            delayed=true.delayed,
            dead=true.dead,
            first_seen_seconds_ago=true.first_seen_seconds_ago,
            upcoming=true.upcoming,
        )
