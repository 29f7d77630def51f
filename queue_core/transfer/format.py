"""The lines of an export: a header, one line per held name and task, and a footer that proves completeness. Pure.

A payload is text under `payload` when it is UTF-8, else base64 under `payload_base64`; default values are left out.
"""

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal, TypeAlias, TypeVar, cast

from pydantic_core import from_json, to_json

from queue_core import limits
from queue_core.admission import NO_TAG_LIMITS, Rate, TagLimits
from queue_core.attempts.attempt import (
    MAX_ATTEMPTS,
    MAX_ERROR_CHARACTERS,
    MAX_HOST_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_PATH_CHARACTERS,
    MAX_PLACE_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    WORDS,
    Attempt,
    AttemptOutcome,
)
from queue_core.clock import NEVER, Instant
from queue_core.errors import InvalidRequestError
from queue_core.rare_fields import FIELDS, rare_json, set_rare_json
from queue_core.task import NEWER_SETTINGS, Progress, QueueSpec, StoredTask, TaskState
from queue_core.verbs import HeldName
from queue_core.verbs.validation import check_queue_spec

MAX_NUMBER = 10**17
"""Limit on instants and ids, as a token has 18 digits for each. In microseconds it is the year 5138."""

T = TypeVar("T")

_REQUIRED = object()


class BadFieldError(Exception):
    """A field is invalid: its name, the problem and the valid values. The reader adds the file and the line."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RecordFields:
    """The fields of a JSON object, taken out one by one and checked; `end` refuses the rest."""

    __slots__ = ("_left",)

    def __init__(self, json: object) -> None:
        """Raises `BadFieldError` unless `json` is an object."""
        if not isinstance(json, dict):
            raise BadFieldError("the line", f"must be a JSON object: {_shown(json)}")
        self._left: dict[str, object] = json

    def has(self, name: str) -> bool:
        """Return whether the field is present and not taken yet."""
        return name in self._left

    def is_null(self, name: str) -> bool:
        """Take the field if it is null; return whether it was."""
        if self._left.get(name, _REQUIRED) is not None:
            return False
        del self._left[name]
        return True

    def text(self, name: str, default: object = _REQUIRED, *, most: int) -> str:
        """Take a string of at most `most` characters."""
        value = self._take(name, default)
        if type(value) is not str:
            raise BadFieldError(name, f"must be a string: {_shown(value)}")
        if len(value) > most:
            raise BadFieldError(name, f"must have at most {most} characters: {len(value)}; shorten it")
        return value

    def number(self, name: str, default: object = _REQUIRED, *, least: int = 0, most: int = MAX_NUMBER) -> int:
        """Take a whole number in [`least`, `most`]."""
        value = self._take(name, default)
        if type(value) is not int:
            raise BadFieldError(name, f"must be a whole number: {_shown(value)}")
        if not least <= value <= most:
            raise BadFieldError(name, f"must be in [{least}, {most}]: {value}")
        return value

    def seconds(self, name: str, default: object = _REQUIRED) -> float:
        """Take a duration in seconds, 0 or more."""
        value = self._take(name, default)
        if type(value) not in (int, float) or not 0 <= cast("float", value) <= MAX_NUMBER:
            raise BadFieldError(name, f"must be seconds, 0 or more: {_shown(value)}")
        return float(cast("float", value))

    def flag(self, name: str, default: object = _REQUIRED) -> bool:
        """Take a boolean."""
        value = self._take(name, default)
        if type(value) is not bool:
            raise BadFieldError(name, f"must be true or false: {_shown(value)}")
        return value

    def many(self, name: str, default: object = _REQUIRED) -> list[object]:
        """Take a list."""
        value = self._take(name, default)
        if not isinstance(value, list):
            raise BadFieldError(name, f"must be a list: {_shown(value)}")
        return value

    def any(self, name: str) -> object:
        """Take a value of any kind."""
        return self._take(name, _REQUIRED)

    def end(self) -> None:
        """Raise `BadFieldError` if a field was not taken."""
        for name in self._left:
            raise BadFieldError(name, "is not a field of this kind of line; leave it out, or upgrade towline")

    def _take(self, name: str, default: object) -> object:
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise BadFieldError(name, "is missing")
        return value


def checked(field: str, check: Callable[[T], object], value: T) -> T:
    """Return the value if a check of `limits` accepts it; else raise `BadFieldError`."""
    try:
        check(value)
    except InvalidRequestError as error:
        raise BadFieldError(field, str(error)) from None
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


FORMAT: Final = "towline-export"
VERSION: Final = 1
MAX_HEADER_BYTES: Final = 8 << 20
"""Limit on the first line, so that little is read of a file that is no export."""
MAX_LINE_BYTES: Final = 88 << 20
"""Limit on each later line: base64 takes 4/3 of the largest payload. Text of up to `MAX_TEXT_BYTES` grows sixfold if
all its characters are escaped (`\\u0001`)."""
MAX_TEXT_BYTES: Final = limits.MAX_PAYLOAD_BYTES
"""Payloads of up to so many bytes are written as text where they are text."""
MAX_SPENT: Final = 10_000

STATE_NAMES: Final = {state: state.name.lower().replace("leased", "in_flight") for state in TaskState}
_STATES: Final = {name: state for state, name in STATE_NAMES.items()}


_LEFT_OUT: Final = frozenset({"lease_calls_per_second", "user_emails", "writer_emails", "mode"})


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: the export's id, its time, its source and the settings of its queues."""

    id: str
    at: Instant
    source: str
    queues: tuple[QueueSpec, ...]


