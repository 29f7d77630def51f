"""The endpoints of schedules: the form of their requests and responses, and their handlers."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Protocol, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError, UnknownScheduleError
from queue_core.schedules.book import MAX_SCHEDULES, ScheduleChanges
from queue_core.schedules.check import MAX_SCHEDULE_PAYLOAD_BYTES
from queue_core.schedules.report import AddedTick, ScheduleStatus, TickReport
from queue_core.schedules.schedule import CatchUp, Overlap, Schedule
from queue_core.server.schemas import RequestBody
from queue_core.server.state import ServerState
from queue_core.server.v1.handlers import EndpointCall, change, log_change
from queue_core.unit import schedules as schedule_verbs
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs.roles import Access

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MAX_BODY_BYTES = 16 << 20
"""Bytes of a declaration of all schedules."""


class ScheduleIn(RequestBody):
    """A schedule as it is declared: `cron`, or `every` so many seconds."""

    name: str = Field(examples=["nightly"])
    queue: str = Field(examples=["reports"])
    cron: str | None = Field(None, description="Five fields, or six with seconds in front.", examples=["0 3 * * *"])
    every: float | None = Field(None, description="Whole seconds, in [1, 31622400].")
    timezone: str = Field("UTC", description="The time zone of the clock that `cron` uses.", examples=["Europe/Vienna"])
    payload: str = Field("", description=f"Base64, at most {MAX_SCHEDULE_PAYLOAD_BYTES:,} bytes.")
    tag: str | None = None
    headers: dict[str, str] | None = None
    catch_up: CatchUp = Field("skip", description="The way in which missed ticks are made up for.")
    origin: str = Field("", description="Where it is declared: a file, or an application.")
    overlap: Overlap = Field(
        "queue", description="Whether a tick is skipped while the last tick's task is waiting or running."
    )
    max_leases: int | None = Field(None, description="Of each of its tasks; the queue's when left out.")

    def value(self) -> Schedule:
        """Return it as a value. Raises `InvalidRequestError` for a payload that is not base64."""
        try:
            payload = b64decode(self.payload, validate=True)
        except (Base64Error, ValueError) as error:
            raise InvalidRequestError(f"payload of schedule {self.name[:60]!a} is not base64: {error}") from None
        settings = self.model_dump(exclude={"payload"})
        return Schedule(**settings, payload=payload)


class DeclareSchedulesRequest(RequestBody):
    """All schedules that a supervisor knows; others disappear, but those of the origins `keep`."""

    schedules: tuple[ScheduleIn, ...] = Field(strict=False, max_length=MAX_SCHEDULES)
    keep: tuple[str, ...] = Field((), strict=False)


class ScheduleList(TypedDict):
    """All schedules, by name."""

    schedules: list[ScheduleStatus]


async def list_schedules(core: ServerState, call: EndpointCall) -> ScheduleList:
    now, caller = _now(core), call.principal

    def read(work: UnitOfWork) -> list[ScheduleStatus]:
        found = schedule_verbs.list_schedules(work, now=now)
        return [one for one in found if core.access.may(work, caller, one.queue, "look")]

    return {"schedules": await core.read(read)}


async def declare_schedules(core: ServerState, call: EndpointCall) -> ScheduleChanges:
    params, now = call.read(DeclareSchedulesRequest), _now(core)
    schedules = [one.value() for one in params.schedules]
    return await change(
        core,
        call,
        ScheduleChanges,
        lambda work: schedule_verbs.declare_schedules(work, schedules, keep=params.keep, now=now),
    )


async def add_ticks(core: ServerState, call: EndpointCall) -> TickReport:  # noqa: ARG001 - a handler
    now = _now(core)
    return await core.committer.run(lambda work: schedule_verbs.add_ticks(work, now=now))


async def run_schedule(core: ServerState, call: EndpointCall) -> AddedTick:
    return await _change_one(core, call, "run", "insert", AddedTick, schedule_verbs.run_schedule)


async def pause_schedule(core: ServerState, call: EndpointCall) -> ScheduleStatus:
    return await _change_one(core, call, "pause", "update", ScheduleStatus, schedule_verbs.pause_schedule)


async def resume_schedule(core: ServerState, call: EndpointCall) -> ScheduleStatus:
    return await _change_one(core, call, "resume", "update", ScheduleStatus, schedule_verbs.resume_schedule)


class _OfOneSchedule(Protocol[R_co]):
    """A verb of one schedule."""

    def __call__(self, work: UnitOfWork, name: str, *, now: Instant) -> R_co: ...


async def _change_one(
    core: ServerState, call: EndpointCall, action: str, access: Access, result: type[R], verb: _OfOneSchedule[R]
) -> R:
    now, name = _now(core), call.path["schedule"]
    await _check(core, call, access)
    done = await change(core, call, result, lambda work: verb(work, name, now=now))
    log_change(call, f"{action} schedule")
    return done


async def _check(core: ServerState, call: EndpointCall, access: Access) -> None:
    """Raise `UnknownScheduleError` for a schedule that the caller may not see, `PermissionDeniedError` for an access
    that it has not."""
    name, caller = call.path["schedule"], call.principal

    def check(work: UnitOfWork) -> None:
        known = schedule_verbs.read_book(work).schedules
        if name in known and not core.access.may(work, caller, known[name].queue, access):
            seen = [one for one in sorted(known) if core.access.may(work, caller, known[one].queue, "look")]
            if name in seen:
                core.access.check(work, caller, known[name].queue, access)
            raise UnknownScheduleError.among(name, seen[:5])

    if not core.access.sees_all(caller):
        await core.read(check)


def _now(core: ServerState) -> Instant:
    return schedule_verbs.wall_clock(core.service.clock)
