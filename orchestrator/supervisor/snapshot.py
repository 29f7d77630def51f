"""The supervisor's fleet as JSON: for other commands, for people, and for the next supervisor.

`SnapshotWriter` writes snapshots and learned state at a bounded rate; making and reading snapshots is pure.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.json_fields import text_in
from orchestrator.base.samples import QueueSample, UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import RememberedWorker, Worker
from orchestrator.runtime import WorkerHandle
from orchestrator.runtimes.procfs import boot
from orchestrator.state.directory import StateDir
from orchestrator.state.journal import WriteErrors
from orchestrator.supervisor.pool import Pool, concern_of, states_of
from orchestrator.supervisor.view import Heartbeat, Phase, view_of
from queue_core.attempts.secret_forms import masked_command
from queue_core.log import get_logger

log = get_logger()

SNAPSHOT_SECONDS: Final = 1.0
"""Interval between two snapshots of an active fleet; a changed worker is written at once."""
IDLE_SNAPSHOT_SECONDS: Final = 10.0
"""Interval between two snapshots of a fleet without workers and ready tasks."""
LEARNED_SECONDS: Final = 60.0
"""Interval between two writes of the learned state: a crash loses at most this much of it."""
VIEW_SECONDS: Final = 0.5
"""Interval at which other threads get a new view of the fleet."""
CHANGED_VIEW_SECONDS: Final = 0.1
"""The same interval when the phase or a target changed."""

_AT_ONCE: Final = Monotonic(float("-inf"))


class WallTime:
    """Converts between the monotonic clock and seconds since the epoch, for one snapshot."""

    def __init__(self, *, wall_seconds: float, monotonic: Monotonic) -> None:
        self._offset_seconds = wall_seconds - monotonic

    def of(self, at: Monotonic) -> float:
        """Return the instant in seconds since the epoch, rounded to 0.1 s."""
        return round(at + self._offset_seconds, 1)

    def instant_of(self, at: float) -> Monotonic:
        """Return the monotonic instant of `at` seconds since the epoch."""
        return Monotonic(at - self._offset_seconds)


def snapshot_of(pools: Iterable[Pool], *, wall: WallTime, unserved: Sequence[UnservedTag] = ()) -> dict[str, object]:
    """Return `pools` by name, `workers` as a list, oldest first, and the `unserved` tags; times are since the epoch."""
    known = list(pools)
    workers = [(w, pool) for pool in known for w in pool.fleet.workers.values()]
    workers.sort(key=lambda pair: (pair[0].spawned_at, pair[0].worker))
    return {
        "pools": {pool.name: _pool(pool, wall) for pool in known},
        "workers": [_worker(w, pool, wall) for w, pool in workers],
        "unserved": [one.record() for one in unserved],
    }


def handle_in(worker: Mapping[str, object], *, wall: WallTime) -> WorkerHandle | None:
    """Return the handle of one of a snapshot's `workers`; None when it is incomplete."""
    match worker:
        case {
            "worker": str(name),
            "pool": str(pool),
            "ref": str(ref),
            "spec_digest": str(digest),
            "spawned_at": int() | float() as spawned_at,
        }:
            at = wall.instant_of(spawned_at)
            return WorkerHandle(name, pool, ref, digest, at, is_forked=worker.get("forked") is True)
        case _:
            return None