@dataclass(frozen=True, slots=True)
class NameLine:
    """A held name of a queue."""

    queue: str
    held: HeldName


@dataclass(frozen=True, slots=True)
class Footer:
    """The last line: the number of lines of each kind, and the checksum of all bytes before it."""

    tasks: int
    names: int
    sha256: str


Record: TypeAlias = Header | NameLine | StoredTask | Footer


def header_line(header: Header) -> bytes:
    """Return the line of a header."""
    queues = [
        {
            field.name: asdict(value) if isinstance(value, Rate | TagLimits) else value
            for field in fields(spec)
            if field.name != "moved_to"
            and ((value := getattr(spec, field.name)) or field.name not in _LEFT_OUT)
            and (field.name not in NEWER_SETTINGS or value != NEWER_SETTINGS[field.name])
        }
        for spec in header.queues
    ]
    members = {"format": FORMAT, "version": VERSION, "id": header.id, "at": header.at, "source": header.source}
    return to_json({"kind": "header", **members, "queues": queues}) + b"\n"


def name_line(queue: str, held: HeldName) -> bytes:
    """Return the line of a held name."""
    return to_json({"kind": "name", "queue": queue, "name": held.name, "until": held.until}) + b"\n"


def task_line(task: StoredTask) -> bytes:
    """Return the line of a task."""
    json: dict[str, object] = {
        "kind": "task",
        "queue": task.queue,
        "id": task.id,
        "state": STATE_NAMES[task.state],
        "eta": task.eta,
        "added_at": task.added_at,
    }
    if task.ready_at != task.eta:
        json["ready_at"] = task.ready_at
    if task.name is not None:
        json["name"] = task.name
    if task.tag is not None:
        json["tag"] = task.tag
    for name in ("leases", "leased_at", "worker", "reason", "spent", "max_leases"):
        value = getattr(task, name)
        if value:
            json[name] = value
    json.update(rare_json(task))
    if task.priority:
        json["priority"] = task.priority
    if task.attempts:
        json["attempts"] = [_attempt_json(attempt) for attempt in task.attempts]
    if task.progress is not None:
        json["progress"] = {"fraction": task.progress.fraction, "text": task.progress.text}
    if task.checkpoint is not None:
        json["checkpoint_base64"] = b2a_base64(task.checkpoint, newline=False).decode("ascii")
    try:
        if len(task.payload) > MAX_TEXT_BYTES:
            raise ValueError  # noqa: TRY301 - as one that is not text
        json["payload"] = task.payload.decode()
    except ValueError:
        json["payload_base64"] = b2a_base64(task.payload, newline=False).decode("ascii")
    return to_json(json) + b"\n"


