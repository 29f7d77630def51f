"""`HttpSchedules`: the schedules of a server's store."""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar, cast

from queue_core.client.http.caller import HttpCaller, quoted
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
from queue_core.verbs.wire import Json

T = TypeVar("T")


class HttpSchedules:
    """The `Schedules` of a server. Thread-safe."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(self) -> "list[ScheduleStatus]":
        """See `Schedules.list`."""
        return _many(ScheduleStatus, self._caller.get("/v1/schedules")["schedules"])

    def declare(self, schedules: Sequence[Schedule], *, keep: Collection[str] = ()) -> ScheduleChanges:
        """See `Schedules.declare`."""
        body: Json = {"schedules": [schedule_json(check_schedule(one)) for one in schedules], "keep": sorted(keep)}
        answer = self._caller.call("PUT", "/v1/schedules", body, repeat="keyed")
        return ScheduleChanges(**{kind: tuple(cast("list[str]", names)) for kind, names in answer.items()})

    def add_ticks(self) -> TickReport:
        """See `Schedules.add_ticks`. Without a key: the name of a tick's task refuses a second one."""
        answer: dict[str, Any] = self._caller.post("/v1/schedules/add-ticks", {}, repeat="safe", patience="short")
        return TickReport(
            answer["now"],
            tuple(_many(AddedTick, answer["added"])),
            tuple(_many(MissedTicks, answer["missed"])),
            tuple(_many(ScheduleTrouble, answer["troubles"])),
            tuple(_many(ComingTick, answer["coming"])),
            answer["went_back"],
            answer["has_more"],
            tuple(_many(SkippedTicks, answer.get("skipped", ()))),  # an earlier version skips none
        )

    def run(self, name: str) -> AddedTick:
        """See `Schedules.run`."""
        return _one(AddedTick, self._caller.post(_path(name, "run"), {}, repeat="keyed"))

    def pause(self, name: str) -> ScheduleStatus:
        """See `Schedules.pause`."""
        return _one(ScheduleStatus, self._caller.post(_path(name, "pause"), {}, repeat="keyed"))

    def resume(self, name: str) -> ScheduleStatus:
        """See `Schedules.resume`."""
        return _one(ScheduleStatus, self._caller.post(_path(name, "resume"), {}, repeat="keyed"))


def _path(name: str, verb: str) -> str:
    return f"/v1/schedules/{quoted(name)}/{verb}"


def _one(kind: type[T], json: object) -> T:
    return kind(**cast("dict[str, Any]", json))


def _many(kind: type[T], json: object) -> "list[T]":
    return [_one(kind, one) for one in cast("list[object]", json)]
