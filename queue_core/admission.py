"""What a call must satisfy before the store is asked: new tasks and queues' settings held to the limits. Pure."""

from collections.abc import Sequence

from queue_core import limits
from queue_core.errors import InvalidLeaseTimeError, InvalidSettingError, QueueMovedError, StorageLimitError
from queue_core.task import NewTask, QueueSpec

FILLED_FROM = "filled from "
"""What `moved_to` begins with on the store that a queue is being moved to, until all of it is there."""


def check_new_tasks(tasks: Sequence[NewTask]) -> None:
    """Raise an `InvalidRequestError` for the first task that can't be added; names the limit."""
    for task in tasks:
        limits.check_payload(task.payload)
        if task.tag is not None:
            limits.check_tag(task.tag)
        if task.name is not None:
            limits.check_task_name(task.name)
        if task.max_leases is not None and not 1 <= task.max_leases <= limits.MAX_LEASES:
            raise InvalidSettingError(f"max_leases must be in [1, {limits.MAX_LEASES}]: {task.max_leases}")
        if task.delay_seconds is not None:
            limits.check_delay_seconds(task.delay_seconds)
            if task.eta is not None:
                raise InvalidSettingError(f"a task has an eta or a delay, not both: {task.eta}, {task.delay_seconds} s")


def check_storage(tasks: Sequence[NewTask], *, used_bytes: int, limit_bytes: int) -> None:
    """Raise `StorageLimitError` when the payloads of these tasks would bring the store over its limit."""
    added = sum(len(task.payload) for task in tasks)
    if used_bytes + added > limit_bytes:
        raise StorageLimitError(
            f"total_storage_limit is {limit_bytes} bytes, {used_bytes} are used, {added} were to be "
            "added: delete or purge tasks, or raise the limit (`towline queues storage --limit`)"
        )


def check_storage_limit(limit_bytes: int | None) -> None:
    """Raise `InvalidSettingError` unless a limit is none, or not negative and no more than a store can count."""
    if limit_bytes is not None and not 0 <= limit_bytes <= limits.MAX_STORAGE_BYTES:
        raise InvalidSettingError(
            f"total_storage_limit must be in [0, {limits.MAX_STORAGE_BYTES}] bytes, or none: {limit_bytes}"
        )


def check_queue_spec(spec: QueueSpec) -> None:
    """Raise unless the settings are in range and agree with each other."""
    limits.check_queue_name(spec.name)
    limits.check_lease_seconds(spec.lease_seconds)
    limits.check_lease_seconds(spec.max_lease_seconds)
    if spec.lease_seconds > spec.max_lease_seconds:
        raise InvalidSettingError(
            f"{spec.name}: lease must be at most max_lease: {spec.lease_seconds} s > {spec.max_lease_seconds} s"
        )
    _check_within(spec.name, "max_leases", spec.max_leases, limits.MAX_LEASES)
    _check_within(spec.name, "lease_calls_per_second", spec.lease_calls_per_second, limits.MAX_LEASE_CALLS_PER_SECOND)
    _check_emails(spec.name, "user_emails", spec.user_emails)
    _check_emails(spec.name, "writer_emails", spec.writer_emails)
    if not 0 <= spec.retry_min_seconds <= spec.retry_max_seconds <= limits.MAX_ETA_SECONDS:
        raise InvalidSettingError(
            f"{spec.name}: retry must have 0 <= min <= max <= {limits.MAX_ETA_SECONDS:.0f} s: "
            f"{spec.retry_min_seconds} s, {spec.retry_max_seconds} s"
        )


def _check_within(queue: str, setting: str, number: int | None, most: int) -> None:
    if number is not None and not 1 <= number <= most:
        raise InvalidSettingError(f"{queue}: {setting} must be in [1, {most}]: {number}")


def _check_emails(queue: str, setting: str, emails: Sequence[str]) -> None:
    if len(emails) > limits.MAX_EMAILS:
        raise InvalidSettingError(f"{queue}: {setting} must be at most {limits.MAX_EMAILS}: {len(emails)}")
    for email in emails:
        if not 1 <= len(email) <= limits.MAX_EMAIL_CHARACTERS or " " in email or not email.isprintable():
            raise InvalidSettingError(
                f"{queue}: {setting} must each have 1 to {limits.MAX_EMAIL_CHARACTERS} visible characters: "
                f"{email[:60]!a}"
            )


def check_lease_time(spec: QueueSpec, seconds: float) -> None:
    """Raise `InvalidLeaseTimeError` for more than the queue's `max_lease_seconds`."""
    if seconds > spec.max_lease_seconds:
        raise InvalidLeaseTimeError(
            f"a lease of {spec.name} may last at most max_lease, {spec.max_lease_seconds} s: {seconds}"
        )


def check_renewed_time(spec: QueueSpec, seconds: float) -> None:
    """Raise `InvalidLeaseTimeError` for a lease that would last so long in all, renewals included.

    A `max_lease_seconds` of its greatest value bounds each renewal alone, as App Engine does, and never the sum.
    """
    if spec.max_lease_seconds < limits.MAX_LEASE_SECONDS:
        check_lease_time(spec, seconds)


def check_not_moved(spec: QueueSpec) -> None:
    """Raise `QueueMovedError` for a queue that is fenced: it says where the queue lives instead."""
    if not spec.moved_to:
        return
    if spec.moved_to.startswith(FILLED_FROM):
        source = spec.moved_to.removeprefix(FILLED_FROM)
        raise QueueMovedError(
            f"queue {spec.name!r} is still being filled from {source}: it opens here when `towline migrate` has ended"
        )
    raise QueueMovedError(
        f"queue {spec.name!r} was moved to {spec.moved_to}: nothing changes it here any more; use it there"
    )