def _attempt_json(attempt: Attempt) -> dict[str, object]:
    values = {field.name: getattr(attempt, field.name) for field in fields(attempt)}
    return {name: value for name, value in values.items() if value != ""}


def footer_line(footer: Footer) -> bytes:
    """Return the last line of an export."""
    return to_json({"kind": "end", "tasks": footer.tasks, "names": footer.names, "sha256": footer.sha256}) + b"\n"


def record_of(line: bytes, *, now: Instant) -> Record:
    """Return the validated value of a line. Raises `BadFieldError`.

    `now`: an eta may not be further ahead of it than an add allows.
    """
    try:
        json = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise BadFieldError("the line", f"is not JSON: {error}") from None
    found = RecordFields(json)
    kind = found.text("kind", most=20)
    if kind == "task":
        record: Record = _task(found, now=now)
    elif kind == "name":
        record = _name(found)
    elif kind == "header":
        record = _header(found)
    elif kind == "end":
        record = Footer(found.number("tasks"), found.number("names"), found.text("sha256", most=64))
    else:
        raise BadFieldError("kind", f"must be header, name, task or end: {kind!r}")
    found.end()
    return record


def _header(found: RecordFields) -> Header:
    kind = found.text("format", most=40)
    if kind != FORMAT:
        raise BadFieldError("format", f"must be {FORMAT!r}: {kind!r}; give a file that `towline export` wrote")
    version = found.number("version")
    if version != VERSION:
        raise BadFieldError("version", f"must be {VERSION}: {version}; upgrade towline, or export with this one")
    export_id = found.text("id", most=64)
    if not (export_id.isascii() and export_id.isalnum()):
        raise BadFieldError("id", f"must be 1 to 64 letters and digits: {export_id!r}")
    at, source = Instant(found.number("at")), found.text("source", most=4096)
    queues = tuple(_spec(RecordFields(each), number) for number, each in enumerate(found.many("queues")))
    names = [spec.name for spec in queues]
    if len(set(names)) != len(names):
        raise BadFieldError("queues", f"must have distinct names: {', '.join(names)}")
    return Header(export_id, at, source, queues)


def _spec(found: RecordFields, number: int) -> QueueSpec:
    try:
        max_leases = None if found.is_null("max_leases") else _bound(found, "max_leases", limits.MAX_LEASES)
        on_exhausted = found.text("on_exhausted", most=20)
        if on_exhausted not in ("dead", "delete"):
            raise BadFieldError("on_exhausted", f"must be dead or delete: {on_exhausted!r}")  # noqa: TRY301
        spec = QueueSpec(
            found.text("name", most=limits.MAX_QUEUE_NAME_CHARACTERS),
            found.seconds("lease_seconds"),
            found.seconds("max_lease_seconds"),
            max_leases,
            found.seconds("retry_min_seconds"),
            found.seconds("retry_max_seconds"),
            "dead" if on_exhausted == "dead" else "delete",
            found.seconds("name_retention_seconds"),
            _optional(found, "lease_calls_per_second", limits.MAX_LEASE_CALLS_PER_SECOND),
            _emails(found, "user_emails"),
            _emails(found, "writer_emails"),
            _mode(found),
            found.number("history_keep", NEWER_SETTINGS["history_keep"], most=limits.MAX_HISTORY_LEASES),
            found.seconds("history_seconds", NEWER_SETTINGS["history_seconds"]),
            _optional(found, "max_in_flight", limits.MAX_IN_FLIGHT),
            _rate(found),
            _tag_limits(found),
            found.number("max_payload_bytes", NEWER_SETTINGS["max_payload_bytes"], most=limits.LARGEST_PAYLOAD_BYTES),
            found.seconds("max_eta_seconds", NEWER_SETTINGS["max_eta_seconds"]),
            found.text("label", "", most=limits.MAX_LABEL_CHARACTERS),
            paused=found.flag("paused"),
        )
        found.end()
    except BadFieldError as error:
        raise BadFieldError(f"queues[{number}].{error.field}", error.problem) from None
    return checked(f"queues[{number}]", check_queue_spec, spec)


