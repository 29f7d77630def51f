"""The queue's values as plain JSON objects, and back. Payloads are base64, instants microseconds. Pure.

The client reads with `*_of`, without checks, as it trusts its server; the server validates (`server/schemas.py`).
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, fields, replace
from operator import itemgetter
from typing import Final, Literal, TypeAlias, TypeVar, cast

from pydantic_core import PydanticSerializationError, to_json

from queue_core.admission import NO_TAG_LIMITS, Rate, TagLimits
from queue_core.attempts.attempt import Attempt, Failure, check_failure
from queue_core.clock import Instant
from queue_core.limits import (
    check_ahead_seconds,
    check_checkpoint,
    check_cursor,
    check_lease_seconds,
    check_progress,
    check_text,
)
from queue_core.rare_fields import check_rare_fields, has_rare_fields, rare_json, set_rare_json
from queue_core.stats import (
    FinishedLease,
    History,
    LiveLease,
    QueueStats,
    Samples,
    TagStats,
    WaitingTask,
    WorkerActivity,
)
from queue_core.task import NEWER_SETTINGS, Lease, NewTask, Progress, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import Added, Deletion, Observation, ObservationQuery, Page, Renewal
from queue_core.verbs.validation import check_filter, check_queue_spec, check_types

Json: TypeAlias = dict[str, object]

V = TypeVar("V")

_ALWAYS: Final = tuple(field.name for field in fields(Lease) if field.default is MISSING)
"""The fields of a lease that its JSON always has; rare fields and `checkpoint` only where the lease has them."""
_PLAIN_MEMBERS: Final = len(_ALWAYS)
_lease_fields = itemgetter(*_ALWAYS)
"""Returns fields by position: keyword arguments with names parsed from JSON are slow to match."""

StateName = Literal["ready", "delayed", "in_flight", "dead", "held"]
STATE_NAMES: dict[TaskState, StateName] = {
    TaskState.READY: "ready",
    TaskState.DELAYED: "delayed",
    TaskState.LEASED: "in_flight",
    TaskState.DEAD: "dead",
    TaskState.HELD: "held",
}
STATES = {name: state for state, name in STATE_NAMES.items()}


def body_bytes(body: Json) -> bytes:
    """Return a request's body. Raises `InvalidRequestError` for text that is not UTF-8."""
    try:
        return to_json(body)
    except PydanticSerializationError:
        for what, text in _texts("", body):
            check_text(what, text)
        raise


