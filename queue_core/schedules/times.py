"""The times of a schedule's ticks: cron expressions on a time zone's wall clock, or every so many seconds.

Pure, but for the time zones that `zoneinfo` reads once. Where clocks change it does as CronSim does, which is as
Debian's cron does: a tick at a fixed time that the night skips comes when the skipped hour is over, and one that the
night has twice comes once; a tick by a `*` in its minute or hour goes by elapsed time.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from queue_core.clock import MICROSECONDS, Instant
from queue_core.limits import is_number, shown_value

CRON_FIELDS = "minute, hour, day of the month, month, day of the week, such as 0 3 * * *"
MAX_EVERY_SECONDS = 366 * 86_400
LOOK_BACK_SECONDS = (64, 512, 4_096, 32_768, 262_144, 2_097_152, 16_777_216, 134_217_728, 1_577_836_800)
"""How far back the last tick is looked for, in turn: up to 50 years, as far as CronSim looks ahead."""


def check_cron(text: str) -> str:
    """Return a cron expression that ticks. Raises `ValueError` for any other text.

    A sixth field in front is of seconds.
    """
    try:
        first = next(CronSim(text, datetime(2024, 1, 1)), None)  # noqa: DTZ001  only its form matters
    except CronSimError as error:
        raise ValueError(f"{text}: {str(error).lower()}; write {CRON_FIELDS}") from None
    if first is None:
        raise ValueError(f"{text}: there is no such day in 50 years; write {CRON_FIELDS}")
    return text


def check_every(seconds: float) -> float:
    """Return a time between ticks. Raises `ValueError` unless it is whole seconds, from 1 s to 366 days."""
    if not is_number(seconds) or not 1 <= seconds <= MAX_EVERY_SECONDS or seconds != int(seconds):
        shown = f"{seconds:g}" if isinstance(seconds, float) else shown_value(seconds)
        raise ValueError(f"{shown} s: must be whole seconds, from 1s to 366d")
    return seconds


@cache
def known_zones() -> frozenset[str]:
    """Return the names of all time zones."""
    return frozenset(available_timezones())


def check_zone(name: str) -> str:
    """Return the name of a time zone. Raises `ValueError` for any other text."""
    if name not in known_zones():
        raise ValueError(f"{shown_value(name)[1:-1]}: no such time zone; write UTC, Europe/Vienna ...")
    return name


def cron_ticks(cron: str, zone: str, *, after: Instant) -> Iterator[Instant]:
    """Yield the ticks after an instant, in order."""
    began = datetime.fromtimestamp(after // MICROSECONDS, ZoneInfo(zone))
    last = after
    for found in CronSim(cron, began):
        at = Instant(round(found.timestamp()) * MICROSECONDS)
        if at > last:  # in the hour that comes twice CronSim may begin with the first of two times
            last = at
            yield at


def every_ticks(seconds: float, *, after: Instant) -> Iterator[Instant]:
    """Yield the ticks after an instant, in order: the multiples of `seconds` since 1970, UTC."""
    step = int(seconds) * MICROSECONDS
    at = after - after % step
    while True:
        at += step
        yield Instant(at)


def tick_text(at: Instant) -> str:
    """Return a tick as it is written in its task's name: `20261126T030000Z`."""
    from datetime import UTC

    return datetime.fromtimestamp(at // MICROSECONDS, UTC).strftime("%Y%m%dT%H%M%SZ")