def _rate(found: RecordFields) -> Rate | None:
    if not found.has("rate") or found.is_null("rate"):
        return None
    inner = RecordFields(found.any("rate"))
    rate = Rate(inner.seconds("per_second"), _bound(inner, "burst", limits.MAX_BURST))
    inner.end()
    return rate


def _tag_limits(found: RecordFields) -> TagLimits:
    if not found.has("per_tag"):
        return NO_TAG_LIMITS
    inner = RecordFields(found.any("per_tag"))
    max_in_flight = None if inner.is_null("max_in_flight") else _bound(inner, "max_in_flight", limits.MAX_IN_FLIGHT)
    found_limits = TagLimits(max_in_flight, _rate(inner), inner.flag("fair"))
    inner.end()
    return found_limits


def _mode(found: RecordFields) -> Literal["pull", "push"]:
    mode = found.text("mode", most=20) if found.has("mode") else "pull"
    if mode not in ("pull", "push"):
        raise BadFieldError("mode", f"must be pull or push: {mode!r}")
    return "push" if mode == "push" else "pull"


def _bound(found: RecordFields, name: str, most: int) -> int:
    return found.number(name, least=1, most=most)


def _optional(found: RecordFields, name: str, most: int) -> int | None:
    return _bound(found, name, most) if found.has(name) else None


def _emails(found: RecordFields, name: str) -> tuple[str, ...]:
    emails = found.many(name, [])
    if not all(type(email) is str for email in emails):
        raise BadFieldError(name, "must be a list of strings")
    return tuple(cast("list[str]", emails))


def _name(found: RecordFields) -> NameLine:
    queue = found.text("queue", most=limits.MAX_QUEUE_NAME_CHARACTERS)
    name = checked("name", limits.check_task_name, found.text("name", most=limits.MAX_TASK_NAME_CHARACTERS))
    return NameLine(queue, HeldName(name, Instant(found.number("until"))))


def _task(found: RecordFields, *, now: Instant) -> StoredTask:
    queue = found.text("queue", most=limits.MAX_QUEUE_NAME_CHARACTERS)
    state_name = found.text("state", most=20)
    state = _STATES.get(state_name)
    if state is None:
        raise BadFieldError("state", f"must be one of {', '.join(_STATES)}: {state_name!r}")
    eta = Instant(found.number("eta"))
    if eta > now:
        checked("eta", lambda value: limits.check_eta(value, now=now, most_seconds=limits.FARTHEST_ETA_SECONDS), eta)
    name = tag = None
    if found.has("name"):
        name = checked("name", limits.check_task_name, found.text("name", most=limits.MAX_TASK_NAME_CHARACTERS))
    if found.has("tag"):
        tag = checked("tag", limits.check_tag, found.text("tag", most=limits.MAX_TAG_BYTES))
    ready_at = Instant(found.number("ready_at", eta))
    if ready_at != eta and state is not TaskState.LEASED:
        raise BadFieldError("ready_at", f"must be the eta of a task that is not in flight: {ready_at}; leave it out")
    was_leased = state is TaskState.LEASED or found.has("leased_at") or found.has("leases") or found.has("spent")
    leases, leased_at, worker, spent = _leased(found, state) if was_leased else (0, NEVER, "", ())
    task = StoredTask(
        found.number("id", least=1),
        queue,
        _payload(found),
        eta,
        Instant(found.number("added_at")),
        name,
        tag,
        state,
        leases,
        leased_at,
        ready_at,
        worker,
        found.text("reason", "", most=limits.MAX_REASON_CHARACTERS),
        spent,
        _optional(found, "max_leases", limits.MAX_LEASES),
        None,
        _attempts(found),
        _progress(found),
        _checkpoint(found),
        found.number("priority", 0, most=limits.MAX_PRIORITY),
    )
    return set_rare_json(task, _rare(found))


