"""Make a pool's sample from what a broker and its nodes tell. Pure."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, PresentWorker, QueueSample, RunningLease, Waiting
from orchestrator.base.values import value
from orchestrator.sources.celery.estimates import ArrivalCurve, waiting_of
from orchestrator.sources.celery.nodes import CeleryNode, TaskRun

HEARTBEAT_SECONDS: Final = 2.0
"""The interval of Celery's heartbeats."""
MAX_FINISHED: Final = 2_000
"""Runs that are kept until the next sample."""
MAX_HEADS: Final = 600
"""Remembered ages of the first task: those of ten minutes."""
MAX_UPCOMING: Final = 100


@value
class QueueDepth:
    """One queue as its broker shows it.

    `ready` messages are in it; about `future` of these have an eta that has not come, and `etas` are the soonest that
    were seen, in seconds since the epoch. `head` is the first message's task, "" if unknown; `head_at` the time in that
    message, if it has one. `unacked` messages are with workers, as far as that is known.
    """

    ready: int
    future: int = 0
    etas: tuple[float, ...] = ()
    head: str = ""
    head_at: float | None = None
    unacked: int | None = None

    @property
    def due(self) -> int:
        """The messages that could be run now."""
        return max(0, self.ready - self.future)


@dataclass(slots=True)
class PoolMeter:
    """The estimates of one pool between its samples. Belongs to one thread at a time."""

    curve: ArrivalCurve = field(default_factory=ArrivalCurve)
    sampled_total: float | None = None
    head: tuple[str, Monotonic] | None = None
    heads: deque[tuple[Monotonic, float]] = field(default_factory=lambda: deque(maxlen=MAX_HEADS))
    finished: deque[tuple[TaskRun, float]] = field(default_factory=lambda: deque(maxlen=MAX_FINISHED))
    begun: dict[str, int] = field(default_factory=dict)
    ready: int = 0
    future: int = 0
    etas: tuple[float, ...] = ()
    head_at: float | None = None

    def probed(
        self, depths: Iterable[QueueDepth], nodes: Sequence[CeleryNode], *, at: Monotonic, wall_seconds: float
    ) -> None:
        """Learn from a probe of the pool's queues; `nodes` are those that work on them."""
        known = list(depths)
        begun = 0
        for node in nodes:
            begun += max(0, node.begun - self.begun.get(node.node, node.begun))
        self.begun = {node.node: node.begun for node in nodes}
        self.ready = sum(depth.due for depth in known)
        self.future = sum(depth.future for depth in known)
        self.etas = tuple(sorted(eta for depth in known for eta in depth.etas))
        held_at = [depth.head_at for depth in known if depth.head_at is not None]
        self.head_at = min(held_at, default=None)
        self._see_head(known, at=at)
        self.curve = self.curve.after(self.ready + fetched(known, nodes, at=at), begun=begun, at=at)
        waiting = self.waiting(at=at, wall_seconds=wall_seconds)
        self.heads.append((at, waiting[0].age_seconds if waiting else 0.0))

    def _see_head(self, depths: Sequence[QueueDepth], *, at: Monotonic) -> None:
        """Remember since when the same tasks are first in their queues: they wait at least that long."""
        heads = "\n".join(depth.head for depth in depths if depth.due)
        if not heads.strip():
            self.head = None
        elif self.head is None or self.head[0] != heads:
            self.head = (heads, at)

    def waiting(self, *, at: Monotonic, wall_seconds: float) -> tuple[Waiting, ...]:
        """Return the estimated waits of the waiting tasks."""
        if self.head_at is not None:
            return waiting_of(self.curve, at=at, head_seconds=max(0.0, wall_seconds - self.head_at), is_head_exact=True)
        return waiting_of(self.curve, at=at, head_seconds=at - self.head[1] if self.head else 0.0)

    def wait_at(self, instant: Monotonic) -> float:
        """Return how long the first task had waited at an instant: about the wait of a task that began then."""
        age = 0.0
        for at, seconds in reversed(self.heads):
            age = seconds
            if at <= instant:
                break
        return age

    def ended(self, runs: Iterable[TaskRun]) -> None:
        """Keep runs that ended until the next sample."""
        self.finished.extend((run, self.wait_at(run.began_at)) for run in runs)

    def take_arrivals(self) -> int:
        """Return the arrivals since the last call; what waited at the first probe arrived before it."""
        before = self.curve.first_waiting if self.sampled_total is None else self.sampled_total
        self.sampled_total = self.curve.total
        return self.curve.arrivals_since(before)


