"""Whether a supervisor ever ended a worker that had work: the apiserver's audit log beside the queue's. Pure.

Both are written by programs that know nothing of each other, and neither of them is the supervisor.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tests.support.kubernetes.cluster import Json

ENDS: Final = frozenset({"task.deleted", "task.died", "lease.released", "lease.expired"})
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as the queue logged it; times in seconds since the epoch, `ended` None while it is held."""

    task: str
    number: int
    worker: str
    begun: float
    ended: float | None = None
    how: str = ""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A DELETE of a Pod that the apiserver accepted."""

    pod: str
    worker: str
    user: str
    at: float
    grace_seconds: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A worker whose Pod was deleted while it held these tasks."""

    deletion: Deletion
    tasks: tuple[str, ...]


def leases_of(changes: Iterable[Mapping[str, object]]) -> list[Held]:
    """Return every lease of a lifecycle log in order."""
    found: dict[tuple[str, int], Held] = {}
    for change in changes:
        key = (str(change.get("task")), int(str(change.get("lease_number") or 0)))
        at = float(str(change.get("at") or 0)) / MICROSECONDS
        if change["event"] == "task.leased":
            found[key] = Held(*key, str(change.get("worker")), at)
        elif change["event"] in ENDS and key in found:
            found[key] = replace(found[key], ended=at, how=str(change["event"]))
    return list(found.values())


def deletions_of(audit: Sequence[Json]) -> list[Deletion]:
    """Return the accepted DELETEs of Pods in order."""
    workers = _workers(audit)
    found = []
    for record in audit:
        target = record["objectRef"]
        if not _is_of_a_pod(record, "delete") or record["responseStatus"]["code"] >= 300:
            continue
        grace = (record.get("requestObject") or {}).get("gracePeriodSeconds")
        name, user = str(target["name"]), str(record["user"]["username"])
        found.append(Deletion(name, workers.get(name, ""), user, seconds_of(record["requestReceivedTimestamp"]), grace))
    return found


def pods_made(audit: Sequence[Json]) -> int:
    """Return how many Pods were made."""
    return sum(_is_of_a_pod(one, "create") and one["responseStatus"]["code"] < 300 for one in audit)


def cuts(leases: Sequence[Held], deletions: Sequence[Deletion], *, user: str, told: Mapping[str, float]) -> list[Cut]:
    """Return each worker that this user's DELETE met at work, unless it was told to stop before.

    Args:
        told: when a person, or the cluster, told a worker to stop, in seconds since the epoch.
    """
    found = []
    for deletion in deletions:
        if not deletion.user.endswith(user) or told.get(deletion.worker, deletion.at + 1) <= deletion.at:
            continue
        held = [
            lease.task
            for lease in leases
            if lease.worker == deletion.worker
            and lease.begun <= deletion.at
            and (lease.ended is None or lease.ended > deletion.at)
        ]
        if held:
            found.append(Cut(deletion, tuple(held)))
    return found


def told_by_others(audit: Sequence[Json], *, user: str) -> dict[str, float]:
    """Return when a worker was first told to stop by anybody but this user: a person, an eviction, the cluster."""
    workers = _workers(audit)
    found: dict[str, float] = {}
    for record in audit:
        is_stop = record["objectRef"].get("subresource") == "eviction" or _is_of_a_pod(record, "delete")
        worker = workers.get(str(record["objectRef"].get("name")), "")
        if worker and is_stop and not str(record["user"]["username"]).endswith(user):
            found.setdefault(worker, seconds_of(record["requestReceivedTimestamp"]))
    return found


def done_twice(leases: Sequence[Held]) -> set[str]:
    """Return the tasks that more than one lease finished."""
    done = [lease.task for lease in leases if lease.how == "task.deleted"]
    return {task for task in done if done.count(task) > 1}


def seconds_of(text: str) -> float:
    """Return the seconds since the epoch of a time of the API."""
    return datetime.fromisoformat(text).timestamp()


def _workers(audit: Sequence[Json]) -> dict[str, str]:
    """Return the workers by the names of their Pods."""
    return {str(one["objectRef"].get("name")): _worker_of(one) for one in audit if _is_of_a_pod(one, "create")}


def _is_of_a_pod(record: Json, verb: str) -> bool:
    """Return whether a call was made on a Pod itself."""
    target = record["objectRef"]
    return record["verb"] == verb and target["resource"] == "pods" and not target.get("subresource")


def _worker_of(record: Json) -> str:
    metadata = (record.get("requestObject") or {}).get("metadata") or {}
    return str((metadata.get("labels") or {}).get("towline.worker", ""))
