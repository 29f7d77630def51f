"""Add the tasks of schedules: declare those that the settings and the applications have, and add each tick when due.

The store decides which ticks are due, by its own clock, and adds each once (`queue_core.unit.schedules`): so it does no
harm that another supervisor, which still believes to lead, does the same.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from queue_core.client.queue import Queues
from queue_core.clock import MICROSECONDS, Instant, seconds_between
from queue_core.errors import QueueError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.process.wording import counted, shown_clock
from queue_core.schedules.book import ScheduleChanges, schedule_of
from queue_core.schedules.report import ComingTick, MissedTicks, SkippedTicks, TickReport
from queue_core.schedules.schedule import MAX_COUNTED, Schedule

log = get_logger()

LOOK_SECONDS: Final = 1.0
"""Longest pause between two looks while there are schedules: a schedule may have been resumed elsewhere."""
IDLE_SECONDS: Final = 30.0
"""The same while there are none."""
RETRY_SECONDS: Final = 1.0
"""Pause after the store did not answer."""
AWAY_SECONDS: Final = 5.0
"""A supervisor that leads runs more often than that."""
SHOWN_NAMES: Final = 5
"""Names of schedules that one sentence has at most."""
MAX_PASSES: Final = 10
"""Calls of one `run`, each of which adds up to a hundred ticks of each schedule: the supervisor has other things to
do."""


class ScheduleTicks:
    """A `TickAdder` over one store. Belongs to one thread."""

    def __init__(self, queues: Queues, *, file: Sequence[Mapping[str, object]] = ()) -> None:
        """`file`: the schedules of the settings file."""
        self._queues = queues
        self._file = [_schedule(one) for one in file]
        self._apps: dict[str, list[Schedule] | None] = {}
        self._is_declared = False
        self._called_at = Monotonic(float("-inf"))
        self._due_at = Monotonic(float("-inf"))
        self._coming: tuple[ComingTick, ...] = ()
        self._seen_at = Monotonic(0.0)
        self._now = Instant(0)
        self._troubles: dict[str, str] = {}
        self._clashes: frozenset[str] = frozenset()

    def set_file(self, schedules: Sequence[Mapping[str, object]]) -> list[str]:
        """See `TickAdder.set_file`."""
        before = {one.name: one for one in self._file}
        self._file = [_schedule(one) for one in schedules]
        now = {one.name: one for one in self._file}
        self._declare_anew()
        return [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]

    def set_pools(self, pools: Collection[PoolSpec]) -> None:
        """See `TickAdder.set_pools`. Until an application was imported its schedules stay as they were declared."""
        apps = {pool.app for pool in pools if pool.app is not None}
        self._apps = {app: self._apps.get(app) for app in sorted(apps)}
        self._declare_anew()

    def set_application(self, app: str, schedules: Sequence[Mapping[str, object]]) -> None:
        """See `TickAdder.set_application`."""
        found = [_schedule(one) for one in schedules]
        if self._apps.get(app) != found:
            self._apps[app] = found
            self._declare_anew()

    @property
    def due_at(self) -> Monotonic:
        """See `TickAdder.due_at`."""
        return self._due_at

    def upcoming(self, pool: PoolSpec, *, within_seconds: float, now: Monotonic) -> list[float]:
        """Return in how many seconds the next ticks are whose tasks the pool will work on, soonest first."""
        passed = now - self._seen_at
        found = [
            seconds_between(self._now, one.tick) - passed
            for one in self._coming
            if one.queue == pool.queue and _takes(pool, one.tag)
        ]
        return sorted(seconds for seconds in found if 0 < seconds <= within_seconds)

    def run(self, *, now: Monotonic) -> None:
        """See `TickAdder.run`."""
        if now > self._called_at + AWAY_SECONDS:  # another supervisor may have led, and declared others
            self._declare_anew()
        self._called_at = now
        if now < self._due_at:
            return
        try:
            if not self._is_declared:
                self._declare()
            report = self._added()
        except StoreUnavailableError:
            self._due_at = Monotonic(now + RETRY_SECONDS)  # the source says it
            return
        except QueueError as error:
            self._due_at = Monotonic(now + IDLE_SECONDS)
            self._log_troubles({"": str(error)})
            return
        self._coming, self._now, self._seen_at = report.coming, report.now, now
        first = min((one.tick for one in report.coming), default=None)
        pause = IDLE_SECONDS if first is None and not report.troubles else LOOK_SECONDS
        if report.has_more:
            pause = 0.0
        elif first is not None and not report.troubles:
            pause = min(pause, max(0.0, (first - report.now) / MICROSECONDS))
        self._due_at = Monotonic(now + pause)

    def _declare_anew(self) -> None:
        self._is_declared, self._due_at = False, Monotonic(float("-inf"))

    def _declare(self) -> None:
        """Declare all schedules that are known; of two of one name the first, as the file's, is declared."""
        found = {one.name: one for one in self._file}
        clashes = set()
        for schedules in self._apps.values():
            for one in schedules or ():
                other = found.setdefault(one.name, one)
                if other is not one:
                    clashes.add(one.name)
                    if one.name not in self._clashes:
                        log.error(events.SCHEDULE_REFUSED, schedule=one.name, sentence=_clash(one, other))
        self._clashes = frozenset(clashes)
        unknown = [app for app, schedules in self._apps.items() if schedules is None]
        changes = self._queues.schedules.declare(list(found.values()), keep=unknown)
        self._is_declared = True
        if changes.is_any:
            log.info(
                events.SCHEDULES_DECLARED,
                added=list(changes.added),
                changed=list(changes.changed),
                removed=list(changes.removed),
                sentence=_declared(changes),
            )

    def _added(self) -> TickReport:
        """Add what is due, and tell it; a long list in several calls."""
        for _ in range(MAX_PASSES):
            report = self._queues.schedules.add_ticks()
            for one in report.added:
                if one.is_new:
                    log.info(events.SCHEDULE_ADDED, schedule=one.schedule, queue=one.queue, task=one.task)
            for missed in report.missed:
                log.warning(
                    events.SCHEDULE_MISSED,
                    schedule=missed.schedule,
                    queue=missed.queue,
                    count=missed.count,
                    sentence=missed_sentence(missed, now=report.now),
                )
            for skipped in report.skipped:
                log.info(
                    events.SCHEDULE_SKIPPED,
                    schedule=skipped.schedule,
                    queue=skipped.queue,
                    count=skipped.count,
                    task=skipped.task,
                    sentence=skipped_sentence(skipped, now=report.now),
                )
            if not report.has_more:
                break
        self._log_troubles({one.schedule: one.why for one in report.troubles})
        return report

    def _log_troubles(self, found: Mapping[str, str]) -> None:
        for schedule, why in found.items():
            if self._troubles.get(schedule) != why:
                log.error(events.SCHEDULE_TROUBLED, schedule=schedule, sentence=_trouble(schedule, why))
        for schedule in self._troubles.keys() - found.keys():
            log.info(
                events.SCHEDULE_RELIEVED, schedule=schedule, sentence=f"schedule {schedule}: ticks are added again"
            )
        self._troubles = dict(found)


