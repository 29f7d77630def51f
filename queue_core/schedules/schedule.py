"""A schedule: a queue gets a task at each of its ticks. Which ticks are due, by what was missed. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeAlias

from queue_core.clock import MICROSECONDS, Instant, after
from queue_core.schedules.times import LOOK_BACK_SECONDS, cron_ticks, every_ticks, tick_text
from queue_core.task import NewTask

CatchUp: TypeAlias = Literal["skip", "last", "all"]
"""The treatment of ticks that were missed: none is added, only the last, or each."""
CATCH_UPS: tuple[CatchUp, ...] = ("skip", "last", "all")
Overlap: TypeAlias = Literal["queue", "skip"]
"""The treatment of a tick whose last task is still waiting or running: a task is added, or the tick is skipped."""
OVERLAPS: tuple[Overlap, ...] = ("queue", "skip")

ON_TIME_SECONDS = 60.0
"""A tick that is at most so late counts as on time, whatever `catch_up` says: a new leader takes up to 15 s."""
MAX_CATCH_UP_SECONDS = 7 * 86_400.0
"""A tick that was missed longer ago is not caught up: the names of its queue refuse a second add for so long, by
default for 9 days."""
MAX_TICKS_AT_ONCE = 100
"""Ticks of one schedule that one transaction adds; the next one goes on."""
MAX_COUNTED = 1_000
"""Missed ticks that are counted; of more it is only known that there are more."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule as it is declared: `cron` on the wall clock of `timezone`, or `every` so many seconds.

    `origin` says where it is declared: `towline.yaml`, or the application, as `tasks:app`. `max_leases` is the bound of
    its tasks; None: their queue's.
    """

    name: str
    queue: str
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    payload: bytes = b""
    tag: str | None = None
    headers: Mapping[str, str] | None = None
    catch_up: CatchUp = "skip"
    origin: str = ""
    max_leases: int | None = None
    overlap: Overlap = "queue"

    @property
    def rhythm(self) -> tuple[str | None, float | None, str]:
        """All that its ticks depend on: when it changes, the schedule begins anew."""
        return self.cron, self.every, self.timezone

    def ticks(self, *, after: Instant) -> Iterator[Instant]:
        """Yield its ticks after an instant, in order."""
        if self.cron is not None:
            return cron_ticks(self.cron, self.timezone, after=after)
        return every_ticks(self.every or 1.0, after=after)

    def next_tick(self, *, after: Instant) -> Instant | None:
        """Return the first tick after an instant; None: there is none in 50 years."""
        return next(self.ticks(after=after), None)

    def last_tick(self, *, after: Instant, until: Instant) -> Instant | None:
        """Return the last tick in (`after`, `until`]; None: there is none."""
        for seconds in LOOK_BACK_SECONDS:
            begin = Instant(max(after, until - seconds * MICROSECONDS))
            last = None
            for at in self.ticks(after=begin):
                if at > until:
                    break
                last = at
            if last is not None or begin == after:
                return last
        return None

    def task_name(self, tick: Instant) -> str:
        """Return the name of a tick's task, which refuses a second add of the tick."""
        return f"{self.name}-{tick_text(tick)}"

    def task(self, name: str, *, eta: Instant) -> NewTask:
        """Return a task of it."""
        return NewTask(self.payload, name=name, tag=self.tag, eta=eta, max_leases=self.max_leases, headers=self.headers)


@dataclass(frozen=True, slots=True)
class DueTicks:
    """The ticks of one schedule that are due.

    Args:
        ticks: those to add, in order.
        handled: up to this instant all is done once they are added.
        missed: how many are not added, `MAX_COUNTED` at most; between `first_missed` and `last_missed`.
        has_more: more are due than one transaction adds.
        went_back: the clock is behind what was handled, so the schedule goes on from now.
        skipped: those that are not added because they overlap with an earlier task, in order.
    """

    handled: Instant
    ticks: tuple[Instant, ...] = ()
    missed: int = 0
    first_missed: Instant | None = None
    last_missed: Instant | None = None
    has_more: bool = False
    went_back: bool = False
    skipped: tuple[Instant, ...] = ()

    @property
    def is_any(self) -> bool:
        """Return whether anything is to be done or kept."""
        return bool(self.ticks or self.missed or self.went_back)

    def without_overlap(self, *, is_last_live: bool) -> "DueTicks":
        """Return what is due where a tick that overlaps with an earlier task is skipped.

        The first tick overlaps if the schedule's last task `is_last_live`, and those after it with the first.
        """
        kept = 0 if is_last_live else 1
        return replace(self, ticks=self.ticks[:kept], skipped=self.ticks[kept:])


def ticks_due(schedule: Schedule, *, handled: Instant, now: Instant) -> DueTicks:
    """Return what is due at `now`, when all ticks up to `handled` are done with.

    Ticks at most `ON_TIME_SECONDS` late are added. Of older ones `skip` adds none, `all` each of the last
    `MAX_CATCH_UP_SECONDS`, and `last` only the last tick of all. A clock that was set back by less than
    `ON_TIME_SECONDS` is waited for.
    """
    if now < handled:
        is_far = (handled - now) / MICROSECONDS > ON_TIME_SECONDS
        return DueTicks(now, went_back=True) if is_far else DueTicks(handled)
    first = schedule.next_tick(after=handled)
    if first is None or first > now:
        return DueTicks(handled)
    on_time_from = Instant(after(now, -ON_TIME_SECONDS) - 1)
    if first > on_time_from:
        return _added(schedule, handled, now)
    if schedule.catch_up == "all":
        begin = Instant(max(handled, after(now, -MAX_CATCH_UP_SECONDS)))
        return _added(schedule, begin, now, missed=_missed(schedule, handled, begin))
    if schedule.catch_up == "last":
        last = schedule.last_tick(after=handled, until=now)
        assert last is not None
        return _added(schedule, Instant(last - 1), last, missed=_missed(schedule, handled, Instant(last - 1)))
    return _added(schedule, on_time_from, now, missed=_missed(schedule, handled, on_time_from))


_Missed: TypeAlias = tuple[int, Instant | None, Instant | None]


def _missed(schedule: Schedule, begin: Instant, end: Instant) -> _Missed:
    """Return how many ticks in (`begin`, `end`] there are, and the first and the last of them."""
    found = list(islice(_up_to(schedule, begin, end), MAX_COUNTED))
    if not found:
        return 0, None, None
    last = found[-1] if len(found) < MAX_COUNTED else schedule.last_tick(after=found[-1], until=end)
    return len(found), found[0], last or found[-1]


def _added(schedule: Schedule, begin: Instant, end: Instant, *, missed: _Missed = (0, None, None)) -> DueTicks:
    """Return the ticks in (`begin`, `end`] as due, as many as one transaction adds."""
    ticks = tuple(islice(_up_to(schedule, begin, end), MAX_TICKS_AT_ONCE + 1))
    some = ticks[:MAX_TICKS_AT_ONCE]
    count, first, last = missed
    return DueTicks(some[-1] if some else max(begin, last or begin), some, count, first, last, len(ticks) > len(some))


def _up_to(schedule: Schedule, begin: Instant, end: Instant) -> Iterator[Instant]:
    for at in schedule.ticks(after=begin):
        if at > end:
            return
        yield at
