"""Who is there of a pool whose workers others start: who came, who left, who is expected, who is one too many. Pure.

The queue tells who asks and who holds; nobody tells of a start or an end. So that decisions are the same as over
processes of our own, a wanted worker is *expected* (a start under way) until one comes, and a worker too many is
*released* (as if asked to leave) until one goes, whichever it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import EXTERNAL, Fleet, Worker
from orchestrator.samples import PresentWorker, QueueSample
from orchestrator.values import value

POLLS_SECONDS: Final = 30.0
"""A worker that asks now and then has gone when it has not for so long."""
WAITS_SECONDS: Final = 5.0
"""One whose calls wait for work has gone sooner: between two of them it is silent for a moment only."""
HUNG_UP_SECONDS: Final = 2.0
"""One that hung up on a call that waited has gone, unless it calls again at once, as over a new connection."""
LATE_SECONDS: Final = 60.0
"""One that is expected for longer, while nothing waits, is as good as idle: it may be done without."""

_EXPECTED: Final = f"{EXTERNAL}?"


@value
class DepartedWorker:
    """A worker that is no longer seen. `released`: it was one too many."""

    worker: str
    released: bool
    lived_seconds: float


@value
class ExternalWorkers:
    """The fleet after a look, with those who came and those who left; `answers`: how many came for being wanted."""

    fleet: Fleet
    came: tuple[str, ...] = ()
    gone: tuple[DepartedWorker, ...] = ()
    answers: int = 0


def prefix_of(pool: str) -> str:
    """How the names of a pool's workers begin: a pool's own name has no slash."""
    return f"{pool}/"


def expected_ref(worker: str) -> str:
    """What a runtime calls a worker that is only expected."""
    return f"{_EXPECTED}{worker}"


def is_external(ref: str) -> bool:
    """Whether a worker, expected or there, is somebody else's to start and to end."""
    return ref.startswith(EXTERNAL)


def is_expected(ref: str) -> bool:
    """Whether a worker is only expected."""
    return ref.startswith(_EXPECTED)


def observe_external(
    fleet: Fleet, present: Sequence[PresentWorker], sample: QueueSample, *, spec: PoolSpec, now: Monotonic
) -> ExternalWorkers:
    """Bring the fleet up to date with who was seen; call it before `observe`, once per sample.

    Args:
        present: workers that a server of the queue heard of, by their names.
        sample: the look at the queue; who holds or just held a lease is there, whoever heard of them.
    """
    here = _here(present, sample, spec)
    external = {name: w for name, w in fleet.workers.items() if w.is_external}
    others = {name: w for name, w in fleet.workers.items() if name not in external}
    expected = sorted((w for w in external.values() if is_expected(w.ref)), key=lambda w: (w.spawned_at, w.worker))
    known = {name: w for name, w in external.items() if not is_expected(w.ref)}
    stays = {name: w for name, w in known.items() if name in here or _is_hoped_for(w, now)}
    gone = [
        DepartedWorker(w.worker, w.state == "draining", now - w.spawned_at)
        for w in known.values()
        if w.worker not in stays
    ]
    came: list[str] = []
    names: dict[str, str] = {}
    for name in sorted(here.keys() - known.keys(), key=lambda name: (-_first_seen_ago(sample, name), name)):
        met = expected.pop(0) if expected else None
        stays[name] = _arrived(name, met, sample, spec=spec)
        came.append(name)
        if met is not None:
            names[met.worker] = name
    stays = _fewer_released(stays, sum(1 for one in gone if not one.released))
    workers = {w.worker: w for w in [*others.values(), *stays.values(), *_still_expected(expected, sample, now=now)]}
    if names:
        workers = {name: _renamed(w, names) for name, w in workers.items()}
    return ExternalWorkers(replace(fleet, workers=workers), tuple(came), tuple(gone), answers=len(names))


