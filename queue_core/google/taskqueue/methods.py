"""The methods of the Task Queue REST API: each takes an authenticated call and returns the response's JSON."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from queue_core import limits
from queue_core.clock import Instant, after
from queue_core.google.taskqueue.call import ResourceKind, TaskqueueCall
from queue_core.google.taskqueue.responses import TaskqueueError, invalid, not_found
from queue_core.google.taskqueue.selection import Shape
from queue_core.google.taskqueue.task_json import (
    QUEUE_SHAPE,
    TASK_SHAPE,
    TASKS_SHAPE,
    TaskBody,
    is_task_name,
    lease_json,
    listed_json,
    new_task,
    queue_json,
    read_task,
    stats_json,
    task_json,
)
from queue_core.server.callers.access import check_access, check_scope
from queue_core.server.callers.auth import described
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.state import ServerState
from queue_core.stats import TaskRemoval
from queue_core.task import ALL_STATES, ANY, Lease, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import PayloadAllowance, Renewal
from queue_core.verbs.roles import Access
from queue_core.verbs.wire import Json

MAX_RESPONSE_BYTES = 1 << 20
"""Bytes of a lease's tasks as JSON. The first task is returned whatever its size."""
TASK_OVERHEAD_BYTES = 300
"""Bytes of a task's JSON besides its payload, tag, name, project and queue."""
_CALLER = "taskqueue-v1beta2"


async def lease_tasks_json(
    core: ServerState, queue: str, *, count: int, seconds: int, tags: TagFilter, worker: str, project: str
) -> list[Json]:
    """Lease up to `count` tasks that fit into one response.

    The store is called once: tasks leased for 0 seconds are ready at once, and a second call would lease them again.
    """
    leases = await _lease(
        core, queue, count=count, seconds=seconds, tags=tags, worker=worker, room=_room(queue, project)
    )
    return [lease_json(lease, project=project) for lease in leases]


