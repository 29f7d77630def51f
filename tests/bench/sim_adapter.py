"""The project's policy behind the interface of an outside simulator that compares autoscalers on recorded arrivals.

That simulator calls `decide(observation)` every `interval` seconds with counts only: it reports neither when a lease
ended nor which began late, unlike a queue, and does not call when a worker exits, which wakes a supervisor. So it is
called ten times per turn. Most calls only take a sample; the policy decides once per `turn_seconds`, and at once when a
supervisor's turn would come at once: a first task without workers, a failed start, the exit of a drained worker. The
adapter decides nothing itself.
"""

import bisect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import CrashLoop, Fleet, Started, State, Worker, spawn_failed
from orchestrator.scaling.decision import Conditions, Decision
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.plan import plan_actions
from tests.support.fleet.fleet_builders import learn_and_decide

POSITIONS = 8
MAX_SEEN = 2000
LOOKS_PER_TURN = 10
CORES = 64  # the simulated host can start any number of workers at a time
_SAME_SECONDS = 1e-6


class Settings(Protocol):
    """The simulator's settings for a policy: the slo in seconds, and the bounds."""

    slo: float
    max_workers: int
    min_workers: int


class Observation(Protocol):
    """The simulator's input to each decision; see its documentation."""

    t: float
    ready: int
    delayed: int
    inflight: int
    alive: int
    n_drain: int
    arrivals: int
    leases: Sequence[tuple[float, int, bool, int]]
    late: int
    elapsed: Callable[[], list[float]]
    idle: Callable[[], list[tuple[float, int]]]
    starting: Callable[[], list[float]]
    age: Callable[[int], float]
    start_samples: Sequence[float]
    start_fails: int


class Plan(Protocol):
    """The simulator's full answer: the size, the idle workers to retire (None: its choice), and why."""

    def __init__(self, desired: int, reap: list[int] | None, why: str) -> None: ...


class EndedLease(NamedTuple):
    """A lease that ended; `at_a_time` is the number of leases held when it began."""

    held_seconds: float
    at_a_time: int
    is_ok: bool
    number: int
    at: float
    is_late: bool


@dataclass(slots=True)
class SeenSinceTurn:
    """The samples since the last turn; `starts` are seconds."""

    arrivals: int = 0
    ended: list[EndedLease] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)


