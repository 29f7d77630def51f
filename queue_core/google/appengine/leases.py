"""QueryAndOwnTasks, ModifyTaskLease and Delete: the calls of workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from queue_core.clock import Instant, after
from queue_core.errors import UnknownQueueError
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import decode, encode
from queue_core.google.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.google.appengine.fields import (
    check_lease_seconds,
    is_chosen,
    possible_name,
    queue_of,
    queue_or_none,
    tag_of,
)
from queue_core.google.appengine.queues import no_task, pull_queue
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.limits import MAX_TASKS_PER_LEASE, MAX_TOKENS_PER_CALL
from queue_core.stats import TaskRemoval
from queue_core.task import ALL_STATES, ANY, Lease, TagFilter, TaskState
from queue_core.unit.service import Operation
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Granted, PayloadAllowance, Renewal

ROOM = PayloadAllowance(32 << 20, each_bytes=64)
"""Bytes of the tasks in one response. Source: App Engine's documentation: fewer tasks are returned where they would
exceed 32 MB. Besides its payload, tag and name, a task takes less than 64 bytes."""


# -- QueryAndOwnTasks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseParams:
    """The parameters of `QueryAndOwnTasks`."""

    queue: str
    count: int
    seconds: float
    tags: TagFilter


def lease_params(payload: bytes) -> LeaseParams | Operation[None]:
    """Decode the parameters. For invalid ones return an operation that raises the error after a check of the queue.

    Raises `CodecError`, `ApplicationError`.
    """
    record = decode(messages.LEASE_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    try:
        return _lease_params(queue, record)
    except ApplicationError as error:
        refusal = error

    def refuse(unit: UnitOfWork) -> None:
        pull_queue(unit, queue)
        raise refusal

    return refuse


def _lease_params(queue: str, record: ProtoRecord) -> LeaseParams:
    seconds, count = record.real("lease_seconds"), record.integer("max_tasks")
    check_lease_seconds(seconds)
    if not 1 <= count <= MAX_TASKS_PER_LEASE:
        raise ApplicationError(
            TaskQueueErrorCode.INVALID_REQUEST, f"max_tasks must be in [1, {MAX_TASKS_PER_LEASE}]: {count}"
        )
    if not record.integer("group_by_tag"):
        if "tag" in record:
            raise ApplicationError(
                TaskQueueErrorCode.INVALID_REQUEST, "a tag needs group_by_tag: lease by tag, or leave it out"
            )
        return LeaseParams(queue, count, seconds, ANY)
    tag = tag_of(record.octets("tag"))
    return LeaseParams(queue, count, seconds, TagFilter.oldest() if tag is None else TagFilter.of(tag))


def grant(unit: UnitOfWork, params: LeaseParams, *, worker: str) -> Granted:
    """Lease the requested tasks, as many as fit into a response.

    The store is called once: tasks leased for 0 seconds are ready at once, and a second call would lease them again.
    """
    return unit.lease(
        params.queue, count=params.count, seconds=params.seconds, tags=params.tags, worker=worker, allowance=ROOM
    )


def lease_response(leases: Sequence[Lease]) -> bytes:
    """Encode the response with the leased tasks."""
    return encode(messages.LEASE_RESPONSE, {"task": [_leased(lease) for lease in leases]})


def _leased(lease: Lease) -> ProtoRecord:
    """Return a leased task as a record. `retry_count` is always set, because Go's client reads it unchecked; the tag
    only if there is one, because Python's client checks it."""
    record = ProtoRecord(
        task_name=lease.name.encode(),
        eta_usec=int(lease.expires_at),
        retry_count=lease.lease_number,
        body=lease.payload,
    )
    if lease.tag is not None:
        record["tag"] = lease.tag.encode()
    return record


# -- ModifyTaskLease --------------------------------------------------------------------------------------------------


