"""Results of Django's tasks: what the store knows of a task, as a `TaskResult`. Return values are not kept."""

import builtins
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from queue_core.attempts.attempt import Attempt
from queue_core.clock import NEVER, Instant
from queue_core.django.payloads import DjangoTask, TaskCall
from queue_core.django.tasks_api import TaskError, TaskResult, TaskResultStatus
from queue_core.stats import FinishedLease
from queue_core.task import Lease, StoredTask, TaskState

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  Django 4.2 runs on Python 3.10's timezone too


def instant_of(when: datetime) -> Instant:
    """Return an aware time as an instant."""
    return Instant((when - EPOCH) // timedelta(microseconds=1))


def time_of(instant: Instant) -> datetime | None:
    """Return an instant as an aware time; None for `NEVER`."""
    return None if instant == NEVER else EPOCH + timedelta(microseconds=instant)


def new_result(task: DjangoTask, call: TaskCall, *, name: str, backend: str) -> TaskResult:
    """Return the result of a task that was just added, or that will be with its transaction (`enqueued_at` None)."""
    return _result(task, call, name, backend, TaskResultStatus.READY, enqueued_at=call.enqueued_at)


def running_result(task: DjangoTask, call: TaskCall, lease: Lease, *, backend: str) -> TaskResult:
    """Return the result of a task whose handler is about to run; earlier leases count as workers without a name."""
    return _result(
        task,
        call,
        lease.name,
        backend,
        TaskResultStatus.RUNNING,
        enqueued_at=call.enqueued_at or time_of(lease.added_at),
        started_at=time_of(lease.leased_at),
        last_attempted_at=time_of(lease.leased_at),
        worker_ids=[""] * (lease.lease_number - 1) + [lease.worker],
        queue=lease.queue,
    )


def stored_result(task: DjangoTask, call: TaskCall, stored: StoredTask, *, backend: str) -> TaskResult:
    """Return the result of a task that is in its queue."""
    status = {TaskState.LEASED: TaskResultStatus.RUNNING, TaskState.DEAD: TaskResultStatus.FAILED}.get(
        stored.state, TaskResultStatus.READY
    )
    attempts = stored.attempts
    workers = [attempt.worker for attempt in attempts]
    if status == TaskResultStatus.RUNNING:
        workers.append(stored.worker)
    errors = [_error(attempt) for attempt in attempts]
    if status == TaskResultStatus.FAILED and not errors:
        errors = [TaskError(exception_class_path="builtins.Exception", traceback=stored.reason)]
    return _result(
        task,
        call,
        stored.shown_name,
        backend,
        status,
        enqueued_at=call.enqueued_at or time_of(stored.added_at),
        started_at=time_of(attempts[0].began_at if attempts else stored.leased_at),
        last_attempted_at=time_of(stored.leased_at),
        finished_at=time_of(attempts[-1].ended_at) if attempts and status == TaskResultStatus.FAILED else None,
        worker_ids=workers,
        errors=errors,
        queue=stored.queue,
    )


def finished_result(task: DjangoTask, leases: Sequence[FinishedLease], *, backend: str) -> TaskResult:
    """Return the result of a task that has left its queue, by its ended leases, newest first. Arguments are gone."""
    last, first = leases[0], leases[-1]
    is_done = last.outcome == "deleted" and not last.died
    failed = [lease for lease in reversed(leases) if lease.outcome != "deleted"]
    return _result(
        task,
        TaskCall("", [], {}),
        last.name,
        backend,
        TaskResultStatus.SUCCESSFUL if is_done else TaskResultStatus.FAILED,
        enqueued_at=time_of(last.added_at),
        started_at=time_of(first.leased_at),
        last_attempted_at=time_of(last.leased_at),
        finished_at=time_of(last.ended_at),
        worker_ids=[lease.worker for lease in reversed(leases)],
        errors=[
            TaskError(exception_class_path="builtins.Exception", traceback=lease.reason or lease.outcome)
            for lease in failed
        ],
    )


def _error(attempt: Attempt) -> TaskError:
    """Return an attempt as an error; of an older worker's only the class's name is known, unless it is built in."""
    if attempt.error_path:
        return TaskError(exception_class_path=attempt.error_path, traceback=attempt.traceback or attempt.text)
    is_builtin = isinstance(getattr(builtins, attempt.error, None), type)
    path = f"builtins.{attempt.error}" if is_builtin else attempt.error or "builtins.Exception"
    return TaskError(exception_class_path=path, traceback=attempt.text)


def _as_enqueued(task: DjangoTask, call: TaskCall, *, backend: str, queue: str) -> DjangoTask:
    """Return a declared task with what `using` has changed."""
    if (task.backend, task.queue_name, task.run_after) == (backend, queue, call.run_after):
        return task
    return replace(task, backend=backend, queue_name=queue, run_after=call.run_after)


def _result(
    task: DjangoTask,
    call: TaskCall,
    name: str,
    backend: str,
    status: TaskResultStatus,
    *,
    enqueued_at: datetime | None = None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
    last_attempted_at: datetime | None = None,
    worker_ids: Sequence[str] = (),
    errors: Sequence[TaskError] = (),
    queue: str = "",
) -> TaskResult:
    return TaskResult(
        task=_as_enqueued(task, call, backend=backend, queue=queue or task.queue_name),
        id=name,
        status=status,
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=finished_at,
        last_attempted_at=last_attempted_at,
        args=list(call.args),
        kwargs=call.kwargs,
        backend=backend,
        errors=list(errors),
        worker_ids=list(worker_ids),
    )
