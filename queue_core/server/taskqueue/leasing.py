"""Leases for an answer of at most 1 MiB: what does not fit is not leased."""

import asyncio
from collections.abc import Sequence

from queue_core.http_api.values import Json
from queue_core.server.core import ServerCore
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.taskqueue.task_json import lease_json
from queue_core.store import Room
from queue_core.task import Lease, TagFilter

MAX_ANSWER_BYTES = 1 << 20
"""Of a lease's tasks as JSON. The first task is in the answer whatever its size."""
FRAME_BYTES = 300
"""What a task takes in an answer besides its payload, its tag, its name, and the project and queue in its long name."""
_DOOR = "taskqueue-v1beta2"


async def lease_items(
    core: ServerCore, queue: str, *, count: int, seconds: int, tags: TagFilter, worker: str, project: str
) -> list[Json]:
    """Lease up to `count` tasks that fit into one answer: by one call of the store, as the tasks of a lease of no time
    are ready again at once, and a second call would lease them a second time."""
    leases = await _lease(
        core, queue, count=count, seconds=seconds, tags=tags, worker=worker, room=_room(queue, project)
    )
    return [lease_json(lease, project=project) for lease in leases]


def _room(queue: str, project: str) -> Room:
    """Three bytes of a payload are four characters of an answer: so there is room for three quarters of its bytes."""
    frame = FRAME_BYTES + len(project.encode()) + len(queue)
    return Room(MAX_ANSWER_BYTES * 3 // 4, each_bytes=frame * 3 // 4)


async def _lease(
    core: ServerCore, queue: str, *, count: int, seconds: int, tags: TagFilter, worker: str, room: Room
) -> Sequence[Lease]:
    answered: asyncio.Future[LeaseAnswer | Exception] = asyncio.get_running_loop().create_future()

    def answer(outcome: LeaseAnswer | Exception) -> None:
        if not answered.done():
            answered.set_result(outcome)

    call = LeaseCall(queue, count, seconds, tags, worker, 0.0, worker or _DOOR, (), answer, lambda: False, room=room)
    core.waiting.start(call)
    try:
        outcome = await answered
    except asyncio.CancelledError:
        call.cancel()
        raise
    if not isinstance(outcome, LeaseAnswer):
        raise outcome
    return outcome.granted.leases