def workers_in(snapshot: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the readable `workers` of a snapshot."""
    workers = snapshot.get("workers")
    return [worker for worker in (workers if isinstance(workers, list) else ()) if isinstance(worker, Mapping)]


def wall_time_in(snapshot: Mapping[str, object], *, boot: str) -> WallTime | None:
    """Return how to convert a snapshot's times to instants, independent of later changes of the wall clock.

    None for a snapshot of another boot.
    """
    match snapshot:
        case {"boot": str(known), "shown_at": int() | float() as wall, "shown_at_monotonic": int() | float() as at} if (
            boot and known == boot
        ):
            return WallTime(wall_seconds=wall, monotonic=Monotonic(at))
    return None


def memories_in(snapshot: Mapping[str, object], *, wall: WallTime) -> dict[str, RememberedWorker]:
    """Return which workers the snapshot's supervisor had asked to finish or was replacing; others are left out."""
    memories = {}
    for worker in workers_in(snapshot):
        name, successor, ends_at = worker.get("worker"), worker.get("replaced_by"), worker.get("ends_at")
        leaves_by = wall.instant_of(ends_at) if isinstance(ends_at, int | float) else None
        finishes = leaves_by is None and worker.get("state") == "draining"
        if isinstance(name, str) and (successor or leaves_by or finishes):
            memories[name] = RememberedWorker(
                successor if isinstance(successor, str) else None, leaves_by, finishes, text_in(worker, "leaves_for")
            )
    return memories


class SnapshotWriter:
    """Writes the supervisor's snapshot and learned state, each at a bounded rate."""

    def __init__(self, files: StateDir, *, clock: MonotonicClock, url: str, heartbeat: Heartbeat) -> None:
        self._files = files
        self._heartbeat = heartbeat
        self._view_at = _AT_ONCE
        self._viewed: tuple[object, ...] = ()
        self._clock = clock
        self._started_at = round(clock.wall_seconds(), 3)
        self._url = url
        self._boot = boot()
        self._show_at = _AT_ONCE
        self._keep_at = Monotonic(clock.monotonic() + LEARNED_SECONDS)
        self._write_errors = WriteErrors(files.path)
        self._shown: tuple[str, Collection[object], Collection[object]] = ("", (), ())
        self.not_in_force: tuple[str, ...] = ()
        """Settings that are changed in the file and wait for the next start."""
        self.snapshot: Mapping[str, object] = {}

    def update(self, pools: Collection[Pool], *, phase: Phase, unserved: Sequence[UnservedTag] = ()) -> None:
        """Write what is due: changes of phase, workers, overrides and failures at once, all else at an interval.

        An error of writing is only logged; the fleet does not depend on it.
        """
        now = self._clock.monotonic()
        workers = {
            (w.worker, w.is_leaving, w.replaced_by, w.hung_at) for pool in pools for w in pool.fleet.workers.values()
        }
        overridden: list[object] = [
            (
                pool.conditions.bounds_by,
                pool.conditions.paused,
                not pool.conditions.finish_by,
                pool.sample is not None and pool.sample.paused,
            )
            for pool in pools
        ]
        overridden += [(one.queue, one.tag) for one in unserved]
        failures = [pool.last_failure and pool.last_failure.at for pool in pools]
        is_idle = not workers and not any(_has_work(pool) for pool in pools)
        shown = (phase, workers, [*overridden, self.not_in_force, *failures, is_idle])
        if now >= self._show_at or self._shown != shown:
            self._show_at = Monotonic(now + (IDLE_SNAPSHOT_SECONDS if is_idle else SNAPSHOT_SECONDS))
            self._shown = shown
            self._show(pools, phase, unserved)
        self._update_view(pools, phase=phase, unserved=unserved, now=now)
        if now >= self._keep_at:
            self._keep_at = Monotonic(now + LEARNED_SECONDS)
            self.keep_learned(pools)

    def _update_view(
        self, pools: Collection[Pool], *, phase: Phase, unserved: Sequence[UnservedTag], now: Monotonic
    ) -> None:
        """Give other threads a new view: soon after the phase or a target changed, else at an interval."""
        viewed = (phase, *[pool.decision and pool.decision.target for pool in pools])
        if now >= self._view_at or (
            viewed != self._viewed and now >= self._view_at - VIEW_SECONDS + CHANGED_VIEW_SECONDS
        ):
            self._view_at = Monotonic(now + VIEW_SECONDS)
            self._viewed = viewed
            started_at = self._heartbeat.started_at
            self._heartbeat.show(view_of(pools, phase=phase, started_at=started_at, unserved=unserved))

    def keep_learned(self, pools: Collection[Pool]) -> None:
        """Write the learned state of each pool now."""
        learned = {pool.name: pool.state.to_json() for pool in pools if pool.spec}
        with self._write_errors.logged():
            self._files.write_learned(learned)

    def learned(self) -> Mapping[str, object]:
        """Return what an earlier supervisor learned; nothing, with a warning, when that can't be read."""
        try:
            return self._files.read_learned()
        except ValueError as error:
            log.warning(events.STATE_DISCARDED, error=str(error))
            return {}

    def roster(self) -> list[WorkerHandle]:
        """Return the workers of the last snapshot, each as its runtime knew it."""
        shown = self._files.read_snapshot() or {}
        wall = self._time_of(shown)
        return [handle for worker in workers_in(shown) if (handle := handle_in(worker, wall=wall))]

    def memories(self) -> Mapping[str, RememberedWorker]:
        """Return what the earlier supervisor was doing with its workers."""
        shown = self._files.read_snapshot() or {}
        return memories_in(shown, wall=self._time_of(shown))

    def _time_of(self, shown: Mapping[str, object]) -> WallTime:
        """Return the snapshot's clock: the monotonic one within a boot, as the wall clock may have been set."""
        found = wall_time_in(shown, boot=self._boot)
        return found or WallTime(wall_seconds=self._clock.wall_seconds(), monotonic=self._clock.monotonic())

    def _show(self, pools: Collection[Pool], phase: str, unserved: Sequence[UnservedTag]) -> None:
        now, wall_seconds = self._clock.monotonic(), round(self._clock.wall_seconds(), 3)
        wall = WallTime(wall_seconds=wall_seconds, monotonic=now)
        snapshot: Mapping[str, object] = {
            "version": 1,
            "pid": os.getpid(),
            "phase": phase,
            "url": self._url,
            "started_at": self._started_at,
            "shown_at": wall_seconds,
            "shown_at_monotonic": now,
            "boot": self._boot,
            "not_in_force": list(self.not_in_force),
            **snapshot_of(pools, wall=wall, unserved=unserved),
        }
        with self._write_errors.logged():
            self._files.write_snapshot(snapshot)
        self.snapshot = snapshot


def _has_work(pool: Pool) -> bool:
    """Return whether tasks wait, or workers are wanted that there may not be yet."""
    is_wanted = pool.decision is not None and (pool.decision.target or pool.decision.unguarded)
    return bool(is_wanted or (pool.sample is not None and pool.sample.ready))


def _pool(pool: Pool, wall: WallTime) -> dict[str, object]:
    decision = pool.decision
    crash, concern, failure = pool.fleet.crash, concern_of(pool), pool.last_failure
    return {
        "settings": _settings(pool, pool.effective or pool.spec, pool.spec) if pool.spec else None,
        "current": len(pool.fleet.alive),
        "target": decision.target if decision else None,
        "leaving": len(pool.fleet.leaving),
        "suspects": len(pool.suspected),
        "is_stale": pool.is_stale,
        "sample": _sample(pool.sample, wall) if pool.sample else None,
        "decision": {"at": wall.of(decision.at), **decision.record()} if decision else None,
        "waited": pool.counters.waits.recent(pool.sample.at).record() if pool.sample else None,
        "concern": concern.record() if concern else None,
        "states": list(states_of(pool)),
        "last_failure": {"at": wall.of(failure.at), "why": failure.why} if failure else None,
        "failed_starts": crash.failures,
        "next_start_at": wall.of(crash.retry_at) if crash.failures else None,
    }


def _settings(pool: Pool, spec: PoolSpec, of_the_file: PoolSpec) -> dict[str, object]:
    """Return what commands show of a pool's settings: `min` and `max` are in force, overrides and schedule included."""
    return {
        "queue": spec.queue,
        "queues": list(spec.queues),
        "tags": _tags(spec),
        "works_on": _tags(pool.works_on or spec),
        "app": spec.app,
        "command": masked_command(spec.command) if spec.command else None,
        "celery": spec.celery.model_dump(mode="json", exclude={"options"}) if spec.celery else None,
        "runtime": spec.runtime_kind,
        "start": spec.start,
        "slo_seconds": spec.slo,
        "min": spec.workers.min,
        "max": spec.workers.max,
        "settings_min": of_the_file.workers.min,
        "settings_max": of_the_file.workers.max,
        "grace_seconds": spec.grace,
        "concurrency": spec.concurrency,
        "digest": spec.digest(),
        "dry_run": spec.dry_run,
    }


def _tags(spec: PoolSpec) -> object:
    return "untagged" if spec.untagged else list(spec.tags or ())


def _sample(sample: QueueSample, wall: WallTime) -> dict[str, object]:
    return {
        "at": wall.of(sample.at),
        "ready": sample.ready,
        "held": sample.held,
        "held_by": sample.held_by,
        "delayed": sample.delayed,
        "in_flight": sample.in_flight,
        "dead": sample.dead,
        "paused": sample.paused,
        "oldest_seconds": round(sample.oldest_seconds, 3),
        "ages": sample.ages,
        "cursor": sample.cursor,
    }


def _worker(worker: Worker, pool: Pool, wall: WallTime) -> dict[str, object]:
    kind, _, rest = worker.ref.partition(":")
    return {
        "worker": worker.worker,
        "pool": pool.name,
        "state": worker.state,
        "ref": worker.ref,
        "pid": int(rest.partition("@")[0]) if kind == "pid" else None,
        "since": wall.of(worker.since),
        "spawned_at": wall.of(worker.spawned_at),
        "started_at": wall.of(worker.started_at) if worker.started_at is not None else None,
        "holding": worker.leases,
        "finished": worker.finished,
        "memory_bytes": worker.memory_bytes,
        "cpu_seconds": worker.cpu_seconds,
        "ends_at": wall.of(worker.deadline_at) if worker.deadline_at is not None else None,
        "replaced_by": worker.replaced_by,
        "leaves_for": worker.leaves_for,
        "adopted": worker.adopted,
        "forked": worker.is_forked,
        "condition": worker.condition or worker.place.describe(),
        "node": worker.place.node,
        "spec_digest": worker.spec_digest,
    }
