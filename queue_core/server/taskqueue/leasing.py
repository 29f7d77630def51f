"""Leases for an answer of at most 1 MiB: a few at first, then as many as should fit, and the surplus given back."""

import asyncio
from collections.abc import Sequence

from pydantic_core import to_json

from queue_core.errors import QueueError
from queue_core.http_api.values import Json
from queue_core.server.core import ServerCore
from queue_core.server.lease_call import LeaseAnswer, LeaseCall
from queue_core.server.taskqueue.task_json import lease_json
from queue_core.task import UNTAGGED, Lease, TagFilter

MAX_ANSWER_BYTES = 1 << 20
"""Of a lease's tasks as JSON. The first task is in the answer whatever its size."""
FIRST_CHUNK = 32
_DOOR = "taskqueue-v1beta2"


async def lease_items(
    core: ServerCore, queue: str, *, count: int, seconds: int, tags: TagFilter, worker: str, project: str
) -> list[Json]:
    """Lease up to `count` tasks that fit into one answer."""
    items: list[Json] = []
    size = 0
    while len(items) < count:
        wanted = min(count - len(items), _fitting(size, len(items)))
        try:
            leases = await _lease(core, queue, count=wanted, seconds=seconds, tags=tags, worker=worker)
        except QueueError:
            if not items:
                raise
            return items  # these are leased, and nobody else would tell of them
        if tags.kind == "oldest" and leases:
            tags = UNTAGGED if leases[0].tag is None else TagFilter.of(leases[0].tag)
        for number, lease in enumerate(leases):
            item = lease_json(lease, project=project)
            item_bytes = len(to_json(item))
            if items and size + item_bytes > MAX_ANSWER_BYTES:
                core.waiting.give_back(queue, leases[number:])
                return items
            size += item_bytes
            items.append(item)
        if len(leases) < wanted or seconds == 0:  # a lease of 0 s is over: its task would come again
            return items
    return items


def _fitting(size: int, count: int) -> int:
    """How many more tasks should fit, as large as those so far."""
    if not count:
        return FIRST_CHUNK
    return max(1, (MAX_ANSWER_BYTES - size) * count // max(1, size))


async def _lease(
    core: ServerCore, queue: str, *, count: int, seconds: int, tags: TagFilter, worker: str
) -> Sequence[Lease]:
    answered: asyncio.Future[LeaseAnswer | Exception] = asyncio.get_running_loop().create_future()

    def answer(outcome: LeaseAnswer | Exception) -> None:
        if not answered.done():
            answered.set_result(outcome)

    call = LeaseCall(queue, count, seconds, tags, worker, 0.0, worker or _DOOR, (), answer, lambda: False)
    core.waiting.start(call)
    try:
        outcome = await answered
    except asyncio.CancelledError:
        core.waiting.cancel(call)
        raise
    if not isinstance(outcome, LeaseAnswer):
        raise outcome
    return outcome.granted.leases