def missed_sentence(missed: MissedTicks, *, now: Instant) -> str:
    """Describe ticks that were given up, and what became of them."""
    more = "more than " if missed.count >= MAX_COUNTED else ""
    rule = "only the last one was added" if missed.catch_up == "last" else "none of them was added"
    rule = "they are too old to be added" if missed.catch_up == "all" else rule
    ticks = f"{more}{_counted_ticks(missed, now=now)}"
    return f"schedule {missed.schedule}: nobody was there to add {ticks}: {rule} (catch_up: {missed.catch_up})"


def skipped_sentence(skipped: SkippedTicks, *, now: Instant) -> str:
    """Describe ticks that were skipped because they overlap, and the task that they overlap with."""
    ticks = _counted_ticks(skipped, now=now)
    why = f"{skipped.task} is still waiting or running"
    return f"schedule {skipped.schedule}: {ticks} added no task: {why} (overlap: skip)"


def _counted_ticks(ticks: MissedTicks | SkippedTicks, *, now: Instant) -> str:
    now_seconds = now / MICROSECONDS
    first, last = (shown_clock(at / MICROSECONDS, now_seconds=now_seconds) for at in (ticks.first, ticks.last))
    span = f"of {first}" if ticks.count == 1 else f"from {first} to {last}"
    return f"{counted(ticks.count, 'tick')} {span}"


def _trouble(schedule: str, why: str) -> str:
    return f"schedule {schedule}: ticks can't be added: {why}" if schedule else f"ticks can't be added: {why}"


def _declared(changes: ScheduleChanges) -> str:
    parts = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
    told = "; ".join(f"{kind} {listed(names)}" for kind, names in parts.items() if names)
    return f"schedules: {told}   (towline schedules)"


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    shown, more = ", ".join(names[:SHOWN_NAMES]), len(names) - SHOWN_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def _clash(one: Schedule, other: Schedule) -> str:
    return (
        f"schedule {one.name} is declared by {other.origin} and by {one.origin}, and the first one holds: "
        "give the other another name, @app.periodic(name=...)"
    )


def _takes(pool: PoolSpec, tag: str | None) -> bool:
    if pool.untagged:
        return tag is None
    return not pool.tags or tag in pool.tags


def _schedule(json: Mapping[str, object]) -> Schedule:
    return schedule_of(cast("Mapping[str, Any]", json))
