"""What the payloads of all tasks may come to. While there is a limit each queue counts its own, in the calls that add
and drop tasks; the sum is made by whoever asks, as queues may be on several nodes."""

from collections.abc import Sequence

from queue_core.errors import UnknownQueueError
from queue_core.store import Storage
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.keys import STORAGE, stored_key


def set_storage_limit(calls: Calls, limit_bytes: int | None) -> None:
    """See `Transaction.set_storage_limit`. The limit comes first, so that queues made meanwhile count too."""
    if limit_bytes is None:
        calls.link.ask(STORAGE, "DEL", STORAGE)
    else:
        calls.link.ask(STORAGE, "SET", STORAGE, limit_bytes)
    for queue in calls.names():
        _count(calls, queue, b"0" if limit_bytes is None else b"1")


def storage(calls: Calls) -> Storage:
    """See `Transaction.storage`."""
    limit_bytes = calls.link.ask(STORAGE, "GET", STORAGE)
    if not isinstance(limit_bytes, bytes):
        return Storage()
    keys = [stored_key(queue) for queue in calls.names()]
    return Storage(int(limit_bytes), sum(_read(calls, keys)))


def count_new_queue(calls: Calls, queue: str) -> None:
    """Have a queue that was just made count its payloads, if there is a limit."""
    if calls.link.ask(STORAGE, "EXISTS", STORAGE):
        _count(calls, queue, b"1")


def _count(calls: Calls, queue: str, wanted: bytes) -> None:
    try:
        calls.change("count_stored", queue, wanted)
    except UnknownQueueError:
        return  # it is just being dropped


def _read(calls: Calls, keys: Sequence[str]) -> list[int]:
    if not keys:
        return []
    if calls.in_cluster:
        answers = [calls.link.ask(key, "GET", key) for key in keys]
    else:
        found = calls.link.ask(keys[0], "MGET", *keys)
        answers = found if isinstance(found, list) else []
    return [int(answer) for answer in answers if isinstance(answer, bytes)]
