"""The methods of leases: LeaseTasks, and what whoever holds a lease may do with it, which its end proves."""

from dataclasses import dataclass, replace

from queue_core import limits
from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError
from queue_core.server.auth import Access
from queue_core.server.cloudtasks.call import CloudTasksCall, MessageReader, Values
from queue_core.server.cloudtasks.failures import CloudTasksError, RpcStatus, invalid, refused
from queue_core.server.cloudtasks.filters import lease_filter
from queue_core.server.cloudtasks.names import QueueName, TaskName, parse_queue, parse_task
from queue_core.server.cloudtasks.tasks import (
    MAX_RESPONSE_BYTES,
    TASK_OVERHEAD_BYTES,
    find_task,
    payload_bytes_of,
    task_values,
    tasks_values,
    view_of,
)
from queue_core.server.state import ServerState
from queue_core.store import Deletion, PayloadAllowance, Release
from queue_core.task import Lease, StoredTask, TaskState
from queue_core.unit_of_work import UnitOfWork

MAX_SETTLING_TURNS = 10_000
"""Each settles hundreds of tasks; no queue has more that are due at once."""
MAX_LATE_LEASES = 3
ROOM = PayloadAllowance(MAX_RESPONSE_BYTES, TASK_OVERHEAD_BYTES)


@dataclass(frozen=True, slots=True)
class _Leased:
    """What one turn leased; `unsettled`: nothing, as other tasks were due first."""

    leases: tuple[Lease, ...]
    unsettled: bool


class _LeaseStep:
    """Leases up to a number of tasks and of bytes. Bears to be run again: the call counts once against the rate."""

    def __init__(self, call: CloudTasksCall, parent: QueueName) -> None:
        fields = call.fields
        self._call = call
        self._queue = parent.queue
        self._count = fields.number("maxTasks")
        if not 1 <= self._count <= limits.MAX_TASKS_PER_LEASE:
            raise invalid(f"max_tasks must be in [1, {limits.MAX_TASKS_PER_LEASE}]: {self._count}")
        self._seconds = _lease_seconds(fields)
        self._tags = lease_filter(fields.text("filter"))
        self._may = False

    def __call__(self, turn: UnitOfWork) -> _Leased:
        spec = self._call.enter(turn, self._queue, "lease")
        if spec.mode == "push":
            raise refused(f"queue {self._queue} is a push queue: nothing is leased from it")
        if spec.paused:
            raise refused(f"queue {self._queue} is paused: resume it to lease its tasks")
        per_second = spec.lease_calls_per_second
        if not self._may and not self._call.rate.allows(self._queue, per_second, turn.now):
            raise CloudTasksError(
                RpcStatus.RESOURCE_EXHAUSTED,
                f"queue {self._queue} grants {per_second} lease calls a second (lease_calls_per_second): "
                "lease more tasks at a time, or wait longer between calls",
            )
        self._may = True
        granted = turn.lease(self._queue, count=self._count, seconds=self._seconds, tags=self._tags, room=ROOM)
        return _Leased(tuple(granted.leases), unsettled=granted.unsettled and not granted.leases)


async def lease_tasks(core: ServerState, call: CloudTasksCall) -> Values:
    parent = parse_queue(call.fields.text("parent"), field="parent")
    view = view_of(call.fields)
    step = _LeaseStep(call, parent)
    late = 0
    for _ in range(MAX_SETTLING_TURNS):
        leased = await core.turns.run(step)
        if leased.leases and await call.is_gone():
            core.waiting.give_back(parent.queue, leased.leases)
            return {}
        if core.service.is_late(leased.leases):
            core.waiting.give_back(parent.queue, leased.leases)
            late += 1
            if late == MAX_LATE_LEASES:
                raise StoreUnavailableError("the store answers too late for a lease to be of use; try again")
        elif leased.leases or not leased.unsettled:
            return tasks_values([task_values(_leased_task(lease), parent, view=view) for lease in leased.leases])
    raise StoreUnavailableError("too many tasks are due at once; try again")


def _leased_task(lease: Lease) -> StoredTask:
    return StoredTask(
        0,
        lease.queue,
        lease.payload,
        lease.expires_at,
        lease.added_at,
        lease.name,
        lease.tag,
        leases=lease.lease_number,
    )


async def acknowledge_task(core: ServerState, call: CloudTasksCall) -> Values:
    name, _ = _lease_named(call)

    def step(turn: UnitOfWork) -> None:
        task = _held(turn, call, "delete", payload_bytes=0)
        turn.delete(name.parent.queue, [Deletion(task.token)])

    await core.turns.run(step)
    return {}


async def renew_lease(core: ServerState, call: CloudTasksCall) -> Values:
    name, _ = _lease_named(call)
    seconds, view = _lease_seconds(call.fields), view_of(call.fields)

    def step(turn: UnitOfWork) -> StoredTask:
        task = _held(turn, call, "update", payload_bytes=payload_bytes_of(view))
        renewed = turn.renew(name.parent.queue, [task.token], seconds=seconds)[0]
        if renewed is None:
            raise _not_held(name)
        return replace(task, eta=renewed.expires_at)

    return task_values(await core.turns.run(step), name.parent, view=view)


async def cancel_lease(core: ServerState, call: CloudTasksCall) -> Values:
    name, _ = _lease_named(call)
    view = view_of(call.fields)

    def step(turn: UnitOfWork) -> StoredTask:
        task = _held(turn, call, "update", payload_bytes=payload_bytes_of(view))
        turn.release(name.parent.queue, [Release(task.token, delay_seconds=0.0)])
        return replace(task, eta=turn.now)

    return task_values(await core.turns.run(step), name.parent, view=view)


def _lease_named(call: CloudTasksCall) -> tuple[TaskName, Instant]:
    return parse_task(call.fields.text("name"), field="name"), call.fields.instant("scheduleTime")


def _held(turn: UnitOfWork, call: CloudTasksCall, access: Access, *, payload_bytes: int) -> StoredTask:
    """The task, when the lease that the call names is the one it is under. Raises `CloudTasksError`."""
    name, held_until = _lease_named(call)
    call.enter(turn, name.parent.queue, access)
    task = find_task(turn, name, payload_bytes=payload_bytes)
    if task.state is not TaskState.LEASED or task.eta != held_until:
        raise _not_held(name)
    return task


def _not_held(name: TaskName) -> CloudTasksError:
    return refused(
        f"the lease of {name} is no longer held: it expired, was renewed or cancelled, or scheduleTime is not the one "
        "that the last LeaseTasks or RenewLease returned"
    )


def _lease_seconds(fields: MessageReader) -> float:
    seconds = fields.duration_seconds("leaseDuration")
    if not 0 <= seconds <= limits.MAX_LEASE_SECONDS:
        raise invalid(f"lease_duration must be in [0, {limits.MAX_LEASE_SECONDS:.0f}] s (1 week): {seconds}")
    return float(seconds)