def _room(queue: str, project: str) -> PayloadAllowance:
    """Return the payload bytes of one response: three quarters of it, because base64 makes four bytes of three."""
    frame = TASK_OVERHEAD_BYTES + len(project.encode()) + len(queue)
    return PayloadAllowance(MAX_RESPONSE_BYTES * 3 // 4, each_bytes=frame * 3 // 4)


async def _lease(
    core: ServerState, queue: str, *, count: int, seconds: int, tags: TagFilter, worker: str, room: PayloadAllowance
) -> Sequence[Lease]:
    answered: asyncio.Future[LeaseAnswer | Exception] = asyncio.get_running_loop().create_future()

    def answer(outcome: LeaseAnswer | Exception) -> None:
        if not answered.done():
            answered.set_result(outcome)

    call = LeaseCall(queue, count, seconds, tags, worker, 0.0, worker or _CALLER, (), answer, lambda: False, room=room)
    call.start(core.waiting.context)
    try:
        outcome = await answered
    except asyncio.CancelledError:
        call.cancel()
        raise
    if not isinstance(outcome, LeaseAnswer):
        raise outcome
    return outcome.granted.leases


MAX_LISTED = 100
"""Tasks of one list. Source: the API's reference."""
_EXPIRED = "The task lease has expired"


@dataclass(frozen=True, slots=True)
class TaskqueueMethod:
    """A method: the access it needs, the fields of its response, and its function (None: an empty response)."""

    access: Access
    shape: Shape
    run: Callable[[ServerState, TaskqueueCall], Awaitable[Json | None]]


async def get_queue(core: ServerState, call: TaskqueueCall) -> Json:
    """Return the queue's settings, and its counts with `getStats`."""
    with_stats = call.parameters.flag("getStats")

    def operation(unit: UnitOfWork) -> Json:
        shown = queue_json(_authorized_queue(unit, call, "look"))
        if with_stats:
            shown["stats"] = _stats(core, unit, call.queue)
        return shown

    return await core.read(operation)


async def list_tasks(core: ServerState, call: TaskqueueCall) -> Json:
    """Return the first 100 tasks, leased ones included, without payloads."""

    def operation(unit: UnitOfWork) -> Json:
        _authorized_queue(unit, call, "list")
        page = unit.peek(
            call.queue, tags=ANY, states=ALL_STATES, names=None, after=0, limit=MAX_LISTED, payload_bytes=0
        )
        return _tasks("taskqueues#tasks", [listed_json(task, now=unit.now) for task in page.tasks])

    return await core.read(operation)


async def get_task(core: ServerState, call: TaskqueueCall) -> Json:
    """Return one task with its payload, without leasing it."""

    def operation(unit: UnitOfWork) -> Json:
        _authorized_queue(unit, call, "get")
        return task_json(_find_task(unit, call.queue, call.resource.task), now=unit.now)

    return await core.read(operation)


async def insert(core: ServerState, call: TaskqueueCall) -> Json:
    """Add a task. Raises `TaskqueueError` for a name that is taken or still kept after its task was deleted."""
    body = await read_task(call.body)
    new = new_task(body)
    _check_same_queue(body, call.queue)

    def operation(unit: UnitOfWork) -> Json:
        _authorized_queue(unit, call, "insert")
        limits.check_payload(new.payload)  # whatever the queue's own limits: this API has no more
        if new.eta is not None:
            limits.check_eta(new.eta, now=unit.now)
        (added,) = unit.add(call.queue, [new])
        if added.status == "exists":
            raise TaskqueueError(400, "duplicate", f"Task name already taken: {added.name}")
        if added.status == "tombstoned":
            raise TaskqueueError(400, "duplicate", f"Task name was taken by a task that is deleted: {added.name}")
        eta = Instant(max(new.eta or unit.now, unit.now))
        return task_json(
            StoredTask(0, call.queue, new.payload, eta, added_at=unit.now, name=added.name, tag=new.tag), now=unit.now
        )

    return await core.committer.run(operation)


async def lease(core: ServerState, call: TaskqueueCall) -> Json:
    """Lease ready tasks, oldest first, as many as fit into a response."""
    seconds = call.parameters.integer("leaseSecs", least=0, most=int(limits.MAX_LEASE_SECONDS))
    count = call.parameters.integer("numTasks", least=1, most=limits.MAX_TASKS_PER_LEASE)
    tags = _tags(call)
    check_scope(call.caller, call.queue)
    if not call.caller.is_admin:
        await core.read(lambda unit: _authorized_queue(unit, call, "lease"))
    items = await lease_tasks_json(
        core,
        call.queue,
        count=count,
        seconds=seconds,
        tags=tags,
        worker=_worker(call),
        project=call.resource.project,
    )
    return _tasks("taskqueue#tasks", items)


async def update(core: ServerState, call: TaskqueueCall) -> Json:
    """Move the end of a lease; the body names the task, the name in the URL is ignored."""
    body = await read_task(call.body)
    if body.leased_until is None:
        raise TaskqueueError(400, "required", "leaseTimestamp is required.", "leaseTimestamp")
    if body.name is None:
        raise TaskqueueError(400, "required", "id is required.", "id")
    _check_same_queue(body, call.queue)
    return await _move_end(core, call, body.name, expected=body.leased_until)


async def patch(core: ServerState, call: TaskqueueCall) -> Json:
    """Move the end of a lease; the URL names the task. Without `leaseTimestamp` it may be another worker's lease."""
    body = await read_task(call.body)
    if body.queue is None:
        raise TaskqueueError(400, "required", "queueName is required.", "queueName")
    _check_same_queue(body, call.queue)
    if body.name not in (None, call.resource.task):
        raise invalid("Task ID cannot be updated.")
    return await _move_end(core, call, call.resource.task, expected=body.leased_until)


async def delete(core: ServerState, call: TaskqueueCall) -> None:
    """Delete a task by its name, even when another worker leases it. A task that does not exist is no error."""
    removal = TaskRemoval(f"deleted by {described(call.caller)}", holder=_worker(call))

    def operation(unit: UnitOfWork) -> None:
        _authorized_queue(unit, call, "delete")
        if is_task_name(call.resource.task):
            unit.delete_by_name(call.queue, [call.resource.task], removal=removal)

    await core.committer.run(operation)


def _worker(call: TaskqueueCall) -> str:
    """Return by what name a caller leases tasks: these clients have no other."""
    return (call.caller.email or "")[: limits.MAX_WORKER_CHARACTERS]


METHODS: Mapping[tuple[str, ResourceKind], TaskqueueMethod] = MappingProxyType(
    {
        ("GET", "queue"): TaskqueueMethod("look", QUEUE_SHAPE, get_queue),
        ("GET", "tasks"): TaskqueueMethod("list", TASKS_SHAPE, list_tasks),
        ("POST", "tasks"): TaskqueueMethod("insert", TASK_SHAPE, insert),
        ("POST", "lease"): TaskqueueMethod("lease", TASKS_SHAPE, lease),
        ("GET", "task"): TaskqueueMethod("get", TASK_SHAPE, get_task),
        ("POST", "task"): TaskqueueMethod("update", TASK_SHAPE, update),
        ("PATCH", "task"): TaskqueueMethod("update", TASK_SHAPE, patch),
        ("DELETE", "task"): TaskqueueMethod("delete", TASK_SHAPE, delete),
    }
)


async def _move_end(core: ServerState, call: TaskqueueCall, name: str, *, expected: Instant | None) -> Json:
    seconds = call.parameters.integer("newLeaseSeconds", least=0, most=int(limits.MAX_LEASE_SECONDS))

    def operation(unit: UnitOfWork) -> Json:
        spec = _authorized_queue(unit, call, "update")
        if spec.paused:
            raise invalid(f"queue {spec.name} is paused: its leases can't be changed")
        task = _find_task(unit, call.queue, name)
        if expected is not None and task.eta != expected:
            raise invalid(_EXPIRED)
        end = _renew_or_postpone(unit, task, seconds=seconds, is_fenced=expected is not None)
        return task_json(replace(task, eta=end), now=unit.now)

    return await core.committer.run(operation)


def _renew_or_postpone(unit: UnitOfWork, task: StoredTask, *, seconds: int, is_fenced: bool) -> Instant:
    """Renew a lease, or move the eta of a delayed task if the client sent its current eta."""
    if task.state is TaskState.LEASED:
        (renewed,) = unit.renew(task.queue, [Renewal(task.token, float(seconds))])
        if renewed is not None:
            return renewed.expires_at
    elif task.state is TaskState.DELAYED and is_fenced:
        eta = after(unit.now, seconds)
        if unit.postpone(task.queue, task.shown_name, expected=task.eta, eta=eta):
            return eta
    raise invalid(_EXPIRED)


def _authorized_queue(unit: UnitOfWork, call: TaskqueueCall, access: Access) -> QueueSpec:
    """Return the queue's settings if it exists and its acl permits the access."""
    check_scope(call.caller, call.queue)
    spec = unit.transaction.queue(call.queue)
    check_access(call.caller, spec, access)
    return spec


def _find_task(unit: UnitOfWork, queue: str, name: str) -> StoredTask:
    if is_task_name(name):
        page = unit.peek(
            queue,
            tags=ANY,
            states=ALL_STATES,
            names=[name],
            after=0,
            limit=1,
            payload_bytes=limits.LARGEST_PAYLOAD_BYTES,
        )
        if page.tasks:
            return page.tasks[0]
    raise not_found(f"Task not found: {name[:100]} in queue {queue}")


def _stats(core: ServerState, unit: UnitOfWork, queue: str) -> Json:
    stats = unit.stats(queue, ANY)
    etas = (stats.oldest_ready_at, unit.transaction.next_eta(queue, now=unit.now))
    granted = core.lease_counts.counts(stats, now=unit.now)
    return stats_json(
        stats,
        oldest=min((eta for eta in etas if eta is not None), default=None),
        last_minute=granted.last_minute,
        last_hour=granted.last_hour,
    )


def _tags(call: TaskqueueCall) -> TagFilter:
    tag = call.parameters.text("tag")
    if not call.parameters.flag("groupByTag"):
        if tag is not None:
            raise invalid("tag must only be specified if groupByTag is true", location="tag")
        return ANY
    if not tag:
        return TagFilter.oldest()
    limits.check_tag(tag)
    return TagFilter.of(tag)


def _check_same_queue(body: TaskBody, queue: str) -> None:
    if body.queue is not None and body.queue != queue:
        raise invalid(f"queueName cannot be updated: {body.queue[:100]!r} in a call for queue {queue[:100]!r}")


def _tasks(kind: str, items: list[Json]) -> Json:
    return {"kind": kind, "items": items} if items else {"kind": kind}
