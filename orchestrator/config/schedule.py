"""Bounds that change with the time of day, and the time of day by which work must be done.

Pure, but for the time zones that `zoneinfo` reads once. Instants are seconds since the epoch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim
from pydantic import AfterValidator, Field, WithJsonSchema

from orchestrator.config.model import MAX_WORKERS, Count, FleetSettingsModel, WorkerBounds
from queue_core.config.schedules import Cron, TimeZone, check_zone
from queue_core.config.units import Seconds

MAX_WINDOW_SECONDS: Final = 366 * 86_400.0
MAX_WINDOWS: Final = 50
_CHANGE_SECONDS: Final = 3 * 3_600  # more than any change of clocks
_MAX_STEPS: Final = 2 * _CHANGE_SECONDS // 60  # minutes of the search, each way
_FOREVER: Final = float("inf")
_DAILY: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?: (\S+))?")


def _known_daily(value: str) -> str:
    match = _DAILY.fullmatch(value)
    if match is None:
        raise ValueError(
            f"{value}: write a time of day such as 09:00, or 09:00 Europe/Berlin (without a zone it is UTC)"
        )
    if match[3]:
        check_zone(match[3])
    return value


TimeOfDay = Annotated[
    str,
    AfterValidator(_known_daily),
    WithJsonSchema({"type": "string", "pattern": f"^{_DAILY.pattern}$", "examples": ["09:00 Europe/Berlin"]}),
]
"""A daily time and its zone: `09:00 Europe/Berlin`; UTC if none is given."""


class WindowBounds(FleetSettingsModel):
    """The bounds that a window sets; a bound that it leaves out stays as it is."""

    min: Count | None = Field(default=None, ge=0, le=MAX_WORKERS, description="Workers kept while it is open.")
    max: Count | None = Field(
        default=None, ge=0, le=MAX_WORKERS, description="Workers not exceeded while it is open; 0 shuts the pool."
    )


class Window(FleetSettingsModel):
    """A recurring time in which a pool has other bounds.

    It opens at the times of `cron`, on the wall clock of `timezone`, and stays open for the elapsed time `for`.
    """

    cron: Cron = Field(examples=["0 8 * * 1-5"], description="When it opens, as in crontab(5).")
    for_: Seconds = Field(alias="for", gt=0, le=MAX_WINDOW_SECONDS, description="How long it stays open.")
    workers: WindowBounds = Field(description="The bounds while it is open.")
    timezone: TimeZone = Field(default="UTC", examples=["Europe/Berlin"], description="The time zone of cron.")

    def opened_at(self, now: float) -> float | None:
        """Return when it last opened, if it is open at `now`; else None."""
        zone = ZoneInfo(self.timezone)
        # The search excludes its start and works in whole seconds of local time. Shortly after clocks went back, it
        # must start later to find the times before the change.
        start = datetime.fromtimestamp(int(now) + 1, zone)
        if start.utcoffset() != datetime.fromtimestamp(now - _CHANGE_SECONDS, zone).utcoffset():
            start = datetime.fromtimestamp(int(now) + _CHANGE_SECONDS, zone)
        times = (opened.timestamp() for opened in islice(CronSim(self.cron, start, reverse=True), _MAX_STEPS))
        opened_at = next((at for at in times if at <= now), None)
        return opened_at if opened_at is not None and now < opened_at + self.for_ else None

    def opens_at(self, now: float) -> float:
        """Return when it opens next, after `now`."""
        opens = next(CronSim(self.cron, datetime.fromtimestamp(int(now), ZoneInfo(self.timezone))), None)
        return opens.timestamp() if opens else _FOREVER


@dataclass(frozen=True, slots=True)
class Bounds:
    """A pool's bounds at an instant, what set them (empty: its `workers`), and until when they hold at least."""

    min: int
    max: int
    by: str = ""
    until: float = _FOREVER


def bounds_at(workers: WorkerBounds, schedule: Sequence[Window], *, now: float) -> Bounds:
    """Return the bounds of a pool at `now`.

    Of several open windows the last one in the list decides, for min and max each. If min is then above max, max holds.
    """
    low, high, by, until = workers.min, workers.max, "", _FOREVER
    for window in schedule:
        opened_at = window.opened_at(now)
        until = min(until, window.opens_at(now))
        if opened_at is None:
            continue
        until = min(until, opened_at + window.for_)
        low = low if window.workers.min is None else window.workers.min
        high = high if window.workers.max is None else window.workers.max
        by = f"schedule {window.cron}"
    return Bounds(min(low, high), high, by, until)


def next_daily(time_of_day: str, *, now: float) -> tuple[float, int]:
    """Return the next instant after `now` at that time of day, and the zone's offset from UTC then, in seconds.

    A time that a day skips (when clocks go forward) is later by as much as the clocks went forward.
    """
    match = _DAILY.fullmatch(time_of_day)
    if match is None:
        raise ValueError(f"not a time of day: {time_of_day}")
    zone = ZoneInfo(match[3] or "UTC")
    today = datetime.fromtimestamp(now, zone)
    for days in range(3):
        day = today.date() + timedelta(days=days)
        at = datetime(day.year, day.month, day.day, int(match[1]), int(match[2]), tzinfo=zone)
        if at.timestamp() > now:
            break
    offset = at.utcoffset() or timedelta()
    return at.timestamp(), round(offset.total_seconds())
