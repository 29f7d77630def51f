"""The workers of one pool as a value, and its transitions: spawned, adopted, draining, killed, exited. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.config.stop_plan import StopStep
from orchestrator.fleet.exits import (
    ASKED_TO_FINISH,
    ENDED_BY_CLUSTER,
    GAVE_ITS_TASK_BACK,
    WRONG_BY_ITSELF,
    Cause,
    EndedWorker,
    cause_of,
    detail_at_work,
    finished_by_itself,
)
from orchestrator.fleet.last_words import last_words_of, place_in_stack
from orchestrator.fleet.placement import ANYWHERE, COLD_SECONDS, Placement
from orchestrator.fleet.quarantine import is_solo_worker
from queue_core.process.wording import counted

MAX_BACKOFF_SECONDS: Final = 60.0  # longest wait after failed starts
PROVEN_SECONDS: Final = 5.0
"""Age from which a started worker is no failed start, even if it never worked."""
DRAIN_MARGIN_SECONDS: Final = 2.0
"""Time after a worker's grace until it is killed: it releases its leases when its grace ends, and needs a moment."""
KILL_REPEAT_SECONDS: Final = 10.0
"""Interval at which a killed worker is killed again until it is collected."""
BILLED_TURNS: Final = 2
"""Turns before the next billing step at which an idle worker is let go: draining it must be over by then."""

_MIB: Final = 2**20
_LEAVING: Final = frozenset({"draining", "killed"})
NOT_COUNTED: Final = frozenset({"draining", "killed", "alone", "unresponsive"})
"""States of workers that do not count towards the pool's size."""
_LONG_AGO: Final = Monotonic(float("-inf"))
EXTERNAL: Final = "external:"
"""The prefix of the `ref` of an external worker."""

State = Literal["starting", "idle", "busy", "draining", "killed", "alone", "unresponsive"]
"""`alone`: a solo worker for one suspected task. `unresponsive`: it neither holds a lease nor requests one (see
`responsiveness`). Neither counts towards the pool's size."""


@value
class Worker:
    """One worker. `since` is when it entered its state; for an idle one, the end of its last lease.

    `leases` counts those held now, `finished` those ended since it joined; `deadline_at` is when a draining worker is
    killed (None: the queue grants it no more leases, but it was not asked to end yet); `replaced_by` names its
    replacement. `acted_at` is when it last ended a lease itself, `lapsed_at` when its last lease expired, if it has
    ended none since. `hung_at`: since when it is unresponsive, kept while it is killed for it; `condition` is what its
    runtime found then. `is_forked`: from a template, with which it shares memory that is not in `memory_bytes`.
    `changed_file`: the file of its application that has changed since it was started.
    `is_cut_short`: killed before its grace was over, because its supervisor was asked twice to stop.
    `stops`: further signals that it was sent as it had not finished (see `PoolSpec.further_stops`).
    `cpu_seconds`: the time that it and its children had used when it was last measured.
    `killed_by`: the operator who ordered its end; `replaced_for`: the one who had all workers of its pool replaced.
    `leaves_for`: why it was asked to finish. `place`: where its cluster has placed it.
    """

    worker: str
    ref: str
    spec_digest: str
    spawned_at: Monotonic
    state: State
    since: Monotonic
    leases: int = 0
    finished: int = 0
    started_at: Monotonic | None = None
    deadline_at: Monotonic | None = None
    memory_bytes: int = 0
    replaced_by: str | None = None
    adopted: bool = False
    acted_at: Monotonic | None = None
    lapsed_at: Monotonic | None = None
    hung_at: Monotonic | None = None
    condition: str = ""
    is_forked: bool = False
    changed_file: str = ""
    is_cut_short: bool = False
    stops: int = 0
    cpu_seconds: float = 0.0
    killed_by: str = ""
    replaced_for: str = ""
    leaves_for: str = ""
    place: Placement = ANYWHERE

    @property
    def is_external(self) -> bool:
        """True for a worker that others start and end (see `external`)."""
        return self.ref.startswith(EXTERNAL)

    @property
    def is_leaving(self) -> bool:
        """True once it was asked to finish, or killed."""
        return self.state in _LEAVING

    @property
    def is_finishing(self) -> bool:
        """True for a worker that gets no more leases and is asked to end once it holds none, without a deadline."""
        return self.state == "draining" and self.deadline_at is None and not self.is_external


