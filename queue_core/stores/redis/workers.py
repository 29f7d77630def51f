"""The verbs of supervisors: when workers were first seen, retirement, leads.

Each queue keeps its own record of a worker, as functions can't read another node of a cluster. Without a cluster one
atomic call retires a worker from all queues; in a cluster it is one call for each queue.
"""

from collections.abc import Sequence
from struct import pack, unpack_from

from queue_core.clock import Instant, after
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.keys import RETIRED, key_of, lead_key
from queue_core.verbs import Busy

_ONE = ord("1")


def _groups(calls: Calls) -> list[list[str]]:
    """Return all queues, in groups that one call can read."""
    names = calls.names()
    return [[name] for name in names] if calls.in_cluster else [names] if names else []


def workers_seen(calls: Calls, workers: Sequence[str]) -> dict[str, Instant]:
    """See `Transaction.workers_seen`."""
    found: dict[str, Instant] = {}
    if not workers:
        return found
    for group in _groups(calls):
        data = calls.done(calls.client.read("workers_seen", [key_of(name) for name in group], workers))
        for worker, seen_at in zip(workers, unpack_from(f">{len(workers)}Q", data, DATA), strict=True):
            if seen_at:
                found[worker] = min(seen_at, found.get(worker, seen_at))
    return {worker: found[worker] for worker in workers if worker in found}


def retire(calls: Calls, worker: str, *, busy: Busy, now: Instant) -> bool:
    """See `Transaction.retire_worker`."""
    groups, is_free = _groups(calls), True
    for number, group in enumerate(groups):
        data = calls.change_several("retire_worker", group, [pack(">Q", now), worker])
        if data[DATA] == _ONE:
            continue
        if busy == "keep":
            if number and not calls.client.execute(RETIRED, "HEXISTS", RETIRED, worker):
                for fenced in groups[:number]:
                    calls.change_several("readmit_worker", fenced, [pack(">Q", now), worker])
            return False
        calls.change_several("fence_workers", group, [pack(">Q", now), worker])
        is_free = False
    _remember(calls, worker, now=now)
    for group in _groups(calls):
        later = [name for name in group if not any(name in known for known in groups)]
        if later:
            calls.change_several("fence_workers", later, [pack(">Q", now), worker])
    return is_free


def fence(calls: Calls, worker: str, *, now: Instant) -> list[str]:
    """See `ChangeVerbs.fence_worker`. The answers are kept, so that a repeat changes the same queues."""
    _remember(calls, worker, now=now)
    found: list[str] = []
    for group in _groups(calls):
        letters = calls.change_several("fence_holder", group, [pack(">Q", now), worker])[DATA:]
        found += [name for name, letter in zip(group, letters, strict=True) if letter == _ONE]
    return found


def _remember(calls: Calls, worker: str, *, now: Instant) -> None:
    """Keep the retirement for queues that are created later: `put_queue` reads it."""
    calls.done(calls.send("keep_retired", (RETIRED,), (pack(">Q", now), worker)))


def lead(calls: Calls, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
    """See `Transaction.lead`."""
    args = (pack(">QQ", now, after(now, seconds)), holder)
    return calls.done(calls.send("lead", (lead_key(name),), args))[DATA] == _ONE
