"""The supervisor's view of its fleet as plain values, for other commands and for people. Pure."""

from collections.abc import Iterable, Mapping

from orchestrator.clock import Monotonic
from orchestrator.concerns import concern_of
from orchestrator.config import PoolSpec
from orchestrator.fleet import Memory, Worker
from orchestrator.managed import ManagedPool
from orchestrator.metrics import QueueSample
from orchestrator.runtime import WorkerHandle


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


def snapshot_of(pools: Iterable[ManagedPool], *, wall: WallTime) -> dict[str, object]:
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


def memories_in(snapshot: Mapping[str, object], *, wall: WallTime) -> dict[str, Memory]:
    """What the supervisor of a snapshot was about with its workers; those left alone are left out."""
    memories = {}
    for worker in workers_in(snapshot):
        name, successor, ends_at = worker.get("worker"), worker.get("replaced_by"), worker.get("ends_at")
        leaves_by = wall.back(ends_at) if isinstance(ends_at, int | float) else None
        finishes = leaves_by is None and worker.get("state") == "draining"
        if isinstance(name, str) and (successor or leaves_by or finishes):
            memories[name] = Memory(successor if isinstance(successor, str) else None, leaves_by, finishes)
    return memories


def _pool(pool: ManagedPool, wall: WallTime) -> dict[str, object]:
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


def _worker(worker: Worker, pool: ManagedPool, wall: WallTime) -> dict[str, object]:
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
