"""The settings of schedules: the tasks that are added at recurring times. Reads no clock."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic_core import to_json

from queue_core.config.messages import SettingProblem, did_you_mean
from queue_core.config.units import Seconds, format_seconds, parse_seconds
from queue_core.errors import QueueError
from queue_core.limits import MAX_QUEUE_NAME_CHARACTERS, check_headers, check_tag
from queue_core.schedules.check import check_name, check_payload_size
from queue_core.schedules.schedule import ON_TIME_SECONDS, CatchUp, Overlap, Schedule
from queue_core.schedules.times import MAX_EVERY_SECONDS, check_cron, check_every, known_zones


def check_zone(value: str) -> str:
    """Return the name of a time zone. Raises `ValueError` for any other text, with the nearest name."""
    if value not in known_zones():
        meant = did_you_mean(value, known_zones())
        raise ValueError(f"{value}: no such time zone{meant}; write UTC, Europe/Berlin ...")
    return value


def _tag(value: str) -> str:
    try:
        check_tag(value)
    except QueueError as error:
        raise ValueError(str(error)) from None
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    try:
        check_headers(value)
    except QueueError as error:
        raise ValueError(str(error)) from None
    return value


def _small(value: JsonValue) -> JsonValue:
    check_payload_size(payload_bytes(value))
    return value


def payload_bytes(value: JsonValue) -> bytes:
    """Return a payload as the file has it: text as it is, anything else as JSON; none is empty."""
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else to_json(value)


Cron = Annotated[str, AfterValidator(check_cron)]
"""A cron expression, as in crontab(5)."""
TimeZone = Annotated[str, AfterValidator(check_zone)]
"""The name of a time zone, such as Europe/Berlin."""


class ScheduleSettings(BaseModel):
    """One schedule under `schedules:`; its name is its key. Its queue gets a task at each tick."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queue: str = Field(max_length=MAX_QUEUE_NAME_CHARACTERS, description="The queue that gets its tasks.")
    cron: Cron | None = Field(
        default=None,
        examples=["0 3 * * *"],
        description="When it ticks, as in crontab(5); a sixth field in front is of seconds.",
    )
    every: Annotated[Seconds, AfterValidator(check_every)] | None = Field(
        default=None, description=f"Time between ticks in place of cron: 1s to {format_seconds(MAX_EVERY_SECONDS)}."
    )
    timezone: TimeZone = Field(
        default="UTC", examples=["Europe/Vienna"], description="The time zone of the wall clock that cron uses."
    )
    payload: Annotated[JsonValue, AfterValidator(_small), WithJsonSchema({})] = Field(
        default=None, description="The payload of its tasks: text as it is, anything else as JSON."
    )
    tag: Annotated[str, AfterValidator(_tag)] | None = Field(default=None, description="The tag of its tasks.")
    headers: Annotated[dict[str, str], AfterValidator(_headers)] | None = Field(
        default=None, description="Text by name that its tasks carry."
    )
    catch_up: CatchUp = Field(
        default="skip",
        description=f"Of ticks more than {format_seconds(ON_TIME_SECONDS)} late: add none, the last one, or all.",
    )
    overlap: Overlap = Field(
        default="queue",
        description="While the last tick's task is waiting or running: queue adds the next tick's too, skip does not.",
    )

    def schedule(self, name: str, *, origin: str) -> Schedule:
        """Return these settings as a `Schedule`."""
        return Schedule(
            name,
            self.queue,
            self.cron,
            self.every,
            self.timezone,
            payload_bytes(self.payload),
            self.tag,
            self.headers,
            self.catch_up,
            origin,
            overlap=self.overlap,
        )


def schedule_relations(schedules: Mapping[str, object], queues: object) -> list[SettingProblem]:
    """Return the problems of schedules' names, of their queues, and of cron beside every."""
    known = [str(name) for name in queues] if isinstance(queues, Mapping) else []
    problems: list[SettingProblem] = []
    for name, settings in schedules.items():
        path = ("schedules", str(name))
        try:
            check_name(str(name))
        except ValueError as error:
            problems.append(SettingProblem(path, str(error)))
        if not isinstance(settings, Mapping):
            continue
        cron, every, queue = settings.get("cron"), settings.get("every"), settings.get("queue")
        if cron is None and every is None:
            problems.append(SettingProblem(path, 'give cron, such as cron: "0 3 * * *", or every, such as every: 10s'))
        elif cron is not None and every is not None:
            problems.append(SettingProblem((*path, "every"), "give either cron or every, not both"))
        if every is not None and "timezone" in settings and _is_duration(every):
            why = "every counts from 1970 in UTC, so a time zone says nothing: leave it out, or give cron"
            problems.append(SettingProblem((*path, "timezone"), why))
        if isinstance(queue, str) and queue not in known:
            meant = did_you_mean(queue, known)
            fix = "" if meant else f"; write it there: `queues: {{{queue}: {{}}}}`"
            problems.append(SettingProblem((*path, "queue"), f"there is no queue '{queue}' under queues{meant}{fix}"))
    return problems


def _is_duration(value: object) -> bool:
    try:
        parse_seconds(value)
    except ValueError:
        return False
    return True