def _leased(found: RecordFields, state: TaskState) -> tuple[int, Instant, str, tuple[Instant, ...]]:
    """Return the fields of a task that was leased or postponed: leases, last grant, worker, spent ends."""
    is_granted = state is TaskState.LEASED or found.has("leases")
    spent = found.many("spent", [])
    if len(spent) > MAX_SPENT or not all(type(end) is int and 0 <= end <= MAX_NUMBER for end in spent):
        raise BadFieldError("spent", f"must be at most {MAX_SPENT} instants: {len(spent)} items")
    return (
        found.number("leases", 0, least=1 if state is TaskState.LEASED else 0, most=limits.MAX_LEASES),
        Instant(found.number("leased_at", least=1)) if is_granted or found.has("leased_at") else NEVER,
        found.text("worker", "", most=limits.MAX_WORKER_CHARACTERS),
        tuple(cast("list[Instant]", spent)),
    )


def _rare(found: RecordFields) -> dict[str, object]:
    return {
        field.name: checked(field.name, field.check, found.any(field.name)) for field in FIELDS if found.has(field.name)
    }


def _attempts(found: RecordFields) -> tuple[Attempt, ...]:
    listed = found.many("attempts", [])
    if len(listed) > MAX_ATTEMPTS:
        raise BadFieldError("attempts", f"must be at most {MAX_ATTEMPTS}: {len(listed)}; keep the last ones")
    return tuple(_attempt(one, number) for number, one in enumerate(listed))


def _attempt(json: object, number: int) -> Attempt:
    try:
        found = RecordFields(json)
        attempt = Attempt(
            found.number("lease_number", least=1, most=limits.MAX_LEASES),
            found.text("worker", "", most=limits.MAX_WORKER_CHARACTERS),
            Instant(found.number("began_at")),
            Instant(found.number("ended_at")),
            _outcome(found),
            found.text("error", "", most=MAX_ERROR_CHARACTERS),
            found.text("message", "", most=MAX_MESSAGE_CHARACTERS),
            found.text("place", "", most=MAX_PLACE_CHARACTERS),
            found.text("host", "", most=MAX_HOST_CHARACTERS),
            found.text("error_path", "", most=MAX_PATH_CHARACTERS),
            found.text("traceback", "", most=MAX_TRACEBACK_CHARACTERS),
        )
        found.end()
    except BadFieldError as error:
        raise BadFieldError(f"attempts[{number}].{error.field}", error.problem) from None
    return attempt


def _outcome(found: RecordFields) -> AttemptOutcome:
    outcome = found.text("outcome", most=20)
    if outcome not in WORDS:
        raise BadFieldError("outcome", f"must be one of {', '.join(WORDS)}: {outcome!r}")
    return cast("AttemptOutcome", outcome)


def _progress(found: RecordFields) -> Progress | None:
    if not found.has("progress"):
        return None
    try:
        inner = RecordFields(found.any("progress"))
        progress = Progress(inner.seconds("fraction"), inner.text("text", "", most=limits.MAX_PROGRESS_CHARACTERS))
        inner.end()
    except BadFieldError as error:
        raise BadFieldError(f"progress.{error.field}", error.problem) from None
    return checked("progress", lambda one: limits.check_progress(one.fraction, one.text), progress)


def _checkpoint(found: RecordFields) -> bytes | None:
    if not found.has("checkpoint_base64"):
        return None
    return checked("checkpoint_base64", limits.check_checkpoint, _bytes(found, "checkpoint_base64"))


def _bytes(found: RecordFields, name: str) -> bytes:
    text = found.text(name, most=MAX_LINE_BYTES)
    try:
        return b64decode(text, validate=True)
    except ValueError as error:  # binascii's own, and one for text that is not ASCII
        raise BadFieldError(name, f"is not base64: {error}") from None


def _payload(found: RecordFields) -> bytes:
    if found.has("payload_base64"):
        if found.has("payload"):
            raise BadFieldError("payload_base64", "excludes payload: leave one of them out")
        return checked("payload_base64", _check_payload, _bytes(found, "payload_base64"))
    return checked("payload", _check_payload, found.text("payload", most=MAX_LINE_BYTES).encode())


def _check_payload(payload: bytes) -> None:
    """Check a payload by the highest limit: its queue's own may have been lowered since it was added."""
    limits.check_payload(payload, most=limits.LARGEST_PAYLOAD_BYTES)
