"""The verbs on queues themselves: create, set, list, pause, fence, drop; and the limit on all payloads."""

from collections.abc import Sequence
from struct import pack, unpack_from
from typing import Literal

from queue_core.clock import Instant
from queue_core.errors import UnknownQueueError
from queue_core.stores.redis.binary import pack_kept, pack_settings, parse_settings
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.keys import KEPT_SETTINGS, QUEUES, RETIRED, SETTINGS, STORAGE, key_of, stored_key
from queue_core.task import QueueSpec
from queue_core.verbs import Storage


def set_storage_limit(calls: Calls, limit_bytes: int | None) -> None:
    """See `Transaction.set_storage_limit`. The limit is written first, so that queues created meanwhile count too."""
    calls.done(calls.send("limit_storage", (STORAGE,), ("" if limit_bytes is None else limit_bytes,)))
    for queue in calls.names():
        _set_counting(calls, queue, b"0" if limit_bytes is None else b"1")


def storage(calls: Calls) -> Storage:
    """See `Transaction.storage`."""
    limit_bytes = calls.client.execute(STORAGE, "GET", STORAGE)
    if not isinstance(limit_bytes, bytes):
        return Storage()
    keys = [stored_key(queue) for queue in calls.names()]
    return Storage(int(limit_bytes), sum(_read_numbers(calls, keys)))


def count_new_queue(calls: Calls, queue: str) -> None:
    """Make a queue that was just created count its payloads, if there is a limit."""
    if calls.client.execute(STORAGE, "EXISTS", STORAGE):
        _set_counting(calls, queue, b"1")


def _set_counting(calls: Calls, queue: str, wanted: bytes) -> None:
    try:
        calls.change("count_stored", queue, wanted)
    except UnknownQueueError:
        return  # the queue is being dropped


def _read_numbers(calls: Calls, keys: Sequence[str]) -> list[int]:
    if not keys:
        return []
    if calls.in_cluster:
        answers = [calls.client.execute(key, "GET", key) for key in keys]
    else:
        found = calls.client.execute(keys[0], "MGET", *keys)
        answers = found if isinstance(found, list) else []
    return [int(answer) for answer in answers if isinstance(answer, bytes)]


_ONE = ord("1")
_WORKERS_PER_CALL = 1000


def put_queue(calls: Calls, spec: QueueSpec, *, now: Instant) -> bool:
    """See `Transaction.put_queue`.

    The queue is listed before and after it is created, so that it is listed even if the queue is dropped meanwhile or
    this call is interrupted. The list may name a queue that does not exist.
    """
    _list(calls, spec.name)
    created = calls.change("put_queue", spec.name, pack_settings(spec), pack_kept(spec), pack(">Q", now))[DATA] == _ONE
    if created:
        _list(calls, spec.name)
        count_new_queue(calls, spec.name)
        retired = calls.client.execute(RETIRED, "HKEYS", RETIRED)
        workers = [worker for worker in retired if isinstance(worker, bytes)] if isinstance(retired, list) else []
        for first in range(0, len(workers), _WORKERS_PER_CALL):
            calls.change("fence_workers", spec.name, pack(">Q", now), *workers[first : first + _WORKERS_PER_CALL])
    return created


def queue(calls: Calls, name: str) -> QueueSpec:
    """See `Transaction.queue`."""
    spec = _spec(calls, name)
    if spec is None:
        raise calls.unknown(name)
    return spec


def queues(calls: Calls) -> list[QueueSpec]:
    """See `Transaction.queues`."""
    found = [_spec(calls, name) for name in sorted(calls.names())]
    return [spec for spec in found if spec is not None]  # None: the queue is being dropped


def _spec(calls: Calls, name: str) -> QueueSpec | None:
    cells = calls.client.execute(key_of(name), "HMGET", key_of(name), SETTINGS, KEPT_SETTINGS)
    settings, kept = cells if isinstance(cells, list) else (None, None)
    if not isinstance(settings, bytes):
        return None
    return parse_settings(name, settings, kept if isinstance(kept, bytes) else b"")


def delete_queue(calls: Calls, name: str) -> int:
    """See `Transaction.delete_queue`."""
    data = calls.change("delete_queue", name)
    calls.client.execute(QUEUES, "ZREM", QUEUES, name)
    if calls.client.execute(key_of(name), "EXISTS", key_of(name)):  # created again meanwhile
        _list(calls, name)
    (count,) = unpack_from(">Q", data, DATA)
    return int(count)


def set_paused(calls: Calls, name: str, paused: Literal["paused", "running"]) -> bool:
    """See `Transaction.set_paused`."""
    return calls.change("set_paused", name, b"1" if paused == "paused" else b"0")[DATA] == _ONE


def set_moved(calls: Calls, name: str, to: str) -> None:
    """See `Transaction.set_moved`."""
    calls.change("set_moved", name, to)


def _list(calls: Calls, name: str) -> None:
    calls.done(calls.send("enlist", (QUEUES,), (name,)))
