"""The verbs of administrators: delete by name, purge, redrive, postpone, retag, and the settings of queues."""

from collections.abc import Sequence
from dataclasses import replace
from struct import pack, unpack_from
from typing import Literal

from queue_core.clock import Instant
from queue_core.errors import UnknownQueueError
from queue_core.limits import FARTHEST_ETA_SECONDS, check_eta
from queue_core.stats import PURGED, TaskRemoval
from queue_core.stores.redis.binary import pack_filter, pack_kept, pack_settings, parse_settings, parse_task
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.keys import KEPT_SETTINGS, QUEUES, RETIRED, SETTINGS, STORAGE, key_of, stored_key
from queue_core.task import QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import Retagged, Storage


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


NameOutcome = Literal["deleted", "unknown", "tombstoned"]

_OUTCOMES: dict[int, NameOutcome] = {ord("d"): "deleted", ord("u"): "unknown", ord("t"): "tombstoned"}
_ONE = ord("1")
_NOT_RETAGGED = ord("0")
_RETAGGED_READY = ord("r")
_WORKERS_PER_CALL = 1000


def delete_by_name(
    calls: Calls, queue: str, names: Sequence[str], removal: TaskRemoval, *, now: Instant
) -> list[NameOutcome]:
    """See `Transaction.delete_by_name`."""
    data = calls.change(
        "delete_by_name",
        queue,
        pack(">QB", now, removal.holder is not None),
        removal.reason,
        removal.holder or "",
        *names,
    )
    return [_OUTCOMES[letter] for letter in data[DATA:]]


def purge(
    calls: Calls,
    queue: str,
    tags: TagFilter,
    which: Literal["alive", "dead"],
    removal: TaskRemoval = PURGED,
    *,
    limit: int,
    now: Instant,
) -> int:
    """See `Transaction.purge` and `purge_dead`."""
    kind, names = pack_filter(tags)
    data = calls.change("purge", queue, pack(">QIBB", now, limit, kind, which == "dead"), removal.reason, *names)
    return int.from_bytes(data[DATA:], "big")


def redrive(
    calls: Calls, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
) -> list[StoredTask]:
    """See `Transaction.redrive`."""
    kind, cells = pack_filter(tags)
    if names is not None:
        cells = tuple(dict.fromkeys(names))
    data = calls.change("redrive", queue, pack(">QIBB", now, limit, kind, names is not None), *cells)
    tasks: list[StoredTask] = []
    at = DATA
    while at < len(data):
        task, at = parse_task(queue, data, at)
        tasks.append(replace(task, state=TaskState.READY))
    return tasks


def postpone(calls: Calls, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
    """See `Transaction.postpone`."""
    check_eta(eta, now=now, most_seconds=FARTHEST_ETA_SECONDS)
    return calls.change("postpone", queue, pack(">QQQ", now, max(expected, 0), max(eta, now)), name)[DATA] == _ONE


def retag(calls: Calls, queue: str, names: Sequence[str], tag: str | None, *, now: Instant) -> list[Retagged]:
    """See `Transaction.retag`."""
    wanted = list(dict.fromkeys(names))
    letters = calls.change("retag", queue, pack(">Q", now), tag or "", *wanted)[DATA:]
    return [
        Retagged(name, letter == _RETAGGED_READY)
        for name, letter in zip(wanted, letters, strict=True)
        if letter != _NOT_RETAGGED
    ]


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
