"""Check a declared schedule against its limits. Pure."""

import re

from queue_core.errors import InvalidRequestError, QueueError
from queue_core.limits import (
    MAX_PAYLOAD_BYTES,
    check_headers,
    check_max_leases,
    check_queue_name,
    check_tag,
    check_text,
)
from queue_core.schedules.schedule import CATCH_UPS, OVERLAPS, Schedule
from queue_core.schedules.times import check_cron, check_every, check_zone

MAX_NAME_CHARACTERS = 100
MAX_SCHEDULE_PAYLOAD_BYTES = 16 << 10
MAX_ORIGIN_CHARACTERS = 500
"""The payload of a schedule: a store keeps those of all schedules in one record."""
assert MAX_SCHEDULE_PAYLOAD_BYTES <= MAX_PAYLOAD_BYTES
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def check_name(name: str) -> str:
    """Return a schedule's name. Raises `ValueError` unless it can begin the names of its tasks."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:60]}: a schedule's name is 1 to {MAX_NAME_CHARACTERS} letters, digits, '_' or '-', and begins "
            "with a letter or digit"
        )
    return name


def check_payload_size(payload: bytes) -> bytes:
    """Return a schedule's payload. Raises `ValueError` for one that is too large."""
    if len(payload) > MAX_SCHEDULE_PAYLOAD_BYTES:
        raise ValueError(
            f"{len(payload):,} bytes: the payload of a schedule is at most {MAX_SCHEDULE_PAYLOAD_BYTES:,} bytes; "
            "keep the data elsewhere and give its address"
        )
    return payload


def check_origin(origin: str) -> str:
    """Return where a schedule is declared. Raises `ValueError` for a longer text, `InvalidRequestError` for none."""
    check_text("origin", origin)
    if len(origin) > MAX_ORIGIN_CHARACTERS:
        raise ValueError(f"origin must be at most {MAX_ORIGIN_CHARACTERS} characters: {len(origin)}")
    return origin


def check_rhythm(cron: str | None, every: float | None) -> None:
    """Raise `ValueError` unless there is one of a cron expression and a time between ticks, and it is valid."""
    if (cron is None) == (every is None):
        raise ValueError("give either cron or every")
    if cron is not None:
        check_cron(cron)
    if every is not None:
        check_every(every)


def check_schedule(schedule: Schedule) -> Schedule:
    """Return the schedule. Raises `InvalidRequestError` for the first value that can't be."""
    try:
        check_name(schedule.name)
        check_queue_name(schedule.queue)
        check_rhythm(schedule.cron, schedule.every)
        check_zone(schedule.timezone)
        check_payload_size(schedule.payload)
        check_origin(schedule.origin)
        if schedule.max_leases is not None:
            check_max_leases(schedule.max_leases)
        if schedule.tag is not None:
            check_tag(schedule.tag)
        if schedule.headers is not None:
            check_headers(schedule.headers)
    except (ValueError, QueueError) as error:
        raise InvalidRequestError(f"schedule {schedule.name[:60]!a}: {error}") from None
    if schedule.catch_up not in CATCH_UPS:
        raise InvalidRequestError(f"schedule {schedule.name}: catch_up must be one of {', '.join(CATCH_UPS)}")
    if schedule.overlap not in OVERLAPS:
        raise InvalidRequestError(f"schedule {schedule.name}: overlap must be one of {', '.join(OVERLAPS)}")
    return schedule