def released(fleet: Fleet, worker: str, *, now: Monotonic) -> Fleet:
    """One worker is too many: as far as we know this one. One that is only expected is expected no longer."""
    known = fleet.workers.get(worker)
    if known is None:
        return fleet
    if is_expected(known.ref):
        return replace(fleet, workers={name: w for name, w in fleet.workers.items() if name != worker})
    return replace(fleet, workers={**fleet.workers, worker: replace(known, state="draining", since=now)})


def wanted_again(fleet: Fleet, count: int, *, now: Monotonic) -> Fleet:
    """So many more workers are wanted: of those that were too many the last ones stay instead."""
    if count <= 0:
        return fleet
    external = {name: w for name, w in fleet.workers.items() if w.is_external}
    kept = _fewer_released(external, count, since=now)
    return fleet if kept == external else replace(fleet, workers={**fleet.workers, **kept})


def without_external(fleet: Fleet) -> Fleet:
    """The pool's workers are no longer somebody else's: these are not looked for any more."""
    workers = {name: w for name, w in fleet.workers.items() if not w.is_external}
    return fleet if len(workers) == len(fleet.workers) else replace(fleet, workers=workers)


def _here(present: Sequence[PresentWorker], sample: QueueSample, spec: PoolSpec) -> Mapping[str, None]:
    prefix = prefix_of(spec.name)
    here = dict.fromkeys(one.worker for one in present if _is_here(one))
    here.update(dict.fromkeys(lease.worker for lease in sample.running))
    silent = {one.worker for one in present}  # of these is known better whether they are there
    for lease in sample.finished:
        if lease.worker not in silent and lease.ended_seconds_ago <= POLLS_SECONDS:
            here[lease.worker] = None
    return dict.fromkeys(name for name in here if name.startswith(prefix))


def _is_here(one: PresentWorker) -> bool:
    if one.hung_up:
        return one.silent_seconds <= HUNG_UP_SECONDS
    return one.silent_seconds <= (WAITS_SECONDS if one.waits else POLLS_SECONDS)


def _is_hoped_for(worker: Worker, now: Monotonic) -> bool:
    """A supervisor that just started believes its predecessor for a while: a server may not have heard of all yet."""
    return worker.adopted and worker.started_at is None and now - worker.since < POLLS_SECONDS


def _first_seen_ago(sample: QueueSample, name: str) -> float:
    return sample.first_seen_seconds_ago.get(name, 0.0)


def _arrived(name: str, met: Worker | None, sample: QueueSample, *, spec: PoolSpec) -> Worker:
    """A worker that came; its start-up is learned from only when it came after it was wanted."""
    seen_at = Monotonic(sample.at - _first_seen_ago(sample, name))
    is_answer = met is not None and seen_at >= met.spawned_at
    spawned_at = met.spawned_at if met is not None and is_answer else seen_at
    ref = f"{EXTERNAL}{name}"
    return Worker(name, ref, spec.digest(), spawned_at, "starting", sample.at, adopted=not is_answer)


def _fewer_released(workers: dict[str, Worker], count: int, *, since: Monotonic | None = None) -> dict[str, Worker]:
    """So many fewer of the workers are too many: those that were last found to be."""
    if count <= 0:
        return workers
    too_many = sorted((w for w in workers.values() if w.state == "draining"), key=lambda w: (w.since, w.worker))
    stay = {
        w.worker: replace(w, state="busy" if w.leases else "idle", since=w.since if since is None else since)
        for w in too_many[-count:]
    }
    return {**workers, **stay}


def _still_expected(expected: Sequence[Worker], sample: QueueSample, *, now: Monotonic) -> list[Worker]:
    """A start under way for as long as it takes; late and not needed, it is as good as idle."""
    workers = []
    for w in expected:
        if sample.ready or now - w.spawned_at <= LATE_SECONDS:
            workers.append(replace(w, state="starting", since=now))
        else:
            workers.append(w if w.state == "idle" else replace(w, state="idle", since=now))
    return workers


def _renamed(worker: Worker, names: Mapping[str, str]) -> Worker:
    if worker.replaced_by is None or worker.replaced_by not in names:
        return worker
    return replace(worker, replaced_by=names[worker.replaced_by])
