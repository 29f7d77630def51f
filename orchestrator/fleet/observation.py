"""Update a pool's workers from a sample of its queue: which have started, which are busy, which idle. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.fleet.workers import NOT_COUNTED, PROVEN_SECONDS, CrashLoop, Fleet, Started, Worker, proves


def observe(fleet: Fleet, sample: QueueSample) -> Fleet:
    """Return the fleet after a sample. Call it once per sample, because finished leases are counted."""
    is_at_rest = not (sample.running or sample.finished or fleet.started)
    if is_at_rest and all(w.state == "idle" or (w.is_leaving and not w.leases) for w in fleet.workers.values()):
        return _proven(fleet, sample.at)
    held: dict[str, list[float]] = {}
    for running in sample.running:
        name = running.worker
        if name in held:
            held[name].append(running.held_seconds)
        else:
            held[name] = [running.held_seconds]
    done: dict[str, list[float]] = {}
    acted: dict[str, float] = {}
    for finished in sample.finished:
        name = finished.worker
        if name in done:
            done[name].append(finished.ended_seconds_ago)
        else:
            done[name] = [finished.ended_seconds_ago]
        if not finished.has_lapsed:
            acted[name] = min(finished.ended_seconds_ago, acted.get(name, finished.ended_seconds_ago))
    workers: dict[str, Worker] = {}
    started: list[Started] = []
    for name, before in fleet.workers.items():
        worker = workers[name] = _observed(
            before, sample, held.get(name, ()), done.get(name, ()), acted_ago=acted.get(name)
        )
        if before.started_at is None and worker.started_at is not None and not before.adopted:
            seconds, place = worker.started_at - worker.spawned_at, before.place
            node_wait = None if place.was_gated else place.node_wait_seconds or 0.0
            started.append(Started(name, seconds, before.is_forked, node_wait))
    return _proven(Fleet(fleet.pool, workers, fleet.crash, tuple(started), fleet.forks), sample.at)


def _observed(
    worker: Worker, sample: QueueSample, held: Sequence[float], done: Sequence[float], *, acted_ago: float | None
) -> Worker:
    """Return the worker after a sample.

    `held` has the age of each of its leases, `done` the seconds since each of its finished ones ended; `acted_ago` is
    the time since it last ended a lease itself.
    """
    leases, finished = len(held), len(done)
    state, since, started_at = worker.state, worker.since, worker.started_at
    if started_at is None:
        started_at = _start_of(worker, sample, held=held, done=done)
    acted_at = worker.acted_at if acted_ago is None else Monotonic(sample.at - acted_ago)
    lapsed_at = _lapsed_at(worker, sample.at, leases=leases, done=done, acted_ago=acted_ago)
    hung_at = worker.hung_at
    if state == "unresponsive" and leases:
        state, hung_at = "idle", None
    if started_at is not None and state not in NOT_COUNTED:
        if leases:
            if state != "busy":
                state, since = "busy", Monotonic(sample.at - max(held))
        elif finished:
            state, since = "idle", Monotonic(sample.at - min(done))
        elif state != "idle":
            since = sample.at if state == "busy" else started_at
            state = "idle"
    is_known = not finished and leases == worker.leases and state == worker.state and lapsed_at == worker.lapsed_at
    if is_known and since == worker.since and started_at == worker.started_at:
        return worker
    return Worker(
        worker.worker,
        worker.ref,
        worker.spec_digest,
        worker.spawned_at,
        state,
        since,
        leases,
        worker.finished + finished,
        started_at,
        worker.deadline_at,
        worker.memory_bytes,
        worker.replaced_by,
        worker.adopted,
        acted_at,
        lapsed_at,
        hung_at,
        worker.condition,
        worker.is_forked,
        worker.changed_file,
        worker.is_cut_short,
        worker.stops,
        worker.cpu_seconds,
        worker.killed_by,
        worker.replaced_for,
        worker.leaves_for,
        worker.place,
    )


def _lapsed_at(
    worker: Worker, at: Monotonic, *, leases: int, done: Sequence[float], acted_ago: float | None
) -> Monotonic | None:
    """Return when its last lease expired; None if the worker ended it itself, or holds a lease."""
    if leases or (done and acted_ago == min(done)):
        return None
    if done:
        return Monotonic(at - min(done))
    return at if worker.leases else worker.lapsed_at  # an expired lease is recorded only by the next lease call


def _start_of(worker: Worker, sample: QueueSample, *, held: Sequence[float], done: Sequence[float]) -> Monotonic | None:
    """Return when a worker first asked for a lease; if that was missed, when its first known lease began."""
    ago = sample.first_seen_seconds_ago.get(worker.worker)
    if ago is None and (held or done):
        ago = max(held, default=0.0)
    return None if ago is None else Monotonic(max(worker.spawned_at, sample.at - ago))


def _proven(fleet: Fleet, at: Monotonic) -> Fleet:
    """End the crash loop once a worker spawned since the last failure has worked or stayed up."""
    if not fleet.crash.failures:
        return fleet
    for w in fleet.workers.values():
        if w.started_at is None or not proves(w, fleet.crash):
            continue
        if w.leases or w.finished or at - w.started_at >= PROVEN_SECONDS:
            return replace(fleet, crash=CrashLoop())
    return fleet
