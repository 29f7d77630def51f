"""Validation of new tasks and queue settings against the limits, before the store is called. Pure."""

from collections.abc import Sequence

from queue_core import limits
from queue_core.admission import Rate
from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import (
    InvalidEtaError,
    InvalidLeaseTimeError,
    InvalidRequestError,
    InvalidSettingError,
    QueueMovedError,
    StorageLimitError,
)
from queue_core.limits import shown_value
from queue_core.rare_fields import check_rare_fields, has_rare_fields
from queue_core.task import NewTask, QueueSpec, TagFilter

FILLED_FROM = "filled from "
"""The prefix of `moved_to` on the target store of a transfer until the transfer is complete."""


def check_new_tasks(tasks: Sequence[NewTask], *, now: Instant | None = None) -> list[NewTask]:
    """Raise an `InvalidRequestError` that names the limit for the first task that can't be added to any queue.

    Returns those that only a queue whose own settings allow it takes (`check_own_limits`): larger than most are, or
    with a later eta. `now` None: an eta is not looked at.
    """
    beyond: list[NewTask] = []
    for task in tasks:
        payload: object = task.payload
        if (
            not isinstance(payload, bytes)
            or task.eta is not None
            or task.max_leases is not None
            or task.queue is not None
            or task.priority
        ):
            check_types(task)
        if has_rare_fields(task):
            check_rare_fields(task)
        try:
            is_beyond = _check_limits(task, now)
        except (TypeError, AttributeError):
            check_types(task)  # a clearer message; checking types first would make a batch 10% slower
            raise
        if is_beyond:
            beyond.append(task)
    return beyond


def check_own_limits(task: NewTask, spec: QueueSpec, *, now: Instant) -> None:
    """Raise `TaskTooLargeError`, `InvalidEtaError` for a task beyond the settings of the queue it goes to."""
    limits.check_payload(task.payload, most=spec.max_payload_bytes, queue=spec.name)
    if task.eta is not None:
        check_own_eta(task.eta, spec, now=now)
    if task.delay_seconds is not None:
        limits.check_delay_seconds(task.delay_seconds, most_seconds=spec.max_eta_seconds, queue=spec.name)


def check_own_eta(eta: Instant, spec: QueueSpec, *, now: Instant) -> None:
    """Raise `InvalidEtaError` for an eta before the epoch, or further ahead than a queue allows."""
    limits.check_eta(eta, now=now, most_seconds=spec.max_eta_seconds, queue=spec.name)


def check_types(task: NewTask) -> None:
    """Raise an `InvalidRequestError` for a value of the wrong type, which a store would keep as it is."""
    payload: object = task.payload
    if not isinstance(payload, bytes):
        cure = "encode it: payload.encode()" if isinstance(payload, str) else "bytes(payload) makes them"
        raise InvalidRequestError(f"payload must be bytes: {type(payload).__name__} given; {cure}")
    for field, value in (("tag", task.tag), ("name", task.name), ("queue", task.queue)):
        if value is not None and not isinstance(value, str):
            raise InvalidRequestError(f"{field} must be text: {value!r}")
    if task.queue is not None:
        limits.check_text("queue", task.queue)
    if task.eta is not None:
        check_instant("eta", task.eta)
    if task.max_leases is not None:
        limits.check_max_leases(task.max_leases)
    if type(task.priority) is not int or not 0 <= task.priority <= limits.MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be a whole number in [0, {limits.MAX_PRIORITY}], the highest first: "
            f"{shown_value(task.priority)}"
        )
    if task.delay_seconds is not None:
        limits.check_any_delay_seconds(task.delay_seconds)


def check_instant(what: str, at: Instant) -> None:
    """Raise `InvalidEtaError` unless `at` is whole microseconds since 1970 that a store can keep."""
    if not _is_within(at, 0, limits.MAX_INTEGER, whole=True):
        raise InvalidEtaError(
            f"{what} must be whole microseconds since 1970, in [0, {limits.MAX_INTEGER}]: {shown_value(at)}; "
            "see `queue_core.clock`"
        )


def _is_within(number: object, least: float, most: float, *, whole: bool = False) -> bool:
    """Return whether a value is a number in [`least`, `most`]."""
    if not isinstance(number, int if whole else int | float) or isinstance(number, bool):
        return False
    return least <= number <= most


