"""Instants as people type them: 09:00, 2026-03-29T09:00, 2h; on the clock of the terminal they sit at."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from queue_core.config.units import parse_seconds

_TIME_OF_DAY: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_WRITE: Final = "write a time such as 09:00, a date and time such as 2026-03-29T09:00, or a duration such as 2h"


@dataclass(frozen=True, slots=True)
class Typed:
    """An instant, in seconds since the epoch, and the offset from UTC of the clock it was meant on."""

    at: float
    utc_offset_seconds: int


def typed_instant(text: str, *, now: float, side: Literal["next", "last"]) -> Typed:
    """The instant that `text` means, seen from `now`.

    A time of day is the next one to come, or the last one that was; a duration counts onwards, or back. Raises
    `ValueError` for anything else.
    """
    here = datetime.fromtimestamp(now, UTC).astimezone()
    match = _TIME_OF_DAY.fullmatch(text)
    if match is not None:
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        for days in (0, 1) if side == "next" else (0, -1):
            day = here + timedelta(days=days)
            # Without its offset it is read anew: the clock may have been put forward or back in between.
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


def _typed(at: datetime) -> Typed:
    offset = at.utcoffset() or timedelta()
    return Typed(at.timestamp(), round(offset.total_seconds()))