@value
class RememberedWorker:
    """An earlier supervisor's decisions about a worker: its replacement, its drain deadline or finishing, and why."""

    replaced_by: str | None = None
    leaves_by: Monotonic | None = None
    finishes: bool = False
    leaves_for: str = ""


NOT_REMEMBERED: Final = RememberedWorker()


@value
class Started:
    """A worker that asked for its first lease, `seconds` after it was spawned.

    `node_wait_seconds` is the part of it until it had a node; None where it also waited for its admission.
    """

    worker: str
    seconds: float
    is_forked: bool = False
    node_wait_seconds: float | None = 0.0

    @property
    def is_cold(self) -> bool:
        """True if it had to wait for a node, so that its time says nothing about the next start that finds one."""
        return self.node_wait_seconds is None or self.node_wait_seconds > COLD_SECONDS


@value
class CrashLoop:
    """Consecutive failed starts with one digest of the pool's settings; growth waits until `retry_at`."""

    failures: int = 0
    failed_at: Monotonic = _LONG_AGO
    retry_at: Monotonic = _LONG_AGO
    spec_digest: str = ""


@value
class Death:
    """The end of a worker: its cause, how long it lived, and whether its start failed."""

    worker: str
    cause: Cause
    detail: str
    lived_seconds: float
    failed_start: bool


@value
class Fleet:
    """The workers of one pool, by name. `started` are those whose first lease call was in the last sample.

    `forks`: the next worker would be forked (see `runtime.Runtime.forks`).
    """

    pool: str
    workers: Mapping[str, Worker] = field(default_factory=dict)
    crash: CrashLoop = CrashLoop()
    started: tuple[Started, ...] = ()
    forks: bool = False

    @property
    def alive(self) -> tuple[Worker, ...]:
        """Workers that count: neither leaving, solo or unresponsive, nor with a replacement under way."""
        counted = [w for w in self.workers.values() if w.state not in NOT_COUNTED]
        return tuple([w for w in counted if w.replaced_by is None or w.replaced_by not in self.workers])

    @property
    def unresponsive(self) -> tuple[Worker, ...]:
        """Workers that hang and were not asked to finish yet; those that hang longest first."""
        hung = [w for w in self.workers.values() if w.state == "unresponsive"]
        return tuple(sorted(hung, key=lambda w: (w.since, w.worker)))

    @property
    def leaving(self) -> tuple[Worker, ...]:
        """Workers that were asked to finish or killed, and are not collected yet."""
        return tuple([w for w in self.workers.values() if w.state in _LEAVING])

    def failed_starts(self, spec: PoolSpec) -> int:
        """Return the number of consecutive failed starts with the settings of `spec`."""
        failures = self.crash.failures
        return failures if failures and self.crash.spec_digest == spec.digest() else 0


def least_recently_used(workers: tuple[Worker, ...]) -> list[Worker]:
    """Return the idle ones among `workers`: first those on nodes with fewest workers, then the longest idle.

    So nodes become empty, and their cluster can remove them.
    """
    idle = [w for w in workers if w.state == "idle"]
    return sorted(idle, key=lambda w: (w.place.neighbours, w.since, w.worker)) if len(idle) > 1 else idle


def billed_for(worker: Worker, spec: PoolSpec, *, now: Monotonic) -> float:
    """Return for how many seconds a worker is paid for anyway (`min_billing`) and should stay; 0 if it may go now."""
    if not spec.min_billing:
        return 0.0
    left = spec.min_billing - (now - worker.spawned_at) % spec.min_billing
    return max(0.0, left - BILLED_TURNS * spec.turn_seconds)


def joined(
    fleet: Fleet,
    *,
    worker: str,
    ref: str,
    spec_digest: str,
    spawned_at: Monotonic,
    replaces: str | None = None,
    is_forked: bool = False,
) -> Fleet:
    """Add a spawned worker; `replaces` names the worker that goes once this one is up."""
    workers = dict(fleet.workers)
    state = _first_state(worker)
    workers[worker] = Worker(worker, ref, spec_digest, spawned_at, state, spawned_at, is_forked=is_forked)
    if replaces is not None and replaces in workers:
        workers[replaces] = replace(workers[replaces], replaced_by=worker)
    return replace(fleet, workers=workers)


def _first_state(worker: str) -> State:
    return "alone" if is_solo_worker(worker) else "starting"


def adopted(
    fleet: Fleet,
    *,
    worker: str,
    ref: str,
    spec_digest: str,
    spawned_at: Monotonic,
    now: Monotonic,
    is_forked: bool = False,
) -> Fleet:
    """Add a worker of an earlier supervisor; its start-up time is not learned from."""
    state = _first_state(worker)
    found = Worker(worker, ref, spec_digest, spawned_at, state, now, adopted=True, is_forked=is_forked)
    return replace(fleet, workers={**fleet.workers, worker: found})