def _check_limits(task: NewTask, now: Instant | None) -> bool:
    """Check a task; return whether it is beyond what every queue takes."""
    is_beyond = len(task.payload) > limits.MAX_PAYLOAD_BYTES
    if is_beyond:
        limits.check_payload(task.payload, most=limits.LARGEST_PAYLOAD_BYTES)
    if task.tag is not None:
        limits.check_tag(task.tag)
    if task.name is not None:
        limits.check_task_name(task.name)
    if task.delay_seconds is not None:
        limits.check_any_delay_seconds(task.delay_seconds)
        if task.eta is not None:
            raise InvalidSettingError(f"a task has an eta or a delay, not both: {task.eta}, {task.delay_seconds} s")
        is_beyond = is_beyond or task.delay_seconds > limits.MAX_ETA_SECONDS
    elif task.eta is not None and now is not None and task.eta > now + limits.MAX_ETA_SECONDS * MICROSECONDS:
        is_beyond = True
    return is_beyond


def check_filter(tags: object) -> None:
    """Raise an `InvalidRequestError` unless `tags` is a `TagFilter` with legal tags, not too many."""
    if not isinstance(tags, TagFilter):
        raise InvalidRequestError(f"tags must be a TagFilter, such as TagFilter.of('resize'): {tags!r}")
    if tags.tags:
        limits.check_tags(tags.tags)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise an `InvalidRequestError` unless `value` is one of `choices`."""
    if value not in choices:
        raise InvalidRequestError(f"{name} must be {' or '.join(map(repr, choices))}: {shown_value(value)}")


def check_storage(tasks: Sequence[NewTask], *, used_bytes: int, limit_bytes: int) -> None:
    """Raise `StorageLimitError` if the payloads of these tasks would exceed the store's limit."""
    added = sum(len(task.payload) for task in tasks)
    if used_bytes + added > limit_bytes:
        raise StorageLimitError(
            f"total_storage_limit is {limit_bytes} bytes, {used_bytes} are used, {added} were to be "
            "added: delete or purge tasks, or raise the limit (`towline queues storage --limit`)"
        )


def check_storage_limit(limit_bytes: int | None) -> None:
    """Raise `InvalidSettingError` unless a limit is None or in [0, MAX_STORAGE_BYTES]."""
    if limit_bytes is not None and not _is_within(limit_bytes, 0, limits.MAX_STORAGE_BYTES, whole=True):
        raise InvalidSettingError(
            f"total_storage_limit must be in [0, {limits.MAX_STORAGE_BYTES}] bytes, or none: {shown_value(limit_bytes)}"
        )


