"""The supervisor's view of its fleet as plain values, for other commands, for people, and for the next supervisor.

`SnapshotWriter` writes it and what was learned to disk, neither often; how it is made and read again is pure.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import RememberedWorker, Worker
from orchestrator.runtime import WorkerHandle
from orchestrator.runtimes.procfs import boot
from orchestrator.samples import QueueSample
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.concerns import concern_of
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.view import Heartbeat, Phase, view_of

log = structlog.get_logger()

SHOW_SECONDS: Final = 1.0
SHOW_IDLE_SECONDS: Final = 10.0
LEARNED_SECONDS: Final = 60.0
TELL_SECONDS: Final = 0.5
TELL_NEWS_SECONDS: Final = 0.1

_AT_ONCE: Final = Monotonic(float("-inf"))


class WallTime:
    """Turns instants of the monotonic clock into seconds since the epoch, for one snapshot."""

    def __init__(self, *, wall_seconds: float, monotonic: Monotonic) -> None:
        self._offset_seconds = wall_seconds - monotonic

    def of(self, at: Monotonic) -> float:
        """Seconds since the epoch, to the tenth."""
        return round(at + self._offset_seconds, 1)

    def back(self, at: float) -> Monotonic:
        """The other way: the instant of `at` seconds since the epoch."""
        return Monotonic(at - self._offset_seconds)


def snapshot_of(pools: Iterable[Pool], *, wall: WallTime) -> dict[str, object]:
    """`pools` by name and `workers` as a list, oldest first; times are seconds since the epoch."""
    known = list(pools)
    workers = [(w, pool) for pool in known for w in pool.fleet.workers.values()]
    workers.sort(key=lambda pair: (pair[0].spawned_at, pair[0].worker))
    return {
        "pools": {pool.name: _pool(pool, wall) for pool in known},
        "workers": [_worker(w, pool, wall) for w, pool in workers],
    }


def handle_in(worker: Mapping[str, object], *, wall: WallTime) -> WorkerHandle | None:
    """What a runtime is to know of one of the `workers` of a snapshot; None when that is not in it."""
    match worker:
        case {
            "worker": str(name),
            "pool": str(pool),
            "ref": str(ref),
            "spec_digest": str(digest),
            "spawned_at": int() | float() as spawned_at,
        }:
            return WorkerHandle(name, pool, ref, digest, wall.back(spawned_at))
        case _:
            return None


def workers_in(snapshot: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The `workers` of a snapshot, as far as they can be read."""
    workers = snapshot.get("workers")
    return [worker for worker in (workers if isinstance(workers, list) else ()) if isinstance(worker, Mapping)]


def wall_time_in(snapshot: Mapping[str, object], *, boot: str) -> WallTime | None:
    """How the times of a snapshot of this boot become instants, whatever the wall clock was set to since.

    None for a snapshot of another boot.
    """
    match snapshot:
        case {"boot": str(known), "shown_at": int() | float() as wall, "shown_at_monotonic": int() | float() as at} if (
            boot and known == boot
        ):
            return WallTime(wall_seconds=wall, monotonic=Monotonic(at))
    return None


def memories_in(snapshot: Mapping[str, object], *, wall: WallTime) -> dict[str, RememberedWorker]:
    """What the supervisor of a snapshot was about with its workers; those left alone are left out."""
    memories = {}
    for worker in workers_in(snapshot):
        name, successor, ends_at = worker.get("worker"), worker.get("replaced_by"), worker.get("ends_at")
        leaves_by = wall.back(ends_at) if isinstance(ends_at, int | float) else None
        finishes = leaves_by is None and worker.get("state") == "draining"
        if isinstance(name, str) and (successor or leaves_by or finishes):
            memories[name] = RememberedWorker(successor if isinstance(successor, str) else None, leaves_by, finishes)
    return memories