def recalled(fleet: Fleet, memories: Mapping[str, RememberedWorker]) -> Fleet:
    """Restore an earlier supervisor's decisions on adopted workers, so that none is drained or replaced twice."""
    workers = {}
    for name, worker in fleet.workers.items():
        known = memories.get(name, NOT_REMEMBERED)
        is_leaving = (known.finishes or known.leaves_by is not None) and not worker.is_external
        if known.replaced_by in fleet.workers or is_leaving:
            worker = replace(worker, replaced_by=known.replaced_by)  # noqa: PLW2901
        if is_leaving:
            worker = replace(  # noqa: PLW2901
                worker, state="draining", deadline_at=known.leaves_by, leaves_for=known.leaves_for
            )
        workers[name] = worker
    return replace(fleet, workers=workers)


def without(fleet: Fleet, workers: Collection[str]) -> Fleet:
    """Forget workers: another supervisor leads them."""
    return replace(fleet, workers={name: one for name, one in fleet.workers.items() if name not in workers})


def placed(fleet: Fleet, places: Mapping[str, Placement], *, now: Monotonic) -> Fleet:
    """Store each worker's place; an idle one whose node does not answer is unresponsive."""
    workers = dict(fleet.workers)
    for name, worker in fleet.workers.items():
        place = places.get(name, ANYWHERE)
        if place != worker.place:
            workers[name] = worker = replace(worker, place=place)  # noqa: PLW2901
        if place.is_silent and worker.state == "idle":
            workers[name] = replace(worker, state="unresponsive", since=now, hung_at=now, condition=place.words)
    return (
        fleet if all(workers[name] is one for name, one in fleet.workers.items()) else replace(fleet, workers=workers)
    )


def unresponsive(fleet: Fleet, worker: str, *, now: Monotonic) -> Fleet:
    """Mark a worker as unresponsive."""
    hung = replace(fleet.workers[worker], state="unresponsive", since=now, hung_at=now)
    return replace(fleet, workers={**fleet.workers, worker: hung})


def examined(fleet: Fleet, worker: str, condition: str) -> Fleet:
    """Store what the runtime found out about a worker that hangs. No change if the worker is unknown."""
    known = fleet.workers.get(worker)
    if known is None or known.condition == condition:
        return fleet
    return replace(fleet, workers={**fleet.workers, worker: replace(known, condition=condition)})


def measured(
    fleet: Fleet, memory_bytes: Mapping[str, int], cpu_seconds: Mapping[str, float] = MappingProxyType({})
) -> Fleet:
    """Store each worker's memory and CPU use; a worker that is not named keeps its last values."""
    workers = {}
    for name, worker in fleet.workers.items():
        memory = memory_bytes.get(name, worker.memory_bytes)
        cpu = round(cpu_seconds.get(name, worker.cpu_seconds), 2)
        is_same = (memory, cpu) == (worker.memory_bytes, worker.cpu_seconds)
        workers[name] = worker if is_same else replace(worker, memory_bytes=memory, cpu_seconds=cpu)
    return replace(fleet, workers=workers)


def finishing(fleet: Fleet, worker: str, *, now: Monotonic, why: str = "") -> Fleet:
    """Mark a worker as fenced at the queue but not yet asked to end. No change if it is unknown or leaving."""
    known = fleet.workers.get(worker)
    if known is None or known.is_leaving:
        return fleet
    leaving = replace(known, state="draining", since=now, leaves_for=why)
    return replace(fleet, workers={**fleet.workers, worker: leaving})


def draining(fleet: Fleet, worker: str, *, grace_seconds: float, now: Monotonic, why: str = "") -> Fleet:
    """Mark a worker as asked to finish; asking again changes neither its deadline nor why. No change if unknown."""
    known = fleet.workers.get(worker)
    if known is None or known.deadline_at is not None:
        return fleet
    deadline_at = Monotonic(now + grace_seconds + DRAIN_MARGIN_SECONDS)
    leaves_for = known.leaves_for or why
    leaving = replace(known, state="draining", since=now, deadline_at=deadline_at, leaves_for=leaves_for)
    return replace(fleet, workers={**fleet.workers, worker: leaving})