def check_queue_spec(spec: QueueSpec) -> None:
    """Raise an `InvalidRequestError` unless the settings are in range and consistent."""
    limits.check_queue_name(spec.name)
    limits.check_lease_seconds(spec.lease_seconds, what=f"{spec.name}: lease")
    limits.check_lease_seconds(spec.max_lease_seconds, what=f"{spec.name}: max_lease")
    if spec.lease_seconds > spec.max_lease_seconds:
        raise InvalidSettingError(
            f"{spec.name}: lease must be at most max_lease: {spec.lease_seconds} s > {spec.max_lease_seconds} s"
        )
    _check_within(spec.name, "max_leases", spec.max_leases, limits.MAX_LEASES)
    _check_within(spec.name, "lease_calls_per_second", spec.lease_calls_per_second, limits.MAX_LEASE_CALLS_PER_SECOND)
    check_choice("mode", spec.mode, ("pull", "push"))
    if not _is_within(spec.history_keep, 0, limits.MAX_HISTORY_LEASES, whole=True):
        raise InvalidSettingError(
            f"{spec.name}: history keep must be in [0, {limits.MAX_HISTORY_LEASES}] ended leases: "
            f"{shown_value(spec.history_keep)}"
        )
    if not _is_within(spec.history_seconds, 0, limits.MAX_HISTORY_SECONDS):
        raise InvalidSettingError(
            f"{spec.name}: history for must be in [0, {limits.MAX_HISTORY_SECONDS:.0f}] s: "
            f"{shown_value(spec.history_seconds)}"
        )
    _check_lease_limits(spec.name, "", spec.max_in_flight, spec.rate)
    _check_lease_limits(spec.name, "per_tag.", spec.per_tag.max_in_flight, spec.per_tag.rate)
    if not _is_within(spec.max_payload_bytes, limits.MAX_PAYLOAD_BYTES, limits.LARGEST_PAYLOAD_BYTES, whole=True):
        raise InvalidSettingError(
            f"{spec.name}: max_payload must be in [{limits.MAX_PAYLOAD_BYTES}, {limits.LARGEST_PAYLOAD_BYTES}] bytes "
            f"(1 to 64 MiB): {shown_value(spec.max_payload_bytes)}; keep larger data elsewhere and add its address"
        )
    if not _is_within(spec.max_eta_seconds, limits.MAX_ETA_SECONDS, limits.FARTHEST_ETA_SECONDS):
        raise InvalidSettingError(
            f"{spec.name}: max_eta must be in [{limits.MAX_ETA_SECONDS:.0f}, {limits.FARTHEST_ETA_SECONDS:.0f}] s "
            f"(30 days to 10 years): {shown_value(spec.max_eta_seconds)}"
        )
    limits.check_text(f"{spec.name}: label", spec.label)
    if len(spec.label) > limits.MAX_LABEL_CHARACTERS:
        raise InvalidSettingError(
            f"{spec.name}: label must have at most {limits.MAX_LABEL_CHARACTERS} characters: {len(spec.label)}"
        )
    _check_emails(spec.name, "user_emails", spec.user_emails)
    _check_emails(spec.name, "writer_emails", spec.writer_emails)
    if (
        not _is_within(spec.retry_min_seconds, 0, limits.MAX_ETA_SECONDS)
        or not _is_within(spec.retry_max_seconds, 0, limits.MAX_ETA_SECONDS)
        or spec.retry_min_seconds > spec.retry_max_seconds
    ):
        raise InvalidSettingError(
            f"{spec.name}: retry must have 0 <= min <= max <= {limits.MAX_ETA_SECONDS:.0f} s: "
            f"{shown_value(spec.retry_min_seconds)} s, {shown_value(spec.retry_max_seconds)} s"
        )
    if not _is_within(spec.name_retention_seconds, 0, limits.FARTHEST_ETA_SECONDS):
        raise InvalidSettingError(
            f"{spec.name}: name_retention must be in [0, {limits.FARTHEST_ETA_SECONDS:.0f}] s (10 years): "
            f"{shown_value(spec.name_retention_seconds)}"
        )


def _check_lease_limits(queue: str, before: str, max_in_flight: int | None, rate: Rate | None) -> None:
    _check_within(queue, f"{before}max_in_flight", max_in_flight, limits.MAX_IN_FLIGHT)
    if rate is None:
        return
    if not _is_within(rate.per_second, limits.MIN_RATE_PER_SECOND, limits.MAX_RATE_PER_SECOND):
        raise InvalidSettingError(
            f"{queue}: {before}rate must be from one a day to {limits.MAX_RATE_PER_SECOND:.0f} a second: "
            f"{shown_value(rate.per_second)} a second"
        )
    _check_within(queue, f"{before}rate: burst", rate.burst, limits.MAX_BURST)


def _check_within(queue: str, setting: str, number: int | None, most: int) -> None:
    if number is not None and not _is_within(number, 1, most, whole=True):
        raise InvalidSettingError(f"{queue}: {setting} must be in [1, {most}]: {shown_value(number)}")


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
    """Raise `InvalidLeaseTimeError` if a lease is longer than the queue's `max_lease_seconds`."""
    if seconds > spec.max_lease_seconds:
        raise InvalidLeaseTimeError(
            f"a lease of {spec.name} may last at most max_lease, {spec.max_lease_seconds} s: {seconds}"
        )


def check_renewed_time(spec: QueueSpec, seconds: float) -> None:
    """Raise `InvalidLeaseTimeError` if a lease, including renewals, exceeds the queue's `max_lease_seconds`.

    At its maximum of 7 days, `max_lease_seconds` limits each renewal but not the sum, as in App Engine.
    """
    if spec.max_lease_seconds < limits.MAX_LEASE_SECONDS:
        check_lease_time(spec, seconds)


def check_not_moved(spec: QueueSpec) -> None:
    """Raise `QueueMovedError`, which says where the queue is now, for a fenced queue."""
    if not spec.moved_to:
        return
    if spec.moved_to.startswith(FILLED_FROM):
        source = spec.moved_to.removeprefix(FILLED_FROM)
        raise QueueMovedError(
            f"queue {spec.name!r} is still being filled from {source}: it opens here when `towline migrate` is done"
        )
    raise QueueMovedError(
        f"queue {spec.name!r} was moved to {spec.moved_to}: it can't be changed here any more; use it there"
    )