def _texts(what: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield all texts in a value, each with the name of its member."""
    if isinstance(value, str):
        yield what, value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _texts(name, member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _texts(what.removesuffix("s"), member)


def flat_json(value: object) -> Json:
    """Return a value of plain fields as JSON, by field name."""
    return {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]


def flat_of(kind: Callable[..., V], json: object) -> V:
    """Return the value that `flat_json` wrote."""
    return kind(**cast("Json", json))


def many_of(kind: Callable[..., V], json: object) -> list[V]:
    """Return a list of values that `flat_json` wrote."""
    return [kind(**item) for item in cast("list[Json]", json)]


def activities_of(json: object) -> list[WorkerActivity]:
    """Return workers' activity; the tags are absent from older servers."""
    found = many_of(WorkerActivity, json)
    return [one if one.tags is None else replace(one, tags=tuple(one.tags)) for one in found]


def payload_json(payload: bytes) -> str:
    """Return a payload as standard base64, without line breaks."""
    return b2a_base64(payload, newline=False).decode("ascii")


# -- tags -------------------------------------------------------------------------------------------------------------


def tags_json(tags: TagFilter) -> Json:
    """Return a tag filter as JSON; {} for any tag. Raises `InvalidRequestError` unless it is a valid filter."""
    check_filter(tags)
    if tags.kind == "any":
        return {}
    return {"kind": tags.kind, "tags": list(tags.tags)} if tags.tags else {"kind": tags.kind}


# -- tasks and leases -------------------------------------------------------------------------------------------------


def new_task_json(task: NewTask) -> Json:
    """Return a new task as JSON, without unset fields. Raises `InvalidRequestError` for a value that no queue takes."""
    check_types(task)
    json: Json = {"payload": b2a_base64(task.payload, newline=False).decode("ascii")}
    if task.name is not None:
        json["name"] = task.name
    if task.tag is not None:
        json["tag"] = task.tag
    if task.eta is not None:
        json["eta"] = task.eta
    if task.delay_seconds is not None:
        json["delay_seconds"] = task.delay_seconds
    if task.queue is not None:
        json["queue"] = task.queue
    if task.max_leases is not None:
        json["max_leases"] = task.max_leases
    if has_rare_fields(task):
        check_rare_fields(task)
        json.update(rare_json(task))
    if task.priority:
        json["priority"] = task.priority
    return json


def deletion_json(deletion: Deletion) -> Json:
    """Return a deletion as JSON."""
    if not deletion.then:
        return {"token": deletion.token}
    return {"token": deletion.token, "then": [new_task_json(task) for task in deletion.then]}


def added_of(json: object) -> list[Added]:
    """Return the outcomes of an add, in order."""
    return [Added(**item) for item in cast("list[Json]", json)]  # type: ignore[arg-type]


def leases_of(json: object) -> list[Lease]:
    """Return the granted leases."""
    leases = cast("list[Json]", json)
    for lease in leases:
        lease["payload"] = a2b_base64(cast("str", lease["payload"]))
    return [Lease(*_lease_fields(lease)) if len(lease) == _PLAIN_MEMBERS else _laden_lease(lease) for lease in leases]


def _laden_lease(json: Json) -> Lease:
    """Return a lease that has rare fields or a checkpoint."""
    return set_rare_json(Lease(*(*_lease_fields(json), None, _bytes_or_none(json.get("checkpoint")))), json)


def _bytes_or_none(text: object) -> bytes | None:
    return None if text is None else a2b_base64(cast("str", text))


def renewals_json(renewals: Sequence[Renewal], seconds: float | None) -> Json:
    """Return the body of a renew: bare tokens where nothing is reported, in the form that older servers know too."""
    if seconds is not None:
        check_lease_seconds(seconds)
    if all(one.progress is None and one.checkpoint is None and one.seconds == seconds for one in renewals):
        return {"tokens": [one.token for one in renewals], "seconds": seconds}
    for one in renewals:
        if one.seconds is not None:
            check_lease_seconds(one.seconds)
        if one.progress is not None:
            check_progress(one.progress.fraction, one.progress.text)
        if one.checkpoint is not None:
            check_checkpoint(one.checkpoint)
    return {"renewals": [_renewal_json(one) for one in renewals]}


def _renewal_json(renewal: Renewal) -> Json:
    json: Json = {"token": renewal.token}
    if renewal.seconds is not None:
        json["seconds"] = renewal.seconds
    if renewal.progress is not None:
        json["progress"] = flat_json(renewal.progress)
    if renewal.checkpoint is not None:
        json["checkpoint"] = payload_json(renewal.checkpoint)
    return json


def failure_json(failure: Failure) -> Json:
    """Return a failure as JSON. Raises `InvalidRequestError` unless it is a valid one."""
    check_failure(failure)
    return flat_json(failure)


def history_of(json: Json) -> History:
    """Return a page of ended leases."""
    return History(tuple(many_of(FinishedLease, json["leases"])), cast("int | None", json["next_before"]))


def task_of(json: object) -> StoredTask:
    """Return a task of a page."""
    shown = cast("Json", json)
    named, name, state, payload = (shown.pop(key) for key in ("named", "name", "state", "payload"))
    shown.pop("checkpoint_bytes", None)
    attempts, progress = cast("list[Json]", shown.pop("attempts", ())), cast("Json | None", shown.pop("progress", None))
    return StoredTask(
        checkpoint=_bytes_or_none(shown.pop("checkpoint", None)),
        **shown,  # type: ignore[arg-type]
        name=cast("str", name) if named else None,
        state=STATES[cast("StateName", state)],
        payload=a2b_base64(cast("str", payload)),
        attempts=tuple(Attempt(**one) for one in attempts),  # type: ignore[arg-type]
        progress=None if progress is None else Progress(**progress),  # type: ignore[arg-type]
    )


def page_of(json: Json) -> Page:
    """Return a page of tasks."""
    tasks = cast("list[object]", json["tasks"])
    return Page(tuple(task_of(task) for task in tasks), cast("int | None", json["next_after"]))


# -- statistics -------------------------------------------------------------------------------------------------------


def tag_stats_of(json: object) -> list[TagStats]:
    """Return the counts of some tags."""
    return [
        TagStats(cast("str | None", item["tag"]), flat_of(QueueStats, item["stats"]))
        for item in cast("list[Json]", json)
    ]


def query_json(query: ObservationQuery) -> Json:
    """Return the parameters of an observation as JSON. Raises `InvalidRequestError` for a number out of range."""
    check_cursor(query.after)
    check_ahead_seconds(query.ahead_seconds)
    return {
        "queue": query.queue,
        **tags_json(query.tags),
        "after": query.after,
        "workers": list(query.workers),
        "ahead_seconds": query.ahead_seconds,
    }


def observation_of(json: Json) -> Observation:
    """Return an observation."""
    samples = cast("Json", json["samples"])
    heard = json.get("heard")  # absent from older servers
    return Observation(
        Instant(cast("int", json["now"])),
        flat_of(QueueStats, json["stats"]),
        tuple(many_of(WaitingTask, json["waiting"])),
        Samples(
            tuple(many_of(FinishedLease, samples["finished"])),
            cast("int", samples["cursor"]),
            cast("bool", samples["missed"]),
        ),
        tuple(many_of(LiveLease, json["live"])),
        cast("dict[str, Instant]", json["seen"]),
        None if heard is None else tuple(activities_of(heard)),
        tuple(many_of(WaitingTask, json["upcoming"])),
        cast("str", json.get("held_by", "")),
        cast("bool", json.get("held_by_rate", False)),
    )


def queues_of(json: object) -> list[QueueSpec]:
    """Return queues as `queue_json` wrote them; an older server omits newer settings."""
    return [queue_of(item) for item in cast("list[Json]", json)]


def queue_of(json: Json) -> QueueSpec:
    """Return one queue."""
    emails = {name: tuple(cast("list[str]", json.get(name, ()))) for name in ("user_emails", "writer_emails")}
    limits = {"rate": _rate_of(json.get("rate")), "per_tag": _tag_limits_of(json.get("per_tag"))}
    return QueueSpec(**{**json, **emails, **limits})  # type: ignore[arg-type]


def _rate_of(json: object) -> Rate | None:
    return None if json is None else Rate(**cast("Json", json))  # type: ignore[arg-type]


def _tag_limits_of(json: object) -> TagLimits:
    if json is None:
        return NO_TAG_LIMITS
    found = cast("Json", json)
    return TagLimits(**{**found, "rate": _rate_of(found.get("rate"))})  # type: ignore[arg-type]


def settings_json(spec: QueueSpec) -> Json:
    """Return a queue's settings without its name and state: the body of a PUT.

    Those of its history and its limits are left out at their defaults, as older servers refuse them. Raises
    `InvalidRequestError` for a setting out of range.
    """
    check_queue_spec(spec)
    settings = queue_json(spec)
    for name in ("name", "paused", "moved_to"):
        del settings[name]
    for name, default in NEWER_SETTINGS.items():
        if getattr(spec, name) == default:
            del settings[name]
    return settings


def queue_json(spec: QueueSpec) -> Json:
    """Return a queue as JSON, its limits as objects."""
    return asdict(spec)