def next_stop(worker: Worker, further: Sequence[StopStep]) -> StopStep | None:
    """Return what follows for a worker that has not finished in time; None: it is killed."""
    if worker.state != "draining" or worker.stops >= len(further):
        return None
    return further[worker.stops]


def stopped_further(fleet: Fleet, worker: str, step: StopStep, *, now: Monotonic) -> Fleet:
    """Mark a worker as sent a further signal, from which on it has a new deadline. No change if it is unknown."""
    known = fleet.workers.get(worker)
    if known is None:
        return fleet
    leaving = replace(known, stops=known.stops + 1, deadline_at=Monotonic(now + step.seconds))
    return replace(fleet, workers={**fleet.workers, worker: leaving})


def killed(fleet: Fleet, worker: str, *, now: Monotonic, is_cut_short: bool = False, by: str = "") -> Fleet:
    """Mark a worker as killed; its deadline repeats every `KILL_REPEAT_SECONDS`. No change if it is unknown.

    `is_cut_short`: before its grace was over. `by`: the operator who ordered it.
    """
    known = fleet.workers.get(worker)
    if known is None:
        return fleet
    is_cut_short = known.is_cut_short or (is_cut_short and known.state != "killed")
    gone = replace(
        known,
        state="killed",
        since=now,
        deadline_at=Monotonic(now + KILL_REPEAT_SECONDS),
        is_cut_short=is_cut_short,
        killed_by=known.killed_by or by,
    )
    return replace(fleet, workers={**fleet.workers, worker: gone})


def cause_in(fleet: Fleet, ended: EndedWorker, *, held: int | None = None) -> tuple[Cause, str]:
    """Return why one of these workers ended, and the same in words; `held`: the tasks it held, None: as last seen."""
    worker = fleet.workers.get(ended.worker)
    if worker is None:
        return cause_of(ended, drained=False, overdue=False)
    has_finished = worker.is_finishing and finished_by_itself(ended, leases=worker.leases if held is None else held)
    drained = worker.is_leaving and not has_finished
    cause, detail = cause_of(
        ended,
        drained=drained,
        overdue=worker.state == "killed",
        gave_tasks_back=worker.stops > 0,
        is_cut_short=worker.is_cut_short,
        killed_by=worker.killed_by,
        hung=_hung(worker, ended),
    )
    if cause is Cause.DRAINED and drained:
        detail = f"{_drain_reason(worker)}{detail.removeprefix(ASKED_TO_FINISH)}"
    return cause, detail


def _drain_reason(worker: Worker) -> str:
    """Return why a worker was asked to finish: `replaced by resize-7f3k2q: its settings changed`."""
    told = ASKED_TO_FINISH if worker.replaced_by is None else f"replaced by {worker.replaced_by}"
    return f"{told}: {worker.leaves_for}" if worker.leaves_for else told


def _hung(worker: Worker, ended: EndedWorker) -> str:
    """Return how a worker hung, if it was ended for that, or while it did; else ""."""
    if not worker.is_leaving:
        return ""
    words = last_words_of(ended.last_lines)
    lapsed_at = worker.lapsed_at if worker.state == "killed" else None  # it was taken for idle when it was to finish
    since = worker.hung_at if worker.hung_at is not None else lapsed_at
    if since is None and not words.stuck:
        return ""
    longer = f", and ran on without its lease for {max(0.0, ended.at - since):.0f} s" if since is not None else ""
    silent = "" if since is None else f" for {max(0.0, ended.at - since):.0f} s"
    # Its last words, when it is resumed to end, are of its lost leases: those follow from this.
    if not words.stuck and worker.condition.startswith(("stopped", "paused")):
        return f"it was {worker.condition}{silent}"
    if words.hanging:
        call = words.hanging[-1]
        return f"{call.handler} hung{f' at {call.place}' if call.place else ''}{longer}"
    place = place_in_stack(ended.stack)
    if place:
        return f"it hung at {place}, a call that kept the interpreter lock{longer}"
    if worker.condition:
        return f"{worker.condition}{silent}"
    return f"it did not respond{silent}: the cause is unknown"


