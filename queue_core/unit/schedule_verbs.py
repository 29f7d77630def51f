"""The verbs of schedules (ADR 133). Ticks are meant by the wall clock at the store: see `unit.schedules`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import TypedDict

from queue_core.clock import Instant, seconds_between
from queue_core.process.wording import shown_ahead
from queue_core.schedules.book import ScheduleChanges, schedule_json
from queue_core.schedules.check import check_schedule
from queue_core.schedules.report import (
    AddedTick,
    ComingTick,
    MissedTicks,
    ScheduleStatus,
    ScheduleTrouble,
    SkippedTicks,
    TickReport,
)
from queue_core.schedules.schedule import Schedule
from queue_core.unit import schedules
from queue_core.unit.verb import Change, Query
from queue_core.verbs import roles
from queue_core.verbs.wire import Json, many_of

if TYPE_CHECKING:
    from queue_core.unit.unit_of_work import UnitOfWork


class ScheduleList(TypedDict):
    """All schedules, by name."""

    schedules: list[ScheduleStatus]


@dataclass(frozen=True, slots=True)
class ListSchedules(Query[list[ScheduleStatus]]):
    """Return all schedules, by name."""

    method = "GET"
    path = "/v1/schedules"
    summary = "List all schedules, with their next and last ticks."
    operation = "list_schedules"
    permission, role, access = "schedules", roles.READ, "look"
    answers = ScheduleList

    def run(self, work: "UnitOfWork") -> list[ScheduleStatus]:
        return schedules.list_schedules(work, now=schedules.wall_clock(work.clock))

    @classmethod
    def result_of(cls, answer: Json) -> list[ScheduleStatus]:
        return many_of(ScheduleStatus, answer["schedules"])


@dataclass(frozen=True, slots=True)
class DeclareSchedules(Change[ScheduleChanges]):
    """Put these schedules in place of all others, but those of the origins `keep`; return the changes."""

    method = "PUT"
    path = "/v1/schedules"
    summary = "Declare all schedules of a supervisor."
    operation = "declare_schedules"
    permission, role = "declare-schedules", roles.ADMINISTER
    answers = ScheduleChanges

    schedules: Sequence[Schedule]
    keep: Collection[str] = ()

    def check(self) -> None:
        for schedule in self.schedules:
            check_schedule(schedule)

    def run(self, work: "UnitOfWork", _by: str) -> ScheduleChanges:
        now = schedules.wall_clock(work.clock)
        return schedules.declare_schedules(work, self.schedules, keep=self.keep, now=now)

    def body(self) -> Json:
        return {"schedules": [schedule_json(one) for one in self.schedules], "keep": sorted(self.keep)}

    @classmethod
    def result_of(cls, answer: Json) -> ScheduleChanges:
        return ScheduleChanges(**{kind: tuple(cast("list[str]", names)) for kind, names in answer.items()})


@dataclass(frozen=True, slots=True)
class AddTicks(Change[TickReport]):
    """Add the tasks of all ticks that are due. The name of a tick's task refuses a second one, so it needs no key."""

    path = "/v1/schedules/add-ticks"
    summary = "Add the tasks of due ticks."
    operation = "add_ticks"
    permission, role = "add-ticks", roles.ADMINISTER
    answers = TickReport
    is_keyed = False
    patience = "short"

    def run(self, work: "UnitOfWork", _by: str) -> TickReport:
        return schedules.add_ticks(work, now=schedules.wall_clock(work.clock))

    @classmethod
    def result_of(cls, answer: Json) -> TickReport:
        lists: dict[str, Callable[..., object]] = {
            "added": AddedTick,
            "missed": MissedTicks,
            "troubles": ScheduleTrouble,
            "coming": ComingTick,
            "skipped": SkippedTicks,  # an earlier version skips none
        }
        found = {name: tuple(many_of(kind, answer.get(name, ()))) for name, kind in lists.items()}
        return TickReport(**{**answer, **found})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RunSchedule(Change[AddedTick]):
    """Add a task of a schedule now, beside its ticks; also while it is paused."""

    path = "/v1/schedules/{schedule}/run"
    summary = "Add a task of a schedule now."
    operation = "run_schedule"
    permission, role, access = "run", roles.ADD | roles.Role.OPERATOR, "insert"
    answers = AddedTick
    audit = "run schedule"

    schedule: str

    def run(self, work: "UnitOfWork", _by: str) -> AddedTick:
        return schedules.run_schedule(work, self.schedule, now=schedules.wall_clock(work.clock))

    def sentence(self, result: AddedTick, _now: Instant) -> str:
        return f"added a task for schedule {self.schedule}: {result.task} in queue {result.queue}"


@dataclass(frozen=True, slots=True)
class PauseSchedule(Change[ScheduleStatus]):
    """Add no more ticks of a schedule until it is resumed, by whichever supervisor. Tasks that are there stay."""

    path = "/v1/schedules/{schedule}/pause"
    summary = "Add no more ticks."
    operation = "pause_schedule"
    permission, role, access = "pause", roles.OPERATE, "update"
    answers = ScheduleStatus
    audit = "pause schedule"

    schedule: str

    def run(self, work: "UnitOfWork", _by: str) -> ScheduleStatus:
        return schedules.pause_schedule(work, self.schedule, now=schedules.wall_clock(work.clock))

    def sentence(self, _result: object, _now: Instant) -> str:
        return f"schedule {self.schedule} paused: it adds no tasks until it is resumed"


@dataclass(frozen=True, slots=True)
class ResumeSchedule(Change[ScheduleStatus]):
    """Add a schedule's ticks again, from now on; those of its pause are not caught up."""

    path = "/v1/schedules/{schedule}/resume"
    summary = "Add ticks again."
    operation = "resume_schedule"
    permission, role, access = "resume", roles.OPERATE, "update"
    answers = ScheduleStatus
    audit = "resume schedule"

    schedule: str

    def run(self, work: "UnitOfWork", _by: str) -> ScheduleStatus:
        return schedules.resume_schedule(work, self.schedule, now=schedules.wall_clock(work.clock))

    def sentence(self, result: ScheduleStatus, now: Instant) -> str:
        ahead = "never" if result.next_tick is None else shown_ahead(seconds_between(now, result.next_tick))
        return f"schedule {self.schedule} resumed, next tick {ahead}"


SERVED: Final = (ListSchedules, DeclareSchedules, AddTicks, RunSchedule, PauseSchedule, ResumeSchedule)
"""Those that a server serves as they say."""
