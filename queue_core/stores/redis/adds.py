"""The add verb, and its part in deletions that add tasks: one call for the tasks of all queues."""

from collections.abc import Sequence
from itertools import chain
from struct import pack

from redis.crc import key_slot

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError, StoreUnavailableError
from queue_core.rare_fields import has_rare_fields
from queue_core.stores.rare_text import rare_text
from queue_core.stores.redis.binary import pack_body, pack_bounds, pack_instants, parse_added
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.client.connection import Cell
from queue_core.stores.redis.keys import IDS, key_of
from queue_core.task import NewTask
from queue_core.verbs import Added

IDS_PER_BLOCK = 1000
"""Ids that a queue of a cluster reserves at once, as the counter of all ids is on another node than most queues.

More: fewer round trips to that node; less: fewer unused ids. Ids have 63 bits.
"""

MAX_ATTEMPTS = 3
_ALONE, _BRING_NONE = b"", b"-"


def add(calls: Calls, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
    """See `Transaction.add`."""
    queues = queues_of(calls, queue, tasks)
    head, cells = pack(">QH", now, len(tasks)), cells_of(queues, queue, tasks, now=now)
    data = change_with_ids(calls, "add", queues, [head], cells, ids=len(tasks))
    return parse_added(tasks, data, DATA)[0]


def change_with_ids(
    calls: Calls,
    verb: str,
    queues: Sequence[str],
    head: Sequence[Cell],
    cells: Sequence[Cell],
    *,
    ids: int,
    worker: str = "",
) -> bytes:
    """Call a verb that needs up to `ids` ids; in a cluster, reserve a new block of ids when the verb asks for one.

    Raises `StoreUnavailableError` after `MAX_ATTEMPTS`.
    """
    if not calls.in_cluster:
        return calls.change_several(verb, queues, [*head, _ALONE, *cells], worker=worker)
    block = _BRING_NONE
    keys = [key_of(queue) for queue in queues]
    for attempt in range(MAX_ATTEMPTS):
        answer = calls.send(verb, keys, [*head, block, *cells])
        letter = answer[:1] if isinstance(answer, bytes) else b""
        if letter == b"s" and calls.is_repeatable and attempt < MAX_ATTEMPTS - 1:
            continue  # a repeat of this call, whose first try was answered at a later attempt
        if letter != b"i":
            return calls.changed(answer, queues, worker=worker)
        size = IDS_PER_BLOCK + ids
        last = calls.client.execute(IDS, "INCRBY", IDS, size)
        block = pack(">QQ", int(last) - size + 1 if isinstance(last, int) else 0, size)
    raise StoreUnavailableError(
        f"other processes used up the ids that were reserved for queue {queues[0]!r}: try again"
    )


def queues_of(calls: Calls, queue: str, tasks: Sequence[NewTask]) -> list[str]:
    """Return the distinct queues of a call, its own first.

    Raises `InvalidRequestError` where they are on different nodes, so that no atomic call can change them all.
    """
    queues = list(dict.fromkeys(chain((queue,), (new.queue for new in tasks if new.queue is not None))))
    if calls.in_cluster and len(queues) > 1:
        slot = key_slot(key_of(queue).encode())
        for other in queues[1:]:
            if key_slot(key_of(other).encode()) != slot:
                raise InvalidRequestError(
                    f"queues {queue!r} and {other!r} are on different nodes of the Redis Cluster, so no call can "
                    "change both: call them one after the other, or use a store that is not a cluster"
                )
    return queues


def cells_of(queues: Sequence[str], queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Cell]:
    """Return the arguments for tasks: etas with the tasks' own bounds, indexes of their queues, and bodies."""
    etas = which = b""
    is_bounded = any(new.max_leases is not None for new in tasks)
    if is_bounded or any(new.eta is not None or new.delay_seconds is not None for new in tasks):
        etas = pack_instants([semantics.effective_eta(new, now=now) for new in tasks])
    if is_bounded:
        etas += pack_bounds(tasks)
    if len(queues) > 1:
        numbers = {name: number for number, name in enumerate(queues, start=1)}
        which = pack(f">{len(tasks)}H", *[numbers[new.queue or queue] for new in tasks])
    cells: list[Cell] = [etas, which]
    for new in tasks:
        rare = rare_text(new) if has_rare_fields(new) else None
        cells += pack_body(now, new.tag, new.name, new.payload, rare, new.priority)
    return cells
