"""Parse instants as people type them (09:00, 2026-03-29T09:00, 2h), in the terminal's time zone."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from queue_core.config.units import parse_seconds

_TIME_OF_DAY: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_WRITE: Final = "write a time such as 09:00, a date and time such as 2026-03-29T09:00, or a duration such as 2h"


@dataclass(frozen=True, slots=True)
class TypedInstant:
    """An instant in seconds since the epoch, and the UTC offset of the clock it was typed for."""

    at: float
    utc_offset_seconds: int


def parse_instant(text: str, *, now: float, side: Literal["next", "last"]) -> TypedInstant:
    """Parse `text` relative to `now`.

    A time of day means its next or its last occurrence, by `side`; a duration counts forward or back. Raises
    `ValueError` for anything else.
    """
    here = datetime.fromtimestamp(now, UTC).astimezone()
    match = _TIME_OF_DAY.fullmatch(text)
    if match is not None:
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        for days in (0, 1) if side == "next" else (0, -1):
            day = here + timedelta(days=days)
            # Dropping the offset makes astimezone() find it again: daylight saving may have changed in between.
            at = day.replace(hour=hour, minute=minute, second=second, microsecond=0, tzinfo=None).astimezone()
            if (at > here) == (side == "next"):
                break
        return _typed(at)
    try:
        seconds = parse_seconds(text)
    except ValueError:
        pass
    else:
        return _typed(here + timedelta(seconds=seconds if side == "next" else -seconds))
    try:
        return _typed(datetime.fromisoformat(text).astimezone())
    except ValueError:
        raise ValueError(f"{text}: {_WRITE}") from None


def _typed(at: datetime) -> TypedInstant:
    offset = at.utcoffset() or timedelta()
    return TypedInstant(at.timestamp(), round(offset.total_seconds()))