def fetched(depths: Sequence[QueueDepth], nodes: Sequence[CeleryNode], *, at: Monotonic) -> int:
    """Return how many tasks workers have fetched and not begun, which no count of the queue shows.

    They tell it themselves. While none does, it is what is not acknowledged and does not run; tasks acknowledged before
    they run make that too small.
    """
    told = [node.reserved_at(at) for node in nodes]
    if any(count is not None for count in told):
        return sum(count or 0 for count in told)
    unacked = [depth.unacked for depth in depths if depth.unacked is not None]
    if not unacked:
        return 0
    return max(0, sum(unacked) - sum(node.active + len(node.etas) for node in nodes))


def sample_of(
    meter: PoolMeter,
    nodes: Sequence[CeleryNode],
    names: Mapping[str, str],
    *,
    workers: Collection[str],
    ahead_seconds: float,
    at: Monotonic,
    wall_seconds: float,
) -> QueueSample:
    """Return the pool's sample.

    Args:
        meter: after the last probe; what it has collected since the last sample is taken out.
        nodes: those that work on the pool's queues.
        names: the fleet's name of each node.
        workers: the pool's live workers.
        ahead_seconds: how far ahead to look for etas.
        at: the instant of the sample.
        wall_seconds: the same since the epoch.
    """
    running = []
    for node in nodes:
        for started_at in node.started_ats(at=at, wall_seconds=wall_seconds):
            began_at = min(at, started_at)
            running.append(RunningLease(names[node.node], at - began_at, meter.wait_at(began_at), 1))
    finished = tuple(
        LeaseSample(
            names.get(run.node, run.node),
            run.seconds,
            waited,
            run.outcome,
            1,
            ended_seconds_ago=max(0.0, at - run.ended_at),
        )
        for run, waited in meter.finished
    )
    meter.finished.clear()
    waiting = meter.waiting(at=at, wall_seconds=wall_seconds)
    known = {names[node.node]: node for node in nodes}
    soon = [eta - wall_seconds for eta in meter.etas if 0.0 < eta - wall_seconds <= ahead_seconds][:MAX_UPCOMING]
    return QueueSample(
        at=at,
        ready=meter.curve.waiting,
        delayed=meter.future + sum(len(node.etas) for node in nodes),
        in_flight=len(running),
        dead=0,
        arrivals=meter.take_arrivals(),
        waiting=waiting,
        running=tuple(running),
        finished=finished,
        first_seen_seconds_ago={name: max(0.0, at - known[name].first_at) for name in workers if name in known},
        presence={
            name: presence_of(known[name], at=at) for name in workers if name in known and _has_presence(known[name])
        },
        upcoming=tuple(Waiting(place, -seconds) for place, seconds in enumerate(soon, start=1)),
        ages="exact" if meter.head_at is not None else "at least" if meter.curve.is_bound(1) else "about",
    )


def presence_of(node: CeleryNode, *, at: Monotonic) -> PresentWorker:
    """Return when the node last told that it lives; its heartbeats are 2 s apart."""
    return PresentWorker(node.worker, max(0.0, at - node.heard_at - 2 * HEARTBEAT_SECONDS))


def _has_presence(node: CeleryNode) -> bool:
    """Return whether its silence says something: after its goodbye, or without heartbeats, it does not."""
    return node.has_heartbeats and not (node.is_offline or node.is_single)
