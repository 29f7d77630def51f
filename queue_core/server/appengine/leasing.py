"""QueryAndOwnTasks, ModifyTaskLease and Delete: what a worker calls."""

from collections.abc import Sequence
from dataclasses import dataclass

from queue_core.api import ALL_STATES
from queue_core.clock import Instant, after
from queue_core.errors import UnknownQueueError
from queue_core.limits import MAX_TASKS_PER_LEASE, MAX_TOKENS_PER_CALL
from queue_core.server.appengine import messages
from queue_core.server.appengine.codec import decode, encode
from queue_core.server.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.server.appengine.fields import (
    check_lease_seconds,
    is_chosen,
    known_name,
    queue_of,
    queue_or_none,
    tag_of,
)
from queue_core.server.appengine.modes import pull_queue
from queue_core.server.appengine.schema import ProtoRecord
from queue_core.service import Operation
from queue_core.store import Granted, PayloadAllowance
from queue_core.task import ANY, Lease, TagFilter, TaskState
from queue_core.unit_of_work import UnitOfWork

ROOM = PayloadAllowance(32 << 20, each_bytes=64)
"""Room for the tasks of one answer. Source: App Engine's documentation, by which fewer tasks are returned where more
than 32 MB would come together. Besides its payload, its tag and its name, a task takes less than 64 bytes."""


# -- QueryAndOwnTasks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseParams:
    """What a call of `QueryAndOwnTasks` asks for."""

    queue: str
    count: int
    seconds: float
    tags: TagFilter


