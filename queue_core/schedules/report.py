"""The results of the verbs of schedules: reports of ticks, and schedules as people see them."""

from dataclasses import dataclass

from queue_core.clock import Instant
from queue_core.schedules.schedule import CatchUp, Overlap


@dataclass(frozen=True, slots=True)
class AddedTick:
    """A tick whose task is in the queue now. `is_new`: False when it was there before, or is done already."""

    schedule: str
    queue: str
    tick: Instant
    task: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class MissedTicks:
    """Ticks that were given up. There were more than `count` where that is `MAX_COUNTED`."""

    schedule: str
    queue: str
    count: int
    first: Instant
    last: Instant
    catch_up: CatchUp


@dataclass(frozen=True, slots=True)
class SkippedTicks:
    """Ticks that were skipped because they overlap with `task`, which is still waiting or running."""

    schedule: str
    queue: str
    count: int
    first: Instant
    last: Instant
    task: str


@dataclass(frozen=True, slots=True)
class ScheduleTrouble:
    """A schedule whose due ticks can't be added now, and why. They are tried again."""

    schedule: str
    why: str


@dataclass(frozen=True, slots=True)
class ComingTick:
    """The next tick of a schedule."""

    schedule: str
    queue: str
    tag: str | None
    tick: Instant


@dataclass(frozen=True, slots=True)
class TickReport:
    """A report of the ticks that were due at `now`, and the next one of each schedule that is not paused."""

    now: Instant
    added: tuple[AddedTick, ...] = ()
    missed: tuple[MissedTicks, ...] = ()
    troubles: tuple[ScheduleTrouble, ...] = ()
    coming: tuple[ComingTick, ...] = ()
    went_back: bool = False
    has_more: bool = False
    skipped: tuple[SkippedTicks, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule as people see it. `trouble`: why its ticks are not added; "" where they are."""

    name: str
    queue: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    tag: str | None
    catch_up: CatchUp
    origin: str
    next_tick: Instant | None
    last_tick: Instant | None
    last_task: str
    missed: int
    last_missed: Instant | None
    paused_at: Instant | None
    trouble: str
    overlap: Overlap = "queue"
    skipped: int = 0
    last_skipped: Instant | None = None