class SnapshotWriter:
    """Writes the supervisor's snapshot and its learned state, each at a bounded rate."""

    def __init__(self, files: StateDir, *, clock: MonotonicClock, url: str, pulse: Heartbeat) -> None:
        self._files = files
        self._pulse = pulse
        self._tell_at = _AT_ONCE
        self._told: tuple[object, ...] = ()
        self._clock = clock
        self._started_at = round(clock.wall_seconds(), 3)
        self._url = url
        self._boot = boot()
        self._show_at = _AT_ONCE
        self._keep_at = Monotonic(clock.monotonic() + LEARNED_SECONDS)
        self._is_failing = False
        self._shown: tuple[str, Collection[object], Collection[object]] = ("", (), ())
        self.snapshot: Mapping[str, object] = {}

    def update(self, pools: Collection[Pool], *, phase: Phase) -> None:
        """Show a change of phase, workers or orders at once, other changes once a second, an idle fleet less often.

        A folder that can't be written to is told in the log; the fleet does not depend on it.
        """
        now = self._clock.monotonic()
        workers = {
            (w.worker, w.is_leaving, w.replaced_by, w.hung_at) for pool in pools for w in pool.fleet.workers.values()
        }
        asked = [(pool.conditions.bounds_by, pool.conditions.paused, not pool.conditions.finish_by) for pool in pools]
        if now >= self._show_at or self._shown != (phase, workers, asked):
            is_idle = not workers and not any(pool.sample and pool.sample.ready for pool in pools)
            self._show_at = Monotonic(now + (SHOW_IDLE_SECONDS if is_idle else SHOW_SECONDS))
            self._shown = (phase, workers, asked)
            self._show(pools, phase)
        self._tell(pools, phase=phase, now=now)
        if now >= self._keep_at:
            self._keep_at = Monotonic(now + LEARNED_SECONDS)
            self.keep_learned(pools)

    def _tell(self, pools: Collection[Pool], *, phase: Phase, now: Monotonic) -> None:
        """Other threads are told a change of phase or of a target almost at once, all else twice a second."""
        told = (phase, *[pool.decision and pool.decision.target for pool in pools])
        if now >= self._tell_at or (told != self._told and now >= self._tell_at - TELL_SECONDS + TELL_NEWS_SECONDS):
            self._tell_at = Monotonic(now + TELL_SECONDS)
            self._told = told
            self._pulse.show(view_of(pools, phase=phase, started_at=self._pulse.started_at))

    def keep_learned(self, pools: Collection[Pool]) -> None:
        """Keep now what was learned of each pool."""
        learned = {pool.name: pool.state.to_json() for pool in pools if pool.spec}
        self._write(lambda: self._files.write_learned(learned))

    def learned(self) -> Mapping[str, object]:
        """What an earlier supervisor learned; nothing, with a warning, when that can't be read."""
        try:
            return self._files.read_learned()
        except ValueError as error:
            log.warning(events.STATE_DISCARDED, error=str(error))
            return {}

    def roster(self) -> list[WorkerHandle]:
        """The workers that an earlier supervisor showed last, each as its runtime knew it."""
        shown = self._files.read_snapshot() or {}
        wall = self._time_of(shown)
        return [handle for worker in workers_in(shown) if (handle := handle_in(worker, wall=wall))]

    def memories(self) -> Mapping[str, RememberedWorker]:
        """What it was about with each of them."""
        shown = self._files.read_snapshot() or {}
        return memories_in(shown, wall=self._time_of(shown))

    def _time_of(self, shown: Mapping[str, object]) -> WallTime:
        """How a snapshot tells time. Within a boot its own monotonic clock counts: the other one may have been set."""
        found = wall_time_in(shown, boot=self._boot)
        return found or WallTime(wall_seconds=self._clock.wall_seconds(), monotonic=self._clock.monotonic())

    def _show(self, pools: Collection[Pool], phase: str) -> None:
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
            **snapshot_of(pools, wall=wall),
        }
        self._write(lambda: self._files.write_snapshot(snapshot))
        self.snapshot = snapshot

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._is_failing:
                log.warning(events.STATE_NOT_WRITTEN, path=str(self._files.path), error=error.strerror)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info(events.STATE_RECOVERED, path=str(self._files.path))
            self._is_failing = False


def _pool(pool: Pool, wall: WallTime) -> dict[str, object]:
    decision = pool.decision
    crash, concern = pool.fleet.crash, concern_of(pool)
    return {
        "settings": _settings(pool.effective or pool.spec) if pool.spec else None,
        "current": len(pool.fleet.alive),
        "target": decision.target if decision else None,
        "leaving": len(pool.fleet.leaving),
        "suspects": len(pool.suspects),
        "is_stale": pool.is_stale,
        "sample": _sample(pool.sample, wall) if pool.sample else None,
        "decision": {"at": wall.of(decision.at), **decision.record()} if decision else None,
        "waited": pool.tally.waits.recent(pool.sample.at).record() if pool.sample else None,
        "concern": concern.record() if concern else None,
        "failed_starts": crash.failures,
        "next_start_at": wall.of(crash.retry_at) if crash.failures else None,
    }


def _settings(spec: PoolSpec) -> dict[str, object]:
    return {
        "queue": spec.queue,
        "tags": "untagged" if spec.untagged else list(spec.tags or ()),
        "app": spec.app,
        "command": list(spec.command) if spec.command else None,
        "slo_seconds": spec.slo,
        "min": spec.workers.min,
        "max": spec.workers.max,
        "grace_seconds": spec.grace,
        "concurrency": spec.concurrency,
        "digest": spec.digest(),
        "dry_run": spec.dry_run,
    }


def _sample(sample: QueueSample, wall: WallTime) -> dict[str, object]:
    return {
        "at": wall.of(sample.at),
        "ready": sample.ready,
        "delayed": sample.delayed,
        "in_flight": sample.in_flight,
        "dead": sample.dead,
        "paused": sample.paused,
        "oldest_seconds": round(sample.oldest_seconds, 3),
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
        "ends_at": wall.of(worker.deadline_at) if worker.deadline_at is not None else None,
        "replaced_by": worker.replaced_by,
        "adopted": worker.adopted,
        "condition": worker.condition,
        "spec_digest": worker.spec_digest,
    }
