"""The project's own policy behind the interface of an outside simulator that races autoscalers on recorded arrivals.

That simulator calls `decide(observation)` every `interval` seconds; here its observation becomes a sample and a fleet.
Nothing is decided here.
"""

import bisect
import heapq
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import Conditions, Decision
from orchestrator.fleet import CrashLoop, Fleet, Started, Worker, spawn_failed
from orchestrator.metrics import FinishedLease, QueueSample, RunningLease, Waiting
from orchestrator.policy import PolicyState, decide

POSITIONS = 8
MAX_SEEN = 2000
CORES = 64  # the simulated host starts any number of workers at a time


class Settings(Protocol):
    """What the simulator tells a policy once: the slo in seconds, and the bounds."""

    slo: float
    max_workers: int
    min_workers: int


class Observation(Protocol):
    """What the simulator tells a policy at each decision; see its documentation."""

    t: float
    ready: int
    delayed: int
    inflight: int
    arrivals: int
    leases: Sequence[tuple[float, int, bool, int]]
    late: int
    elapsed: Callable[[], list[float]]
    idle: Callable[[], list[tuple[float, int]]]
    starting: Callable[[], list[float]]
    age: Callable[[int], float]
    start_samples: Sequence[float]
    start_fails: int
    peak_busy: int


class Plan(Protocol):
    """The simulator's richer answer: the size, the idle workers to let go (None: as it likes), and why."""

    def __init__(self, desired: int, reap: list[int] | None, why: str) -> None: ...


class Towline:
    """A candidate for `--policy tests.bench.sim_adapter:Towline`."""

    name: ClassVar = "towline"
    dispatch: ClassVar = "mru"
    removal: ClassVar = "drain"
    wake: ClassVar = True
    settings: ClassVar[dict[str, object]] = {}

    def __init__(self, cfg: Settings) -> None:
        # It knows an answer by its class, which is where its settings' class is.
        self.answer: type[Plan] = sys.modules[type(cfg).__module__].Plan
        self.spec = PoolSpec.model_validate(
            {
                "name": "simulated",
                "queue": "simulated",
                "app": "tasks:app",
                "slo": cfg.slo,
                "workers": {"min": cfg.min_workers, "max": cfg.max_workers},
                **self.settings,
            }
        )
        self.interval = self.spec.turn_seconds
        self.digest = self.spec.digest()
        self.state = PolicyState()
        self.crash = CrashLoop()
        self.sampled_at = 0.0
        self.decision: Decision | None = None
        self.busy: list[tuple[float, int]] = []

    def decide(self, o: Observation) -> Plan:
        """One decision of the policy as it ships."""
        now = Monotonic(o.t)
        fleet = self._fleet(o, now)
        sample = self._sample(o, now)
        self.sampled_at = o.t
        decision, self.state = decide(
            sample, fleet=fleet, spec=self.spec, state=self.state, now=now, conditions=Conditions(cores=CORES)
        )
        self.decision = decision
        why = f"{decision.current}->{decision.target}: {decision.rule}: {decision.why} {decision.limited_by}"
        if decision.target >= decision.current:
            return self.answer(decision.target, None, why)
        idle = [number for _, number in sorted(o.idle(), reverse=True)]
        surplus = decision.current - decision.target
        if surplus > len(idle):
            return self.answer(decision.target, None, why)  # a guard lowers the size: the busy ones finish first
        return self.answer(decision.target, idle[:surplus], why)

    def _fleet(self, o: Observation, now: Monotonic) -> Fleet:
        workers = [self._worker(f"i{number}", "idle", since=now - seconds) for seconds, number in o.idle()]
        workers += [self._worker(f"b{n}", "busy", since=now - held, leases=1) for n, held in enumerate(o.elapsed())]
        workers += [self._worker(f"s{n}", "starting", since=now - age) for n, age in enumerate(o.starting())]
        fleet = Fleet(
            self.spec.name,
            {worker.worker: worker for worker in workers},
            self.crash,
            tuple(Started(f"u{n}", seconds) for n, seconds in enumerate(o.start_samples)),
        )
        if o.start_fails:
            fleet = spawn_failed(fleet, spec_digest=self.digest, spawned_at=now, now=now)
        elif o.start_samples:
            fleet = replace(fleet, crash=CrashLoop())
        self.crash = fleet.crash
        return fleet

    def _busy_at(self, at: float) -> int:
        """How many leases were held then, as far as was seen."""
        seen = bisect.bisect_left(self.busy, (at, 0))
        return self.busy[min(seen, len(self.busy) - 1)][1]

    def _worker(self, name: str, state: str, *, since: float, leases: int = 0) -> Worker:
        started = None if state == "starting" else Monotonic(since)
        return Worker(
            name,
            name,
            self.digest,
            Monotonic(since),
            state,  # type: ignore[arg-type]
            Monotonic(since),
            leases,
            started_at=started,
        )

    def _sample(self, o: Observation, now: Monotonic) -> QueueSample:
        self.busy.append((o.t, o.inflight))
        del self.busy[:-MAX_SEEN]
        span = max(0.001, o.t - self.sampled_at) if self.decision else self.interval
        late = o.late
        running = []
        for n, held in enumerate(sorted(o.elapsed())):
            is_late = late > 0 and held < span
            late -= is_late
            waited = 2 * self.spec.slo if is_late else 0.0
            running.append(RunningLease(f"b{n}", held, waited, 1, self._busy_at(o.t - held)))
        finished = []
        ends = _ends(o, span)
        for (held, at_a_time, ok, attempt), ended_ago in zip(o.leases, ends, strict=True):
            is_late = late > 0 and held + ended_ago < span
            late -= is_late
            finished.append(
                FinishedLease(
                    "f",
                    held,
                    2 * self.spec.slo if is_late else 0.0,
                    "deleted" if ok else "released",
                    attempt,
                    ended_ago,
                    at_a_time,
                )
            )
        points = min(POSITIONS, o.ready)
        positions = [(o.ready * j + points - 1) // points for j in range(1, points + 1)]
        return QueueSample(
            at=now,
            ready=o.ready,
            delayed=o.delayed,
            in_flight=o.inflight,
            dead=0,
            arrivals=o.arrivals,
            waiting=tuple(Waiting(position, o.age(position - 1)) for position in positions),
            running=tuple(running),
            finished=tuple(finished),
        )


def _ends(o: Observation, span: float) -> list[float]:
    """How long ago each finished lease may have ended, so that no more ran at a time than the simulator says did."""
    free = [min(held, span) for held in o.elapsed()]
    free += [0.0] * max(0, o.peak_busy - len(free))
    if not free:
        free = [0.0]
    heapq.heapify(free)
    ends = []
    for held, *_ in o.leases:
        ended = heapq.heappop(free)
        ends.append(min(ended, span))
        heapq.heappush(free, ended + held)
    return ends
