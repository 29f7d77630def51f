"""`LocalSchedules`: the schedules of a store that the program opens itself."""

from collections.abc import Collection, Sequence

from queue_core.schedules.book import ScheduleChanges
from queue_core.schedules.report import AddedTick, ScheduleStatus, TickReport
from queue_core.schedules.schedule import Schedule
from queue_core.unit import schedules as schedule_verbs
from queue_core.unit.service import QueueService


class LocalSchedules:
    """The `Schedules` of an opened store."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    def list(self) -> "list[ScheduleStatus]":
        """See `Schedules.list`."""
        now = schedule_verbs.wall_clock(self._service.clock)
        return self._service.read(lambda work: schedule_verbs.list_schedules(work, now=now))

    def declare(self, schedules: Sequence[Schedule], *, keep: Collection[str] = ()) -> ScheduleChanges:
        """See `Schedules.declare`."""
        now = schedule_verbs.wall_clock(self._service.clock)
        return self._service.run(lambda work: schedule_verbs.declare_schedules(work, schedules, keep=keep, now=now))

    def add_ticks(self) -> TickReport:
        """See `Schedules.add_ticks`."""
        now = schedule_verbs.wall_clock(self._service.clock)
        return self._service.run(lambda work: schedule_verbs.add_ticks(work, now=now))

    def run(self, name: str) -> AddedTick:
        """See `Schedules.run`."""
        now = schedule_verbs.wall_clock(self._service.clock)
        return self._service.run(lambda work: schedule_verbs.run_schedule(work, name, now=now))

    def pause(self, name: str) -> ScheduleStatus:
        """See `Schedules.pause`."""
        now = schedule_verbs.wall_clock(self._service.clock)
        return self._service.run(lambda work: schedule_verbs.pause_schedule(work, name, now=now))

    def resume(self, name: str) -> ScheduleStatus:
        """See `Schedules.resume`."""
        now = schedule_verbs.wall_clock(self._service.clock)
        return self._service.run(lambda work: schedule_verbs.resume_schedule(work, name, now=now))