def modify(payload: bytes) -> Operation[bytes]:
    """Handle `TaskQueueService.ModifyTaskLease`: the end of the lease, to the microsecond, proves who holds it."""
    record = decode(messages.MODIFY_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    name, eta = record.octets("task_name"), Instant(record.integer("eta_usec"))
    seconds = record.real("lease_seconds")

    def operation(unit: UnitOfWork) -> bytes:
        spec = pull_queue(unit, queue)
        if spec.paused:
            raise ApplicationError(TaskQueueErrorCode.QUEUE_PAUSED, f"queue {queue} is paused")
        check_lease_seconds(seconds)
        return encode(
            messages.MODIFY_RESPONSE, {"updated_eta_usec": int(_renew_or_postpone(unit, queue, name, eta, seconds))}
        )

    return operation


def _renew_or_postpone(unit: UnitOfWork, queue: str, raw_name: bytes, eta: Instant, seconds: float) -> Instant:
    """Move the end of a lease, or the eta of a task that was never leased: to clients they look the same."""
    name = possible_name(raw_name)
    if name is None:
        raise ApplicationError(TaskQueueErrorCode.UNKNOWN_TASK, f"no task {raw_name[:60]!r} in queue {queue}")
    page = unit.peek(queue, tags=ANY, states=ALL_STATES, names=[name], after=0, limit=1, payload_bytes=0)
    if not page.tasks:
        raise no_task(unit, queue, name, may_expire=True)
    (task,) = page.tasks
    expired = ApplicationError(
        TaskQueueErrorCode.TASK_LEASE_EXPIRED, f"the lease of task {name} until {eta} us is not current"
    )
    if task.eta != eta:
        raise expired
    if task.state is TaskState.LEASED:
        (renewed,) = unit.renew(queue, [Renewal(task.token, seconds)])
        if renewed is None:
            raise expired
        return renewed.expires_at
    moved_to = after(unit.now, seconds)
    if task.state is not TaskState.DELAYED or not unit.postpone(queue, name, expected=eta, eta=moved_to):
        raise expired
    return moved_to


# -- Delete -----------------------------------------------------------------------------------------------------------

_OUTCOMES = {
    "deleted": TaskQueueErrorCode.OK,
    "unknown": TaskQueueErrorCode.UNKNOWN_TASK,
    "tombstoned": TaskQueueErrorCode.TOMBSTONED_TASK,
}


def deletions(payload: bytes, removal: TaskRemoval) -> list[Operation[bytes]]:
    """Handle `TaskQueueService.Delete`, which deletes leased tasks, too: by it a worker says that its task is done.

    Returns an operation per 1000 tasks; their responses, joined, are one response.
    """
    record = decode(messages.DELETE_REQUEST, payload)
    queue, names = queue_or_none(record.octets("queue_name")), record.all_octets("task_name")
    if queue is None:
        return [lambda _unit: _results([TaskQueueErrorCode.UNKNOWN_QUEUE] * len(names))]
    return [
        _deletion(queue, names[begin : begin + MAX_TOKENS_PER_CALL], removal)
        for begin in range(0, max(1, len(names)), MAX_TOKENS_PER_CALL)
    ]


def _deletion(queue: str, raw_names: Sequence[bytes], removal: TaskRemoval) -> Operation[bytes]:
    names = [possible_name(name) for name in raw_names]
    possible = [name for name in names if name is not None]

    def operation(unit: UnitOfWork) -> bytes:
        try:
            outcomes = iter(unit.delete_by_name(queue, possible, removal=removal))
        except UnknownQueueError:
            return _results([TaskQueueErrorCode.UNKNOWN_QUEUE] * len(names))
        return _results(
            [TaskQueueErrorCode.UNKNOWN_TASK if name is None else _deleted(name, next(outcomes)) for name in names]
        )

    return operation


def _deleted(name: str, outcome: str) -> TaskQueueErrorCode:
    return TaskQueueErrorCode.TOMBSTONED_TASK if outcome == "unknown" and is_chosen(name) else _OUTCOMES[outcome]


def _results(codes: Sequence[TaskQueueErrorCode]) -> bytes:
    return encode(messages.DELETE_RESPONSE, {"result": [int(code) for code in codes]})
