"""Timestamps and durations as protobuf writes them in JSON, to the microsecond. Pure."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from queue_core.clock import MICROSECONDS, Instant

_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_DURATION = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
MAX_DURATION_MICROSECONDS = 315_576_000_000 * MICROSECONDS
"""10,000 years: protobuf's longest duration, which means for ever."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = int((datetime.max.replace(tzinfo=UTC) - _EPOCH) / timedelta(microseconds=1))


def parse_timestamp(text: str) -> Instant:
    """RFC 3339 with up to 9 digits of a second, those beyond the microsecond cut. Raises `ValueError`."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("write it as 2026-01-31T12:30:00.123456Z")
    year, month, day, hour, minute, second = (int(part) for part in match.group(1, 2, 3, 4, 5, 6))
    fraction = int((match[7] or "").ljust(6, "0")[:6])
    moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    if second > 60:
        raise ValueError("second must be in 0..59")
    past = (moment - _EPOCH) // timedelta(microseconds=1) + (second == 60) * MICROSECONDS
    if match[8]:
        if int(match[9]) > 23 or int(match[10]) > 59:
            raise ValueError("offset must be below 24:00")
        offset = (int(match[9]) * 60 + int(match[10])) * 60 * MICROSECONDS
        past += offset if match[8] == "-" else -offset
    return Instant(past + fraction)


def format_timestamp(instant: Instant) -> str:
    """RFC 3339 in UTC with 0, 3 or 6 digits, as protobuf has it."""
    seconds, microseconds = divmod(instant if 0 <= instant <= _LAST else _nearest(instant), MICROSECONDS)
    return f"{_whole_second(seconds)}{_fraction(microseconds)}Z"


def _nearest(instant: int) -> int:
    """Timestamps end with the year 9999, and ours begin with 1970."""
    return 0 if instant < 0 else _LAST


@lru_cache(maxsize=256)
def _whole_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def parse_duration(text: str) -> int:
    """Microseconds of `3.5s`, what is beyond them cut. Raises `ValueError`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("write it in seconds, as 600s or 1.5s")
    size = int(match[2]) * MICROSECONDS + int((match[3] or "").ljust(6, "0")[:6])
    if size > MAX_DURATION_MICROSECONDS:
        raise ValueError("at most 315576000000s")
    return -size if match[1] else size


def format_duration(microseconds: int) -> str:
    """`3.500s`, with 0, 3 or 6 digits."""
    seconds, fraction = divmod(abs(microseconds), MICROSECONDS)
    return f"{'-' if microseconds < 0 else ''}{seconds}{_fraction(fraction)}s"


def _fraction(microseconds: int) -> str:
    if microseconds == 0:
        return ""
    if microseconds % 1000 == 0:
        return f".{microseconds // 1000:03d}"
    return f".{microseconds:06d}"