def lease_wish(payload: bytes) -> LeaseParams | Operation[None]:
    """What is asked for; or, for a call that can't be right, a step that says why once it is known that the queue
    exists. Raises `CodecError`, `ApplicationError`."""
    record = decode(messages.LEASE_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    try:
        return _wish(queue, record)
    except ApplicationError as error:
        refusal = error

    def refuse(turn: UnitOfWork) -> None:
        pull_queue(turn, queue)
        raise refusal

    return refuse


def _wish(queue: str, record: ProtoRecord) -> LeaseParams:
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


def grant(turn: UnitOfWork, wish: LeaseParams, *, worker: str) -> Granted:
    """Lease what was asked for, or as much of it as fits in an answer: by one call of the store, as the tasks of a
    lease of no time are ready again at once, and a second call would lease them a second time."""
    return turn.lease(wish.queue, count=wish.count, seconds=wish.seconds, tags=wish.tags, worker=worker, allowance=ROOM)


def lease_response(leases: Sequence[Lease]) -> bytes:
    """The answer that hands them over."""
    return encode(messages.LEASE_RESPONSE, {"task": [_leased(lease) for lease in leases]})


def _leased(lease: Lease) -> ProtoRecord:
    """`retry_count` always: Go's client reads it without asking. The tag only if there is one: Python's asks."""
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
    """`TaskQueueService.ModifyTaskLease`: the end of the lease, to the microsecond, is what shows who holds it."""
    record = decode(messages.MODIFY_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    name, eta = record.octets("task_name"), Instant(record.integer("eta_usec"))
    seconds = record.real("lease_seconds")

    def step(turn: UnitOfWork) -> bytes:
        spec = pull_queue(turn, queue)
        if spec.paused:
            raise ApplicationError(TaskQueueErrorCode.QUEUE_PAUSED, f"queue {queue} is paused")
        check_lease_seconds(seconds)
        return encode(messages.MODIFY_RESPONSE, {"updated_eta_usec": int(_moved(turn, queue, name, eta, seconds))})

    return step


def _moved(turn: UnitOfWork, queue: str, wanted: bytes, eta: Instant, seconds: float) -> Instant:
    """Move a lease's end, or the eta of a task that was never leased, which looks the same from outside."""
    name = known_name(wanted)
    if name is None:
        raise ApplicationError(TaskQueueErrorCode.UNKNOWN_TASK, f"no task {wanted[:60]!r} in queue {queue}")
    page = turn.peek(queue, tags=ANY, states=ALL_STATES, names=[name], after=0, limit=1, payload_bytes=0)
    if not page.tasks:
        raise no_task(turn, queue, name, settles=True)
    (task,) = page.tasks
    expired = ApplicationError(
        TaskQueueErrorCode.TASK_LEASE_EXPIRED, f"the lease of task {name} until {eta} us is not current"
    )
    if task.eta != eta:
        raise expired
    if task.state is TaskState.LEASED:
        (renewed,) = turn.renew(queue, [task.token], seconds=seconds)
        if renewed is None:
            raise expired
        return renewed.expires_at
    moved_to = after(turn.now, seconds)
    if task.state is not TaskState.DELAYED or not turn.postpone(queue, name, expected=eta, eta=moved_to):
        raise expired
    return moved_to


def no_task(turn: UnitOfWork, queue: str, name: str, *, settles: bool) -> ApplicationError:
    """What tells of a name that no task has: that its task was deleted, as far as that is known, or that it is unknown.

    `settles`: whether the turn may change anything; else a task that used up its leases, which nobody has looked at
    since, is unknown.
    """
    if is_chosen(name):
        return ApplicationError(TaskQueueErrorCode.TOMBSTONED_TASK, f"task {name} of queue {queue} was deleted")
    if settles:
        turn.expire(queue)
    if _is_tombstoned(turn, queue, name):
        return ApplicationError(TaskQueueErrorCode.TOMBSTONED_TASK, f"task {name} of queue {queue} was deleted")
    return ApplicationError(TaskQueueErrorCode.UNKNOWN_TASK, f"no task {name} in queue {queue}")


def _is_tombstoned(turn: UnitOfWork, queue: str, name: str) -> bool:
    """Whether the name is held: it would be the first after all that sort before it."""
    before = name[:-1] + chr(ord(name[-1]) - 1) + "~"
    held = turn.transaction.held_names(queue, after=before, limit=1, now=turn.now)
    return bool(held) and held[0].name == name


# -- Delete -----------------------------------------------------------------------------------------------------------

_OUTCOMES = {
    "deleted": TaskQueueErrorCode.OK,
    "unknown": TaskQueueErrorCode.UNKNOWN_TASK,
    "tombstoned": TaskQueueErrorCode.TOMBSTONED_TASK,
}


def deletions(payload: bytes) -> list[Operation[bytes]]:
    """`TaskQueueService.Delete`: whoever holds the tasks. A step per thousand; their answers make one, end to end."""
    record = decode(messages.DELETE_REQUEST, payload)
    queue, names = queue_or_none(record.octets("queue_name")), record.all_octets("task_name")
    if queue is None:
        return [lambda _turn: _results([TaskQueueErrorCode.UNKNOWN_QUEUE] * len(names))]
    return [
        _deletion(queue, names[begin : begin + MAX_TOKENS_PER_CALL])
        for begin in range(0, max(1, len(names)), MAX_TOKENS_PER_CALL)
    ]


def _deletion(queue: str, wanted: Sequence[bytes]) -> Operation[bytes]:
    names = [known_name(name) for name in wanted]
    possible = [name for name in names if name is not None]

    def step(turn: UnitOfWork) -> bytes:
        try:
            outcomes = iter(turn.delete_by_name(queue, possible))
        except UnknownQueueError:
            return _results([TaskQueueErrorCode.UNKNOWN_QUEUE] * len(names))
        return _results(
            [TaskQueueErrorCode.UNKNOWN_TASK if name is None else _deleted(name, next(outcomes)) for name in names]
        )

    return step


def _deleted(name: str, outcome: str) -> TaskQueueErrorCode:
    return TaskQueueErrorCode.TOMBSTONED_TASK if outcome == "unknown" and is_chosen(name) else _OUTCOMES[outcome]


def _results(codes: Sequence[TaskQueueErrorCode]) -> bytes:
    return encode(messages.DELETE_RESPONSE, {"result": [int(code) for code in codes]})
