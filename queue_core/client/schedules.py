"""The verbs of a store's schedules, opened here or at a server."""

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from queue_core.schedules.book import ScheduleChanges
from queue_core.schedules.report import AddedTick, ScheduleStatus, TickReport
from queue_core.schedules.schedule import Schedule
from queue_core.unit import schedule_verbs
from queue_core.unit.verb import Verb

__all__ = ["AddedTick", "ScheduleChanges", "ScheduleStatus", "Schedules", "TickReport"]  # with its verbs' results

T = TypeVar("T")


class CarryOut(Protocol):
    """Carries out a verb of `unit`, and returns its result."""

    def __call__(self, verb: Verb[T], /) -> T: ...


class Schedules:
    """The schedules of a store, opened here or at a server."""

    def __init__(self, call: CarryOut) -> None:
        self._call = call

    def list(self) -> "list[ScheduleStatus]":
        """Return all schedules, by name."""
        return self._call(schedule_verbs.ListSchedules())

    def declare(self, schedules: Sequence[Schedule], *, keep: Collection[str] = ()) -> ScheduleChanges:
        """Put these schedules in place of all others, but those of the origins `keep`; return the changes.

        A supervisor does that for its settings file and its applications. Raises `InvalidRequestError`.
        """
        return self._call(schedule_verbs.DeclareSchedules(schedules, keep))

    def add_ticks(self) -> TickReport:
        """Add the tasks of all ticks that are due. Any number of callers may do that: each tick is added once."""
        return self._call(schedule_verbs.AddTicks())

    def run(self, name: str) -> AddedTick:
        """Add a task of a schedule now, beside its ticks. Raises `UnknownScheduleError`."""
        return self._call(schedule_verbs.RunSchedule(name))

    def pause(self, name: str) -> ScheduleStatus:
        """Add no more ticks of a schedule until it is resumed. Raises `UnknownScheduleError`."""
        return self._call(schedule_verbs.PauseSchedule(name))

    def resume(self, name: str) -> ScheduleStatus:
        """Add a schedule's ticks again, from now on. Raises `UnknownScheduleError`."""
        return self._call(schedule_verbs.ResumeSchedule(name))
