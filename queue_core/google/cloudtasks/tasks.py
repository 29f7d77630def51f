"""The methods of tasks: run a request's verb and return the response's values."""

from collections.abc import Sequence

from queue_core import limits
from queue_core.clock import MICROSECONDS
from queue_core.google.cloudtasks.call import (
    CloudTasksCall,
    MessageReader,
    Values,
    page_size,
    page_token,
    parse_page_token,
)
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, invalid, refused
from queue_core.google.cloudtasks.messages import BASIC, FULL
from queue_core.google.cloudtasks.names import QueueName, TaskName, parse_queue, parse_task
from queue_core.server.callers.auth import described
from queue_core.server.state import ServerState
from queue_core.stats import TaskRemoval
from queue_core.task import ALL_STATES, ANY, NewTask, StoredTask, TaskState
from queue_core.unit.unit_of_work import UnitOfWork

MAX_RESPONSE_BYTES = 32 << 20
"""Bytes of all tasks in one response. Source: the API's documentation."""
TASK_OVERHEAD_BYTES = 2048
"""Bytes counted per task besides its payload: its name, its tag and the other fields."""
SHOWN = ALL_STATES - {TaskState.DEAD}
"""States of visible tasks. This API has no dead tasks: it deletes a task that has used up its leases."""


def task_values(task: StoredTask, parent: QueueName, *, view: int) -> Values:
    """Return a task as the values of its message; the payload only in the full view."""
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
    return limits.LARGEST_PAYLOAD_BYTES if view == FULL else 0


def find_task(unit: UnitOfWork, name: TaskName, *, payload_bytes: int) -> StoredTask:
    found = unit.peek(
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
        RpcStatus.NOT_FOUND, f"there is no task {name}: it was deleted or acknowledged, or never existed"
    )


MAX_PAGE_TASKS = 1000
"""Tasks of one page. Source: the API's documentation."""


async def create_task(core: ServerState, call: CloudTasksCall) -> Values:
    parent = parse_queue(call.fields.text("parent"), field="parent")
    new = _new_task(call.fields.fields("task"), parent)

    def operation(unit: UnitOfWork) -> StoredTask:
        call.authorize(unit, parent.queue, "insert")
        if new.eta is not None:
            limits.check_eta(new.eta, now=unit.now)
        added = unit.add(parent.queue, [new])[0]
        if added.status != "added":
            why = "exists" if added.status == "exists" else "existed too recently: its name is still kept"
            raise CloudTasksError(
                RpcStatus.ALREADY_EXISTS,
                f"the task cannot be created: {parent.task(added.name)} {why}; use another name",
            )
        eta = max(new.eta or unit.now, unit.now)
        return StoredTask(0, parent.queue, new.payload, eta, unit.now, added.name, new.tag)

    return task_values(await core.committer.run(operation), parent, view=view_of(call.fields))


def _new_task(task: MessageReader, parent: QueueName) -> NewTask:
    for kind in ("appEngineHttpRequest", "httpRequest"):
        if kind in task:
            raise refused(f"{task.named(kind)} needs a push queue, and {parent} is a pull queue: give a pullMessage")
    name = None
    if full := task.text("name"):
        named = parse_task(full, field=task.named("name"))
        if named.parent != parent:
            raise invalid(f"{task.named('name')} must be in the queue it is created in, {parent}: {full!r}")
        name = named.task
        limits.check_task_name(name)
    message = task.fields("pullMessage")
    eta = task.instant("scheduleTime") if "scheduleTime" in task else None
    payload, tag = message.data("payload"), message.text("tag") or None
    limits.check_payload(payload)  # whatever the queue's own max_payload: this API has no more
    attempts = task.fields("retryConfig")
    return NewTask(
        payload,
        name,
        tag,
        None if eta is None or eta <= 0 else eta,
        max_leases=attempts.number("maxAttempts") if "maxAttempts" in attempts else None,
    )


async def get_task(core: ServerState, call: CloudTasksCall) -> Values:
    name = parse_task(call.fields.text("name"), field="name")
    view = view_of(call.fields)

    def operation(unit: UnitOfWork) -> StoredTask:
        call.authorize(unit, name.parent.queue, "get")
        return find_task(unit, name, payload_bytes=payload_bytes_of(view))

    return task_values(await core.read(operation), name.parent, view=view)


async def list_tasks(core: ServerState, call: CloudTasksCall) -> Values:
    parent = parse_queue(call.fields.text("parent"), field="parent")
    view = view_of(call.fields)
    size = page_size(call.fields, most=MAX_PAGE_TASKS)
    token = parse_page_token(call.fields)
    if token and not (token.isascii() and token.isdigit() and len(token) < 19):
        raise invalid("page_token is not one of this method's")
    after = int(token or 0)

    def operation(unit: UnitOfWork) -> tuple[list[StoredTask], int | None]:
        call.authorize(unit, parent.queue, "list")
        return _page(unit, parent.queue, after=after, size=size, payload_bytes=payload_bytes_of(view))

    tasks, next_after = await core.read(operation)
    answer = tasks_values([task_values(task, parent, view=view) for task in tasks])
    if next_after is not None:
        answer["nextPageToken"] = page_token(str(next_after))
    return answer


def _page(
    unit: UnitOfWork, queue: str, *, after: int, size: int, payload_bytes: int
) -> tuple[list[StoredTask], int | None]:
    """Return tasks up to `size` and the bytes of a response, and the id after which the next page begins."""
    tasks: list[StoredTask] = []
    room = MAX_RESPONSE_BYTES
    usual = min(payload_bytes, limits.MAX_PAYLOAD_BYTES) + TASK_OVERHEAD_BYTES
    next_after: int | None = after
    while next_after is not None and (limit := min(size - len(tasks), room // usual)) >= 1:
        page = unit.peek(
            queue, tags=ANY, states=SHOWN, names=None, after=next_after, limit=limit, payload_bytes=payload_bytes
        )
        tasks += page.tasks
        room -= sum(len(task.payload) + TASK_OVERHEAD_BYTES for task in page.tasks)
        next_after = page.next_after
    return tasks, next_after


async def delete_task(core: ServerState, call: CloudTasksCall) -> Values:
    name = parse_task(call.fields.text("name"), field="name")
    removal = TaskRemoval(f"deleted by {described(call.caller)}")

    def operation(unit: UnitOfWork) -> None:
        call.authorize(unit, name.parent.queue, "delete")
        if unit.delete_by_name(name.parent.queue, [name.task], removal=removal)[0] != "deleted":
            raise not_found(name)

    await core.committer.run(operation)
    return {}
