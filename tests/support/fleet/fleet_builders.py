"""Complete values of a fleet, so that a test names only what it is about."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Fate
from orchestrator.fleet.workers import Fleet, State, Worker
from orchestrator.scaling.context import context_of
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision, Inputs, Limit
from orchestrator.scaling.learning import PolicyState, learn
from orchestrator.scaling.policy import decide

NOW = Monotonic(10_000.0)
INPUTS = Inputs(0, 0, 0, 0, 0, 0, 0, 0, 1.0, 1.0, 0.0, 0.8, 30.0, 21.0, 0.0)


@dataclass(frozen=True)
class AnExit:
    """A worker's exit, as a runtime reports it."""

    worker: str
    at: Monotonic = NOW
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_own_bytes: int | None = None
    is_forked: bool = False
    reason: str = ""
    is_stopped: bool = False
    is_removed: bool = False
    fate: Fate = ""
    last_lines: Sequence[str] = ()
    stack: Sequence[str] = ()


def a_pool(name: str = "resize", *, least: int = 0, most: int = 8, **settings: object) -> PoolSpec:
    """Return a pool of `least` to `most` workers with an slo of 30 s; any setting of the file can be given."""
    given: dict[str, object] = {"queue": "thumbs", "app": "tasks:app", "slo": 30.0, **settings}
    return PoolSpec.model_validate({"workers": {"min": least, "max": most}, **given, "name": name})


def a_sample(
    *,
    at: float = NOW,
    ages: Sequence[float] = (),
    positions: Sequence[int] = (),
    ready: int | None = None,
    running: Sequence[RunningLease] = (),
    finished: Sequence[LeaseSample] = (),
    **counts: object,
) -> QueueSample:
    """Return a sample with a waiting task for each of `ages` seconds, at each of `positions` (1, 2, 3 ...)."""
    places = positions or range(1, len(ages) + 1)
    waiting = tuple(Waiting(position, age) for position, age in zip(places, ages, strict=True))
    return QueueSample(
        at=Monotonic(at),
        ready=ready if ready is not None else (waiting[-1].position if waiting else 0),
        delayed=0,
        in_flight=len(running),
        dead=0,
        waiting=waiting,
        running=tuple(running),
        finished=tuple(finished),
        **counts,  # type: ignore[arg-type]
    )


def a_worker(
    worker: str = "w1",
    state: State = "idle",
    *,
    spec: PoolSpec | None = None,
    since: float = NOW - 5,
    spawned_at: float = NOW - 100,
    **more: object,
) -> Worker:
    """Return a worker of `spec`; past its start, it requested its first lease a second after it was spawned.

    A draining worker has a deadline unless its `deadline_at` is None.
    """
    given: dict[str, object] = {
        "deadline_at": Monotonic(NOW + 30) if state == "draining" else None,
        "leases": 1 if state == "busy" else 0,
        "started_at": None if state == "starting" else Monotonic(spawned_at + 1),
        **more,
    }
    digest = (spec or a_pool()).digest()
    ref = given.pop("ref", f"pid:{worker}")
    return Worker(worker, ref, digest, Monotonic(spawned_at), state, Monotonic(since), **given)  # type: ignore[arg-type]


def a_fleet(*workers: Worker, pool: str = "resize", **more: object) -> Fleet:
    """Return a fleet of these workers."""
    return Fleet(pool, {w.worker: w for w in workers}, **more)  # type: ignore[arg-type]


def a_fleet_of(
    *, idle: int = 0, busy: int = 0, starting: int = 0, spec: PoolSpec | None = None, idle_seconds: float = 5.0
) -> Fleet:
    """Return a fleet with these numbers of workers; the first idle one has idled longest, by a millisecond."""
    pool = spec or a_pool()
    return a_fleet(
        *(a_worker(f"i{n:04}", "idle", spec=pool, since=NOW - idle_seconds + n / 1000) for n in range(idle)),
        *(a_worker(f"b{n:04}", "busy", spec=pool) for n in range(busy)),
        *(a_worker(f"s{n:04}", "starting", spec=pool, since=NOW - 0.5, spawned_at=NOW - 0.5) for n in range(starting)),
    )


def a_lease(worker: str = "w1", *, held: float = 1.0, waited: float = 0.0) -> RunningLease:
    """Return a lease that is held now."""
    return RunningLease(worker, held, waited, 1)


def a_finished_lease(
    worker: str = "w1", *, held: float = 1.0, waited: float = 0.0, ended_ago: float = 0.5
) -> LeaseSample:
    """Return a lease that ended well."""
    return LeaseSample(worker, held, waited, "deleted", 1, ended_ago)


def a_decision(*, current: int, target: int, limits: Sequence[Limit] = ()) -> Decision:
    """Return a decision with only its numbers set."""
    return Decision("resize", NOW, current, target, "hold", "as the test wishes", INPUTS, target, tuple(limits))


def learn_and_decide(
    sample: QueueSample,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
    conditions: Conditions = DEFAULT_CONDITIONS,
) -> tuple[Decision, PolicyState]:
    """Learn from a sample and decide, as a supervisor's turn does; return the decision and the new state."""
    learned = learn(state, sample, fleet=fleet, spec=spec, now=now)
    decision = decide(context_of(sample, fleet=fleet, spec=spec, state=learned, now=now, conditions=conditions))
    return decision, learned.after(decision)
