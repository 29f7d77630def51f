"""Track the workers of an external pool, which others start and end: present, expected and surplus ones. Pure.

The queue shows which workers ask and which hold leases; starts and ends are not reported. To decide as over our own
processes, a wanted worker is *expected* (like a start under way) until one arrives, and a surplus worker is *released*
(like one that drains) until any worker leaves (ADR 10).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import PresentWorker, QueueSample
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import EXTERNAL, Fleet, Worker

POLLS_SECONDS: Final = 30.0
"""Silence after which a polling worker counts as gone; more than the longest usual polling interval."""
WAITS_SECONDS: Final = 5.0
"""Silence after which a worker with waiting lease calls counts as gone; between two calls it is silent only briefly."""
HUNG_UP_SECONDS: Final = 2.0
"""Silence after which a worker that hung up on a waiting call counts as gone; a reconnect takes less."""
LATE_SECONDS: Final = 60.0
"""Time after which an expected worker that is not needed counts as idle, so that the pool may shrink by it."""

_EXPECTED: Final = f"{EXTERNAL}?"


@value
class DepartedWorker:
    """A worker that is no longer present. `released`: it was a surplus one."""

    worker: str
    released: bool
    lived_seconds: float


@value
class ExternalWorkers:
    """The fleet after a sample, the workers that came and went, and how many of them (`answers`) were expected."""

    fleet: Fleet
    came: tuple[str, ...] = ()
    gone: tuple[DepartedWorker, ...] = ()
    answers: int = 0


def prefix_of(pool: str) -> str:
    """Return the prefix of the names of a pool's workers; a pool's own name has no slash."""
    return f"{pool}/"


def expected_ref(worker: str) -> str:
    """Return the `ref` of a worker that is only expected."""
    return f"{_EXPECTED}{worker}"


def is_external(ref: str) -> bool:
    """Return whether a worker, expected or present, is started and ended by others."""
    return ref.startswith(EXTERNAL)


def is_expected(ref: str) -> bool:
    """Return whether a worker is only expected."""
    return ref.startswith(_EXPECTED)


def observe_external(
    fleet: Fleet, present: Sequence[PresentWorker], sample: QueueSample, *, spec: PoolSpec, now: Monotonic
) -> ExternalWorkers:
    """Update the fleet with the workers that are present; call it before `observe`, once per sample.

    Args:
        present: workers that recently called a server of the queue.
        sample: the newest sample; a worker that holds or just held a lease is present even if not in `present`.
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
    """Mark one worker as surplus; an expected one is no longer expected."""
    known = fleet.workers.get(worker)
    if known is None:
        return fleet
    if is_expected(known.ref):
        return replace(fleet, workers={name: w for name, w in fleet.workers.items() if name != worker})
    return replace(fleet, workers={**fleet.workers, worker: replace(known, state="draining", since=now)})


def wanted_again(fleet: Fleet, count: int, *, now: Monotonic) -> Fleet:
    """Keep up to `count` released workers after all, the last released first: more workers are wanted."""
    if count <= 0:
        return fleet
    external = {name: w for name, w in fleet.workers.items() if w.is_external}
    kept = _fewer_released(external, count, since=now)
    return fleet if kept == external else replace(fleet, workers={**fleet.workers, **kept})


def without_external(fleet: Fleet) -> Fleet:
    """Forget the external workers: the pool is no longer external."""
    workers = {name: w for name, w in fleet.workers.items() if not w.is_external}
    return fleet if len(workers) == len(fleet.workers) else replace(fleet, workers=workers)


def _here(present: Sequence[PresentWorker], sample: QueueSample, spec: PoolSpec) -> Mapping[str, None]:
    prefix = prefix_of(spec.name)
    here = dict.fromkeys(one.worker for one in present if _is_here(one))
    here.update(dict.fromkeys(lease.worker for lease in sample.running))
    silent = {one.worker for one in present}  # for these, `present` is more reliable than their leases
    for lease in sample.finished:
        if lease.worker not in silent and lease.ended_seconds_ago <= POLLS_SECONDS:
            here[lease.worker] = None
    return dict.fromkeys(name for name in here if name.startswith(prefix))


def _is_here(one: PresentWorker) -> bool:
    if one.hung_up:
        return one.silent_seconds <= HUNG_UP_SECONDS
    return one.silent_seconds <= (WAITS_SECONDS if one.waits else POLLS_SECONDS)


def _is_hoped_for(worker: Worker, now: Monotonic) -> bool:
    """Return whether an adopted worker may still show up: a new server may not have had a call from it yet."""
    return worker.adopted and worker.started_at is None and now - worker.since < POLLS_SECONDS


def _first_seen_ago(sample: QueueSample, name: str) -> float:
    return sample.first_seen_seconds_ago.get(name, 0.0)


def _arrived(name: str, met: Worker | None, sample: QueueSample, *, spec: PoolSpec) -> Worker:
    """Return a worker that arrived; its start counts for the start-up estimate only if it was expected first."""
    seen_at = Monotonic(sample.at - _first_seen_ago(sample, name))
    is_answer = met is not None and seen_at >= met.spawned_at
    spawned_at = met.spawned_at if met is not None and is_answer else seen_at
    ref = f"{EXTERNAL}{name}"
    return Worker(name, ref, spec.digest(), spawned_at, "starting", sample.at, adopted=not is_answer)


def _fewer_released(workers: dict[str, Worker], count: int, *, since: Monotonic | None = None) -> dict[str, Worker]:
    """Return the workers with `count` fewer released ones: those released last stay."""
    if count <= 0:
        return workers
    too_many = sorted((w for w in workers.values() if w.state == "draining"), key=lambda w: (w.since, w.worker))
    stay = {
        w.worker: replace(w, state="busy" if w.leases else "idle", since=w.since if since is None else since)
        for w in too_many[-count:]
    }
    return {**workers, **stay}


def _still_expected(expected: Sequence[Worker], sample: QueueSample, *, now: Monotonic) -> list[Worker]:
    """Return the expected workers: starting, or idle if late and not needed."""
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