def exited(
    fleet: Fleet, ended: EndedWorker, *, now: Monotonic, held: int = 0, worked: Literal["yes", "no"] = "no"
) -> tuple[Fleet, Death]:
    """Remove a collected worker that `held` so many tasks; a failed start lengthens the crash loop's back-off.

    `worked`: whether it ended leases since the last sample, which no later sample will show.
    """
    worker = fleet.workers.get(ended.worker)
    cause, detail = cause_in(fleet, ended, held=held)
    if held:
        detail = detail_at_work(cause, detail)
        cause = Cause.CRASHED if cause is Cause.FINISHED else cause  # no end is a good one that leaves a lease
    has_worked = bool(held) or worked == "yes"
    failed = worker is not None and not has_worked and _is_failed_start(worker, cause, at=ended.at)
    lived_seconds = max(0.0, ended.at - worker.spawned_at) if worker else 0.0
    death = Death(ended.worker, cause, detail, lived_seconds, failed)
    left = replace(fleet, workers={name: w for name, w in fleet.workers.items() if name != ended.worker})
    if failed and worker is not None:
        left = spawn_failed(left, spec_digest=worker.spec_digest, spawned_at=worker.spawned_at, now=now)
    elif cause is Cause.FINISHED and worker is not None and has_worked and proves(worker, left.crash):
        left = replace(left, crash=CrashLoop())
    return left, death


def proves(worker: Worker, crash: CrashLoop) -> bool:
    """Return whether this worker was started after the last failed start, so that its work ends the crash loop."""
    return bool(crash.failures) and worker.spawned_at >= crash.failed_at and worker.spec_digest == crash.spec_digest


def spawn_failed(fleet: Fleet, *, spec_digest: str, spawned_at: Monotonic, now: Monotonic) -> Fleet:
    """Count a failed start: growth holds for 2, 4, 8 ... 60 s (see `guards.crash_loop`).

    Workers spawned before the last counted failure belong to the same round and are not counted again.
    """
    crash = fleet.crash
    if crash.spec_digest == spec_digest and spawned_at < crash.failed_at:
        return fleet
    failures = crash.failures + 1 if crash.spec_digest == spec_digest else 1
    hold_seconds = min(MAX_BACKOFF_SECONDS, 2.0 ** min(failures, 6))
    return replace(fleet, crash=CrashLoop(failures, now, Monotonic(now + hold_seconds), spec_digest))


def outdated(worker: Worker, spec: PoolSpec, *, digest: str, now: Monotonic) -> str | None:
    """Return why a worker should be replaced by a new one, or None. `digest` is that of `spec`."""
    limits = spec.recycle
    if worker.is_external:
        return None  # its owner replaces it
    if worker.spec_digest != digest:
        return "its settings changed"
    if worker.changed_file:
        return f"{PurePath(worker.changed_file).name} changed after its start"
    if worker.replaced_for:
        return f"ordered by {worker.replaced_for}"
    if limits.tasks is not None and spec.app is None and worker.finished >= limits.tasks:  # ours count themselves
        return f"it did {counted(worker.finished, 'task')} (recycle.tasks {limits.tasks})"
    if limits.memory is not None and worker.memory_bytes > limits.memory:
        return f"it uses {worker.memory_bytes / _MIB:.0f} MiB (recycle.memory {limits.memory / _MIB:.0f} MiB)"
    if limits.age is not None and now - worker.spawned_at >= limits.age:
        return f"it is {now - worker.spawned_at:.0f} s old (recycle.age {limits.age:.0f} s)"
    return None


def with_changed_application(fleet: Fleet, file: str, *, at: Monotonic) -> Fleet:
    """Mark the workers that were started before the file of their application changed."""
    workers = {
        name: replace(worker, changed_file=file) if worker.spawned_at < at and not worker.is_external else worker
        for name, worker in fleet.workers.items()
    }
    return replace(fleet, workers=workers)


def with_replacement_ordered(fleet: Fleet, by: str, *, at: Monotonic) -> Fleet:
    """Mark the workers that were started before an operator ordered that all of the pool are replaced."""
    workers = {
        name: replace(worker, replaced_for=by) if worker.spawned_at < at and not worker.is_external else worker
        for name, worker in fleet.workers.items()
    }
    return replace(fleet, workers=workers)


def _is_failed_start(worker: Worker, cause: Cause, *, at: Monotonic) -> bool:
    """Return whether a start failed: no lease call, or a crash or an immediate end before the first lease."""
    if cause in {Cause.DRAINED, Cause.KILLED} or cause in GAVE_ITS_TASK_BACK or cause in ENDED_BY_CLUSTER:
        return False
    if worker.state == "alone" and cause is Cause.FINISHED:
        return False
    if worker.started_at is None:
        return not worker.adopted
    if worker.leases or worker.finished or worker.lapsed_at is not None:
        return False
    return cause in WRONG_BY_ITSELF or (cause is Cause.FINISHED and at - worker.started_at < PROVEN_SECONDS)
