"""A task as the message that tells of it, and what of it is asked for. Pure, but for the look at one task."""

from collections.abc import Sequence

from queue_core import limits
from queue_core.api import ALL_STATES
from queue_core.clock import MICROSECONDS
from queue_core.server.cloudtasks.failures import CloudTasksError, RpcStatus
from queue_core.server.cloudtasks.fields import MessageReader, Values
from queue_core.server.cloudtasks.messages import BASIC, FULL
from queue_core.server.cloudtasks.names import QueueName, TaskName
from queue_core.task import ANY, StoredTask, TaskState
from queue_core.unit_of_work import UnitOfWork

MAX_RESPONSE_BYTES = 32 << 20
"""Of all tasks of one answer together. Source: the API's own documentation."""
TASK_OVERHEAD_BYTES = 2048
"""What a task is counted with besides its payload: its name, its tag, and the fields around them."""
SHOWN = ALL_STATES - {TaskState.DEAD}
"""This API knows no dead tasks: there, a task that used up its leases is deleted."""


def task_values(task: StoredTask, parent: QueueName, *, view: int) -> Values:
    """A task as its message; the payload only in the full view."""
    message: Values = {}
    if view == FULL:
        message["payload"] = task.payload
    if task.tag is not None:
        message["tag"] = task.tag
    return {
        "name": parent.task(task.shown_name),
        "pullMessage": message,
        "scheduleTime": task.eta,
        "createTime": task.added_at // MICROSECONDS * MICROSECONDS,
        "status": {"attemptDispatchCount": task.leases},
        "view": view,
    }


def tasks_values(tasks: Sequence[Values]) -> Values:
    return {"tasks": list(tasks)} if tasks else {}


def view_of(fields: MessageReader) -> int:
    return fields.number("responseView") or BASIC


def payload_bytes_of(view: int) -> int:
    return limits.MAX_PAYLOAD_BYTES if view == FULL else 0


def find_task(turn: UnitOfWork, name: TaskName, *, payload_bytes: int) -> StoredTask:
    found = turn.peek(
        name.parent.queue,
        tags=ANY,
        states=SHOWN,
        names=[name.task],
        after=0,
        limit=1,
        payload_bytes=payload_bytes,
    ).tasks
    if not found:
        raise not_found(name)
    return found[0]


def not_found(name: TaskName) -> CloudTasksError:
    return CloudTasksError(
        RpcStatus.NOT_FOUND, f"there is no task {name}: it was deleted or acknowledged, or never was"
    )
