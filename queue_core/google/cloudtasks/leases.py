"""LeaseTasks, and AcknowledgeTask, RenewLease and CancelLease, which name a lease by the instant at which it ends."""

from dataclasses import dataclass, replace

from queue_core import limits
from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError
from queue_core.google.cloudtasks.call import CloudTasksCall, MessageReader, Values
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, invalid, refused
from queue_core.google.cloudtasks.filters import lease_filter
from queue_core.google.cloudtasks.names import QueueName, TaskName, parse_queue, parse_task
from queue_core.google.cloudtasks.tasks import (
    MAX_RESPONSE_BYTES,
    TASK_OVERHEAD_BYTES,
    find_task,
    payload_bytes_of,
    task_values,
    tasks_values,
    view_of,
)
from queue_core.process.wording import counted
from queue_core.server.state import ServerState
from queue_core.task import Lease, StoredTask, TaskState
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Deletion, PayloadAllowance, Release, Renewal
from queue_core.verbs.roles import Access

MAX_EXPIRY_ROUNDS = 10_000
"""Tries of one LeaseTasks call while tasks are due to expire; each expires hundreds of them."""
MAX_LATE_LEASES = 3
"""Leases that the store may grant too late before the call gets UNAVAILABLE."""
ROOM = PayloadAllowance(MAX_RESPONSE_BYTES, TASK_OVERHEAD_BYTES)
"""Bytes of payloads that fit into one response."""


@dataclass(frozen=True, slots=True)
class _Leased:
    """The leases of one transaction; `more_due`: none, because other tasks had to expire first (ADR 2)."""

    leases: tuple[Lease, ...]
    more_due: bool


class _LeaseOperation:
    """An operation that leases up to a number of tasks and of bytes. Run again, it counts once for the rate limit."""

    def __init__(self, call: CloudTasksCall, parent: QueueName) -> None:
        fields = call.fields
        self._call = call
        self._queue = parent.queue
        self._count = fields.number("maxTasks")
        if not 1 <= self._count <= limits.MAX_TASKS_PER_LEASE:
            raise invalid(f"max_tasks must be in [1, {limits.MAX_TASKS_PER_LEASE}]: {self._count}")
        self._seconds = _lease_seconds(fields)
        self._tags = lease_filter(fields.text("filter"))
        self._is_charged = False

    def __call__(self, unit: UnitOfWork) -> _Leased:
        spec = self._call.authorize(unit, self._queue, "lease")
        if spec.mode == "push":
            raise refused(f"queue {self._queue} is a push queue: nothing is leased from it")
        if spec.paused:
            raise refused(f"queue {self._queue} is paused: resume it to lease its tasks")
        per_second = spec.lease_calls_per_second
        if not self._is_charged and not self._call.rate.allows(self._queue, per_second, unit.now):
            raise CloudTasksError(
                RpcStatus.RESOURCE_EXHAUSTED,
                f"queue {self._queue} grants {counted(per_second or 0, 'lease call')} a second "
                "(lease_calls_per_second): lease more tasks at a time, or wait longer between calls",
            )
        self._is_charged = True
        granted = unit.lease(self._queue, count=self._count, seconds=self._seconds, tags=self._tags, allowance=ROOM)
        return _Leased(tuple(granted.leases), more_due=granted.more_due and not granted.leases)


async def lease_tasks(core: ServerState, call: CloudTasksCall) -> Values:
    parent = parse_queue(call.fields.text("parent"), field="parent")
    view = view_of(call.fields)
    operation = _LeaseOperation(call, parent)
    late = 0
    for _ in range(MAX_EXPIRY_ROUNDS):
        leased = await core.committer.run(operation)
        if leased.leases and await call.is_gone():
            core.waiting.give_back(parent.queue, leased.leases)
            return {}
        if core.service.is_late(leased.leases):
            core.waiting.give_back(parent.queue, leased.leases)
            late += 1
            if late == MAX_LATE_LEASES:
                raise StoreUnavailableError("the store replies too late for a lease to be useful; try again")
        elif leased.leases or not leased.more_due:
            return tasks_values([task_values(_leased_task(lease), parent, view=view) for lease in leased.leases])
    raise StoreUnavailableError("too many tasks expire at once; try again")


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

    def operation(unit: UnitOfWork) -> None:
        task = _task_under_lease(unit, call, "delete", payload_bytes=0)
        unit.delete(name.parent.queue, [Deletion(task.token)])

    await core.committer.run(operation)
    return {}


async def renew_lease(core: ServerState, call: CloudTasksCall) -> Values:
    name, _ = _lease_named(call)
    seconds, view = _lease_seconds(call.fields), view_of(call.fields)

    def operation(unit: UnitOfWork) -> StoredTask:
        task = _task_under_lease(unit, call, "update", payload_bytes=payload_bytes_of(view))
        renewed = unit.renew(name.parent.queue, [Renewal(task.token, seconds)])[0]
        if renewed is None:
            raise _lease_lost(name)
        return replace(task, eta=renewed.expires_at)

    return task_values(await core.committer.run(operation), name.parent, view=view)


async def cancel_lease(core: ServerState, call: CloudTasksCall) -> Values:
    name, _ = _lease_named(call)
    view = view_of(call.fields)

    def operation(unit: UnitOfWork) -> StoredTask:
        task = _task_under_lease(unit, call, "update", payload_bytes=payload_bytes_of(view))
        unit.release(name.parent.queue, [Release(task.token, delay_seconds=0.0)])
        return replace(task, eta=unit.now)

    return task_values(await core.committer.run(operation), name.parent, view=view)


def _lease_named(call: CloudTasksCall) -> tuple[TaskName, Instant]:
    return parse_task(call.fields.text("name"), field="name"), call.fields.instant("scheduleTime")


def _task_under_lease(unit: UnitOfWork, call: CloudTasksCall, access: Access, *, payload_bytes: int) -> StoredTask:
    """Return the task if the lease named by the call is still current. Raises `CloudTasksError`."""
    name, leased_until = _lease_named(call)
    call.authorize(unit, name.parent.queue, access)
    task = find_task(unit, name, payload_bytes=payload_bytes)
    if task.state is not TaskState.LEASED or task.eta != leased_until:
        raise _lease_lost(name)
    return task


def _lease_lost(name: TaskName) -> CloudTasksError:
    return refused(
        f"the lease of {name} is no longer held: it expired, was renewed or cancelled, or scheduleTime is not the one "
        "that the last LeaseTasks or RenewLease returned"
    )


def _lease_seconds(fields: MessageReader) -> float:
    seconds = fields.duration_seconds("leaseDuration")
    if not 0 <= seconds <= limits.MAX_LEASE_SECONDS:
        raise invalid(f"lease_duration must be in [0, {limits.MAX_LEASE_SECONDS:.0f}] s (1 week): {seconds}")
    return float(seconds)
