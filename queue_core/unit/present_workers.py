"""The workers that a store and a server know, supervised or not: by their registrations, leases and lease calls.

A worker that no supervisor started registers itself (`worker/presence.py`); any other program is known by what it
leases, and at its server by its calls (ADR 97).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queue_core.clock import seconds_between
from queue_core.stats import HeldTask, LeasingWorker, WorkerActivity
from queue_core.task import ANY
from queue_core.unit.registration_verbs import registrations
from queue_core.unit.supervisors import KIND as SUPERVISORS
from queue_core.unit.supervisors import supervisor_in
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs.registration import WORKERS, Registration
from queue_core.verbs.served_tags import KIND as POOL_TAGS
from queue_core.verbs.served_tags import is_recent

MAX_WORKERS: Final = 1_000
"""Workers of one answer, at most."""
MAX_TASKS: Final = 20
"""Tasks of one worker that are named, at most."""
MAX_LEASES: Final = 2_000
"""Live leases of one queue that are looked at, at most."""
MAX_ENDED: Final = 1_000
"""Ended leases of one queue that are counted, at most: the newest."""


@dataclass(slots=True)
class _Known:
    facts: Mapping[str, str] | None = None
    queues: dict[str, None] = field(default_factory=dict)
    calls: list[WorkerActivity] = field(default_factory=list)
    tasks: list[HeldTask] = field(default_factory=list)
    finished: int = 0


def present_workers(work: UnitOfWork, calls: Sequence[tuple[str, WorkerActivity]] = ()) -> list[LeasingWorker]:
    """Return the workers by name, at most 1,000.

    Args:
        calls: the lease calls that a server knows, with their queues.
    """
    known: dict[str, _Known] = {}
    for one in registrations(work, WORKERS):
        found = known.setdefault(one.name, _Known(one.facts))
        found.queues[one.facts.get("queue", "")] = None
    for queue, activity in calls:
        found = known.setdefault(activity.worker, _Known())
        found.calls.append(activity)
        found.queues[queue] = None
    queues = [spec.name for spec in work.transaction.queues()]
    for queue in queues:
        if work.stats(queue, ANY).in_flight:
            _add_leases(work, queue, known)
    pools = _pools(registrations(work, SUPERVISORS), registrations(work, POOL_TAGS))
    kept = {name: one for name, one in known.items() if name and _is_here(one)}
    _count_finished(work, kept, queues)
    return [_present(name, kept[name], pool_of(name, pools)) for name in sorted(kept)[:MAX_WORKERS]]


def worker_in(record: Mapping[str, Any]) -> LeasingWorker:
    """Return the worker that a server describes."""
    tasks = tuple(HeldTask(**one) for one in record["tasks"])
    return LeasingWorker(**{**record, "queues": tuple(record["queues"]), "tasks": tasks})


def pool_of(worker: str, pools: Iterable[str]) -> str:
    """Return the pool that a worker's name stands for: POOL-ID, POOL-ID.solo... or POOL/HOST.ID; "": none of them."""
    pool = worker.partition("/")[0] if "/" in worker else worker.partition(".")[0].rpartition("-")[0]
    return pool if pool in pools else ""


def _pools(supervisors: Sequence[Registration], pools: Sequence[Registration]) -> frozenset[str]:
    return frozenset([one.name for one in pools]).union(*(supervisor_in(one).pools for one in supervisors))


def _add_leases(work: UnitOfWork, queue: str, known: dict[str, _Known]) -> None:
    for lease in work.transaction.live_leases(queue, limit=MAX_LEASES, now=work.now):
        found = known.setdefault(lease.worker, _Known())
        held_seconds = round(max(0.0, seconds_between(lease.leased_at, work.now)), 3)
        found.tasks.append(HeldTask(queue, lease.name, lease.tag, held_seconds, lease.lease_number))
        found.queues[queue] = None


def _count_finished(work: UnitOfWork, known: Mapping[str, _Known], queues: Iterable[str]) -> None:
    """Count the leases of these workers that have ended, as far as it is among the newest ended leases."""
    wanted = {queue for one in known.values() for queue in one.queues}
    for queue in wanted.intersection(queues):
        ended = work.history(queue, names=None, before=None, limit=MAX_ENDED)
        for lease in ended.leases:
            if lease.worker in known:
                known[lease.worker].finished += 1


def _is_here(one: _Known) -> bool:
    if one.tasks or one.facts is not None:
        return True
    return any(is_recent(call.silent_seconds) and not call.hung_up for call in one.calls)


def _present(name: str, one: _Known, pool: str) -> LeasingWorker:
    facts = one.facts or {}
    silent_seconds = min((call.silent_seconds for call in one.calls), default=None)
    waits = any(call.waits and not call.hung_up and not call.silent_seconds for call in one.calls)
    tasks = sorted(one.tasks, key=lambda task: -task.held_seconds)
    return LeasingWorker(
        worker=name,
        pool=pool,
        host=facts.get("host", ""),
        pid=_integer(facts.get("pid", "")),
        since=float(_integer(facts.get("since", ""))),
        queues=tuple(sorted(filter(None, one.queues))),
        state="busy" if tasks else "leasing" if waits else "idle",
        silent_seconds=silent_seconds,
        finished=max(one.finished, _integer(facts.get("finished", ""))),
        holding=len(tasks),
        tasks=tuple(tasks[:MAX_TASKS]),
    )


def _integer(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else 0
