"""The endpoints of schedules: the form of their requests and responses, and their handlers."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any, Final

from pydantic import Field

from queue_core.errors import InvalidRequestError, UnknownScheduleError
from queue_core.schedules.book import MAX_SCHEDULES
from queue_core.schedules.check import MAX_SCHEDULE_PAYLOAD_BYTES
from queue_core.schedules.report import ScheduleStatus
from queue_core.schedules.schedule import CatchUp, Overlap, Schedule
from queue_core.server.schemas import RequestBody, response
from queue_core.server.state import ServerState
from queue_core.server.v1.endpoint import Endpoint
from queue_core.server.v1.handlers import EndpointCall
from queue_core.server.v1.verb_endpoints import Served, endpoint_of
from queue_core.unit.schedule_verbs import (
    AddTicks,
    DeclareSchedules,
    ListSchedules,
    PauseSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleList,
)
from queue_core.unit.schedules import read_book
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.unit.verb import Verb

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


def read_declaration(call: EndpointCall) -> DeclareSchedules:
    given = call.read(DeclareSchedulesRequest)
    return DeclareSchedules([one.value() for one in given.schedules], given.keep)


async def list_schedules(core: ServerState, call: EndpointCall) -> ScheduleList:
    caller = call.principal

    def read(work: UnitOfWork) -> list[ScheduleStatus]:
        found = ListSchedules().run(work)
        return [one for one in found if core.access.may(work, caller, one.queue, "look")]

    return {"schedules": await core.read(read)}


async def check_schedule_access(core: ServerState, call: EndpointCall, verb: Verb[Any]) -> None:
    """Raise `UnknownScheduleError` for a schedule that the caller may not see, `PermissionDeniedError` for an access
    that it has not."""
    name, caller, access = call.path["schedule"], call.principal, verb.access
    assert access is not None

    def check(work: UnitOfWork) -> None:
        known = read_book(work).schedules
        if name in known and not core.access.may(work, caller, known[name].queue, access):
            seen = [one for one in sorted(known) if core.access.may(work, caller, known[one].queue, "look")]
            if name in seen:
                core.access.check(work, caller, known[name].queue, access)
            raise UnknownScheduleError.among(name, seen[:5])

    if not core.access.sees_all(caller):
        await core.read(check)


_OF_ONE: Final[Served[Any]] = Served(before=check_schedule_access)
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        ListSchedules.path,
        ListSchedules.summary,
        ListSchedules.permission,
        list_schedules,
        None,
        response(ScheduleList),
    ),
    endpoint_of(DeclareSchedules, Served(DeclareSchedulesRequest, read_declaration, max_body_bytes=MAX_BODY_BYTES)),
    endpoint_of(AddTicks, Served()),
    *(endpoint_of(kind, _OF_ONE) for kind in (RunSchedule, PauseSchedule, ResumeSchedule)),
)