class Towline:
    """A candidate for `--policy tests.bench.sim_adapter:Towline`."""

    name: ClassVar = "towline"
    dispatch: ClassVar = "mru"
    removal: ClassVar = "drain"
    wake: ClassVar = True
    settings: ClassVar[dict[str, object]] = {}

    def __init__(self, cfg: Settings) -> None:
        # The simulator checks the answer's class, which is in the module of its settings' class.
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
        self.interval = self.spec.turn_seconds / LOOKS_PER_TURN
        self.digest = self.spec.digest()
        self.state = PolicyState()
        self.crash = CrashLoop()
        self.decision: Decision | None = None
        self.due_at = 0.0
        self.looked_at = -self.interval
        self.seen = SeenSinceTurn()
        self.running: dict[float, bool] = {}  # by the instant they began: whether late
        self.held: list[tuple[float, int]] = []
        self.births: set[float] = set()
        self.draining = 0

    def decide(self, o: Observation) -> Plan:
        """Return the decision of the product's policy and plan at a turn, else the present size."""
        is_urgent = self._look(o)
        if not is_urgent and o.t < self.due_at - _SAME_SECONDS:
            return self.answer(o.alive, [], "")
        self.due_at = o.t + self.spec.turn_seconds
        now = Monotonic(o.t)
        fleet, sample = self._fleet(o, now), self._sample(o, now)
        self.seen = SeenSinceTurn()
        decision, self.state = learn_and_decide(
            sample, fleet=fleet, spec=self.spec, state=self.state, now=now, conditions=Conditions(cores=CORES)
        )
        self.decision = decision
        todo = plan_actions(decision, fleet=fleet, spec=self.spec, now=now)
        why = f"{decision.current}->{decision.target}: {decision.rule}: {decision.why} {decision.limited_by}"
        size = o.alive + len(todo.spawn) - len(todo.retire) - len(todo.finish)
        if todo.finish:  # the simulator drains in an order of its own, the idle ones first
            return self.answer(size, None, why)
        return self.answer(size, [int(leave.worker[1:]) for leave in todo.retire], why)

    def _look(self, o: Observation) -> bool:
        """Record what happened since the last sample; return whether a supervisor would take a turn at once."""
        span, self.looked_at = max(_SAME_SECONDS, o.t - self.looked_at), o.t
        has_changed = not self.held or self.held[-1][1] != o.inflight
        if has_changed:
            self.held.append((o.t, o.inflight))
            del self.held[:-MAX_SEEN]
        if has_changed or o.leases or o.late:
            self._note_leases(o, span)
        self.seen.arrivals += o.arrivals
        self.seen.starts += o.start_samples
        self._note_starts(o)
        has_exit, self.draining = o.n_drain < self.draining, o.n_drain
        is_first = 0 < o.ready <= o.arrivals and not o.alive
        return is_first or has_exit or bool(o.start_fails)

    def _note_leases(self, o: Observation, span: float) -> None:
        """Record ended leases: at the time their seconds give if seen running, else somewhere in between."""
        late = o.late
        running: dict[float, bool] = {}
        for held in o.elapsed():
            began_at = _instant(o.t - held)
            running[began_at] = self.running.get(began_at, late > 0)
            late -= running[began_at] and began_at not in self.running
        over = [began_at for began_at in self.running if began_at not in running]
        for held, at_a_time, is_ok, number in o.leases:
            ends = [at for at in over if -_SAME_SECONDS <= o.t - at - held <= span + _SAME_SECONDS]
            if ends:
                over.remove(ends[0])
                ended_at, is_late = min(o.t, ends[0] + held), self.running[ends[0]]
            else:
                ended_at, is_late = o.t - span / 2, late > 0
                late -= is_late
            self.seen.ended.append(EndedLease(held, at_a_time, is_ok, number, ended_at, is_late))
        self.running = running

    def _note_starts(self, o: Observation) -> None:
        births = {_instant(o.t - age) for age in o.starting()}
        gone = sorted(self.births - births) or [o.t]
        self.births = births
        crash = self.crash
        for spawned_at in gone[: o.start_fails]:
            crash = spawn_failed(
                Fleet(self.spec.name, crash=crash),
                spec_digest=self.digest,
                spawned_at=Monotonic(spawned_at),
                now=Monotonic(o.t),
            ).crash
        if any(o.t - seconds >= crash.failed_at for seconds in o.start_samples):
            crash = CrashLoop()
        self.crash = crash

    def _fleet(self, o: Observation, now: Monotonic) -> Fleet:
        workers = [self._worker(f"i{number}", "idle", since=now - seconds) for seconds, number in o.idle()]
        for n, held in enumerate(_longest_first(o)):  # draining workers began nothing since
            state: State = "draining" if n < o.n_drain else "busy"
            workers.append(self._worker(f"b{n}", state, since=now - held, leases=1))
        workers += [self._worker(f"s{n}", "starting", since=now - age) for n, age in enumerate(o.starting())]
        return Fleet(
            self.spec.name,
            {worker.worker: worker for worker in workers},
            self.crash,
            tuple(Started(f"u{n}", seconds) for n, seconds in enumerate(self.seen.starts)),
        )

    def _held_at(self, at: float) -> int:
        """Return how many leases were held then, as far as was seen."""
        seen = bisect.bisect_left(self.held, (at, 0))
        return self.held[min(seen, len(self.held) - 1)][1]

    def _worker(self, name: str, state: State, *, since: float, leases: int = 0) -> Worker:
        at = Monotonic(since)
        started_at = None if state == "starting" else at
        return Worker(name, name, self.digest, at, state, at, leases, started_at=started_at)

    def _waited(self, *, is_late: bool) -> float:
        return 2 * self.spec.slo if is_late else 0.0

    def _sample(self, o: Observation, now: Monotonic) -> QueueSample:
        running = []
        for n, held in enumerate(_longest_first(o)):
            began_at = _instant(o.t - held)
            waited = self._waited(is_late=self.running.get(began_at, False))
            running.append(RunningLease(f"b{n}", held, waited, 1, self._held_at(began_at)))
        finished = [
            LeaseSample(
                "f",
                lease.held_seconds,
                self._waited(is_late=lease.is_late),
                "deleted" if lease.is_ok else "released",
                lease.number,
                o.t - lease.at,
                lease.at_a_time,
            )
            for lease in self.seen.ended
        ]
        points = min(POSITIONS, o.ready)
        positions = [1 + (o.ready - 1) * point // max(1, points - 1) for point in range(points)]
        return QueueSample(
            at=now,
            ready=o.ready,
            delayed=o.delayed,
            in_flight=o.inflight,
            dead=0,
            arrivals=self.seen.arrivals,
            waiting=tuple(Waiting(position, o.age(position - 1)) for position in positions),
            running=tuple(running),
            finished=tuple(finished),
        )


class Guarded(Towline):
    """A candidate with `contention: guard`, which tries whether fewer workers get as much done."""

    name: ClassVar = "guarded"
    settings: ClassVar = {"contention": "guard"}


def _longest_first(o: Observation) -> list[float]:
    return sorted(o.elapsed(), reverse=True)


def _instant(at: float) -> float:
    """Return the same value for one event at any two samples."""
    return round(at, 6)
