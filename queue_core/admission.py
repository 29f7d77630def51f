"""What a call must satisfy before the store is asked: new tasks and queues' settings held to the limits. Pure."""

from collections.abc import Sequence

from queue_core import limits
from queue_core.errors import InvalidSettingError
from queue_core.task import NewTask, QueueSpec


def check_new_tasks(tasks: Sequence[NewTask]) -> None:
    """Raise an `InvalidRequestError` for the first task that can't be added; names the limit."""
    for task in tasks:
        limits.check_payload(task.payload)
        if task.tag is not None:
            limits.check_tag(task.tag)
        if task.name is not None:
            limits.check_task_name(task.name)
        if task.delay_seconds is not None:
            limits.check_delay_seconds(task.delay_seconds)
            if task.eta is not None:
                raise InvalidSettingError(f"a task has an eta or a delay, not both: {task.eta}, {task.delay_seconds} s")


def check_queue_spec(spec: QueueSpec) -> None:
    """Raise unless the settings are in range and agree with each other."""
    limits.check_queue_name(spec.name)
    limits.check_lease_seconds(spec.lease_seconds)
    limits.check_lease_seconds(spec.max_lease_seconds)
    if spec.lease_seconds > spec.max_lease_seconds:
        raise InvalidSettingError(
            f"{spec.name}: lease must be at most max_lease: {spec.lease_seconds} s > {spec.max_lease_seconds} s"
        )
    if spec.max_leases is not None and spec.max_leases < 1:
        raise InvalidSettingError(f"{spec.name}: max_leases must be at least 1: {spec.max_leases}")
    if not 0 <= spec.retry_min_seconds <= spec.retry_max_seconds <= limits.MAX_ETA_SECONDS:
        raise InvalidSettingError(
            f"{spec.name}: retry must have 0 <= min <= max <= {limits.MAX_ETA_SECONDS:.0f} s: "
            f"{spec.retry_min_seconds} s, {spec.retry_max_seconds} s"
        )
