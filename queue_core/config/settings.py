"""The queue's half of the settings file as frozen models (store, server, queues), and overrides of its settings.

Reads neither files nor the environment; the settings of pools are skipped here.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from queue_core.admission import Rate, TagLimits
from queue_core.config.celery_names import namespace_prefix
from queue_core.config.listen import (
    DEFAULT_LISTEN,
    Grpc,
    Listen,
    ProxyLoginSettings,
    TlsSettings,
    allow_address_text,
    grpc_relations,
    is_private,
    proxy_relations,
)
from queue_core.config.messages import SettingProblem, did_you_mean, home_problems, problems_of
from queue_core.config.schedules import ScheduleSettings, schedule_relations
from queue_core.config.store import (
    DEFAULT_STORE,
    ENVIRONMENT_NAME,
    Store,
    StoreSettings,
    allow_url_text,
    store_relations,
)
from queue_core.config.units import Bytes, PerSecond, Seconds, format_seconds, parse_seconds
from queue_core.config.yaml_document import Document, DocumentError, Place
from queue_core.limits import (
    FARTHEST_ETA_SECONDS,
    LARGEST_PAYLOAD_BYTES,
    MAX_BURST,
    MAX_EMAIL_CHARACTERS,
    MAX_EMAILS,
    MAX_ETA_SECONDS,
    MAX_HISTORY_LEASES,
    MAX_HISTORY_SECONDS,
    MAX_IN_FLIGHT,
    MAX_LABEL_CHARACTERS,
    MAX_LEASE_CALLS_PER_SECOND,
    MAX_LEASE_SECONDS,
    MAX_LEASES,
    MAX_PAYLOAD_BYTES,
    MAX_QUEUE_NAME_CHARACTERS,
    MAX_RATE_PER_SECOND,
    MAX_STORAGE_BYTES,
    MAX_TOKEN_QUEUES,
    MIN_RATE_PER_SECOND,
    NAME_RETENTION_SECONDS,
)
from queue_core.task import QueueSpec

_QUEUE_NAME: Final = re.compile(r"[a-zA-Z0-9-]{1,100}")
_CONTRADICTION: Final = "contradiction"

Count = Annotated[int, Field(strict=True)]


class SettingsModel(BaseModel):
    """A group of settings: frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RetrySettings(SettingsModel):
    """The back-off after a failed lease."""

    min: Seconds = Field(default=1.0, ge=0, le=MAX_ETA_SECONDS, description="After the first failure.")
    max: Seconds = Field(default=300.0, ge=0, le=MAX_ETA_SECONDS, description="The most, doubling on the way.")

    @model_validator(mode="after")
    def _agrees(self) -> "RetrySettings":
        if self.min > self.max:
            raise PydanticCustomError(_CONTRADICTION, "min is above max")
        return self


def _email(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write an email address")  # noqa: TRY004
    if not 1 <= len(value) <= MAX_EMAIL_CHARACTERS or " " in value or not value.isprintable():
        raise ValueError(f"{value[:60]!a}: write an email address of at most {MAX_EMAIL_CHARACTERS} characters")
    return value


Emails = Annotated[tuple[Annotated[str, BeforeValidator(_email)], ...], Field(max_length=MAX_EMAILS)]


class AclSettings(SettingsModel):
    """Permissions by the email of a caller's token, at every API; both empty: any caller with a token."""

    users: Emails = Field(default=(), description="Callers that may list, get, lease, delete and update tasks.")
    writers: Emails = Field(default=(), description="Callers that may insert tasks.")


class HistorySettings(SettingsModel):
    """How many ended leases of a queue `towline why` and the timelines of its tasks find, and for how long."""

    keep: Count = Field(default=10_000, ge=0, le=MAX_HISTORY_LEASES, description="Ended leases, at most; 0: none.")
    for_: Seconds = Field(
        default=86_400.0, alias="for", ge=0, le=MAX_HISTORY_SECONDS, description="How long each is found."
    )

    @model_serializer(mode="wrap")
    def _shown(self, write: SerializerFunctionWrapHandler) -> object:
        """Serialize as in the file: 0 for none."""
        return write(self) if self.keep else 0


def _history(value: object) -> object:
    """Accept 0 in place of the settings: no history."""
    if value == 0 and type(value) is int:
        return {"keep": 0}
    if not isinstance(value, Mapping | BaseModel):
        raise ValueError(f"{value!r}: write {{keep: 10000, for: 24h}}, or 0 for no history")  # noqa: TRY004
    return value


def _allow_zero(schema: JsonDict) -> None:
    """Allow 0 in the JSON Schema."""
    whole: JsonDict = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [{"const": 0}, whole]


class LimitSettings(SettingsModel):
    """Limits on leases: those held at a time, and those granted."""

    max_in_flight: Count | None = Field(
        default=None, ge=1, le=MAX_IN_FLIGHT, description="Leases held at a time; left out: any number."
    )
    rate: PerSecond | None = Field(
        default=None,
        ge=MIN_RATE_PER_SECOND,
        le=MAX_RATE_PER_SECOND,
        description="Leases granted, such as 10/s; left out: any number.",
    )
    burst: Count | None = Field(
        default=None,
        ge=1,
        le=MAX_BURST,
        description="Leases that the rate lets be granted at once; left out: those of a second, at least one.",
    )

    @model_validator(mode="after")
    def _has_rate(self) -> Self:
        if self.burst is not None and self.rate is None:
            raise PydanticCustomError(_CONTRADICTION, "burst is the burst of a rate: give a rate such as 10/s")
        return self

    def bucket(self) -> Rate | None:
        """Return the rate with its burst; None for no rate."""
        if self.rate is None:
            return None
        return Rate(self.rate, self.burst if self.burst is not None else min(MAX_BURST, max(1, math.ceil(self.rate))))


class TagLimitSettings(LimitSettings):
    """Limits on leases of each tag, and whether tags take turns. Untagged tasks have no limits."""

    fair: bool = Field(default=False, description="Tags take turns; otherwise the oldest task is leased first.")

    def limits(self) -> TagLimits:
        """Return these settings as `TagLimits`."""
        return TagLimits(self.max_in_flight, self.bucket(), self.fair)


class QueueSettings(LimitSettings):
    """One queue under `queues:`; its name is its key."""

    lease: Seconds = Field(
        default=60.0, gt=0, le=MAX_LEASE_SECONDS, description="Length of a lease; renewed while the handler lives."
    )
    max_lease: Seconds = Field(
        default=MAX_LEASE_SECONDS,
        gt=0,
        le=MAX_LEASE_SECONDS,
        description="The longest a lease may become by renewals; without bound at 7d.",
    )
    max_leases: Count | None = Field(
        default=None, ge=1, le=MAX_LEASES, description="Leases after which a task is dead."
    )
    retry: RetrySettings = Field(default=RetrySettings(), description="Back-off after a failed lease.")
    on_exhausted: Literal["dead", "delete"] = Field(
        default="dead", description="A task at max_leases is kept as dead, or deleted."
    )
    name_retention: Seconds = Field(
        default=NAME_RETENTION_SECONDS,
        ge=0,
        le=MAX_ETA_SECONDS,
        description="How long the name of a deleted task still refuses a second add.",
    )
    lease_calls_per_second: Count | None = Field(
        default=None,
        ge=1,
        le=MAX_LEASE_CALLS_PER_SECOND,
        description="Limit on lease calls through App Engine's and Cloud Tasks' APIs; App Engine has 10.",
    )
    acl: AclSettings = Field(
        default=AclSettings(), description="Permissions by the email of a caller's token, at every API."
    )
    history: Annotated[HistorySettings, BeforeValidator(_history)] = Field(
        default=HistorySettings(),
        description="Ended leases that are found afterwards; 0: none.",
        json_schema_extra=_allow_zero,
    )
    per_tag: TagLimitSettings = Field(
        default=TagLimitSettings(), description="Limits of each tag: the key of a tenant, a host, an account."
    )
    max_payload: Bytes = Field(
        default=MAX_PAYLOAD_BYTES,
        ge=MAX_PAYLOAD_BYTES,
        le=LARGEST_PAYLOAD_BYTES,
        description="The largest payload of a task; Google's APIs add at most 1MiB.",
    )
    max_eta: Seconds = Field(
        default=MAX_ETA_SECONDS,
        ge=MAX_ETA_SECONDS,
        le=FARTHEST_ETA_SECONDS,
        description="How far ahead an eta may be; Google's APIs allow at most 30d.",
    )

    label: str = Field(
        default="", max_length=MAX_LABEL_CHARACTERS, description="The name it is shown by, where its own is another."
    )

    @model_validator(mode="after")
    def _agrees(self) -> "QueueSettings":
        if self.lease > self.max_lease:
            raise PydanticCustomError(_CONTRADICTION, "lease is above max_lease")
        return self

    def spec(self, name: str) -> QueueSpec:
        """Return these settings as a `QueueSpec`."""
        return QueueSpec(
            name,
            lease_seconds=self.lease,
            max_lease_seconds=self.max_lease,
            max_leases=self.max_leases,
            retry_min_seconds=self.retry.min,
            retry_max_seconds=self.retry.max,
            on_exhausted=self.on_exhausted,
            name_retention_seconds=self.name_retention,
            lease_calls_per_second=self.lease_calls_per_second,
            user_emails=self.acl.users,
            writer_emails=self.acl.writers,
            history_keep=self.history.keep,
            history_seconds=self.history.for_,
            max_in_flight=self.max_in_flight,
            rate=self.bucket(),
            per_tag=self.per_tag.limits(),
            max_payload_bytes=self.max_payload,
            max_eta_seconds=self.max_eta,
            label=self.label,
        )


def _queue_pattern(value: object) -> object:
    """Read NAMESPACE/QUEUE as the name in the store, and refuse what names no queue."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write a queue's name, with * for any text")  # noqa: TRY004
    namespace, slash, queue = value.partition("/")
    pattern = namespace_prefix(namespace) + queue if slash and namespace else value
    if re.fullmatch(r"[a-zA-Z0-9*-]{1,100}", pattern) is None:
        raise ValueError(f"{value[:60]!a}: write letters, digits, hyphens and *, or NAMESPACE/QUEUE")
    return re.sub(r"\*+", "*", pattern)


QueuePattern = Annotated[str, BeforeValidator(_queue_pattern)]


class TokenSettings(SettingsModel):
    """A bearer token that the server accepts, and its role. The token itself is never in the file."""

    role: Literal["producer", "worker", "viewer", "operator", "admin"] = Field(
        description="The rights of the token's bearer."
    )
    email: str | None = Field(
        default=None,
        max_length=320,
        pattern=r"^[^@\s]+@[^@\s]+$",
        examples=["worker@example.com"],
        description="The bearer's email, for queues that have an acl.",
    )
    queues: Annotated[tuple[QueuePattern, ...], Field(min_length=1, max_length=MAX_TOKEN_QUEUES)] | None = Field(
        default=None,
        examples=[["mail-*", "shop/*"]],
        description="The queues that it is for: names, with * for any text, or NAMESPACE/QUEUE; left out: all queues.",
    )
    token_file: str | None = Field(default=None, min_length=1, description="A file that holds the token.")
    token_env: str | None = Field(
        default=None,
        pattern=ENVIRONMENT_NAME,
        examples=["TOWLINE_ADMIN_TOKEN"],
        description="An environment variable that holds the token.",
    )


class ServerSettings(SettingsModel):
    """The HTTP API: its address and its tokens."""

    listen: Listen = Field(default=DEFAULT_LISTEN, description="host:port, or unix:/path/to/socket.")
    tokens: tuple[TokenSettings, ...] = Field(default=(), description="Required from clients when any is given.")
    grpc: Grpc | None = Field(
        default=None, description="Cloud Tasks over gRPC as well.", json_schema_extra=allow_address_text
    )

    tls: TlsSettings | None = Field(default=None, description="Serve https, also on the supervisor's listener.")
    hosts: tuple[str, ...] = Field(
        default=(),
        examples=[["queue.example.com"]],
        description="Further names of a server that listens on this host only, as behind a proxy.",
    )
    auth: ProxyLoginSettings | None = Field(default=None, description="A proxy that logs people in to the console.")

    @property
    def is_private(self) -> bool:
        """Return whether only this host can reach the server."""
        return is_private(self.listen)

    def url(self, directory: Path) -> str:
        """Return the URL for clients on this host; a relative socket path is resolved from `directory`."""
        if self.listen.startswith("unix:"):
            return f"unix://{(directory / self.listen.removeprefix('unix:')).absolute()}"
        host, _, port = self.listen.rpartition(":")
        here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
        return f"{'https' if self.tls else 'http'}://{here}:{port}"


def _switch(value: object) -> object:
    """Read `on` and `off`, which YAML 1.2 leaves as words."""
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


class ConsoleSettings(SettingsModel):
    """The pages that a server shows to people."""

    writes: Annotated[bool, BeforeValidator(_switch)] = Field(
        default=False,
        strict=True,
        description="On or off: whether people may change anything there, as far as their role allows.",
    )
    viewers_see_payloads: Annotated[bool, BeforeValidator(_switch)] = Field(
        default=False, strict=True, description="On or off: whether pages show payloads to the role viewer too."
    )
    redact: tuple[str, ...] = Field(
        default=(),
        examples=[["password", "*.token"]],
        description="Members of JSON payloads, and headers, that pages mask: names, or paths with * for any text.",
    )


class QueueFile(SettingsModel):
    """The settings file without its pools."""

    store: Store = Field(
        default=StoreSettings(url=DEFAULT_STORE), description="Where tasks are kept.", json_schema_extra=allow_url_text
    )
    durability: Literal["strict", "relaxed"] = Field(
        default="strict",
        description="strict: an add that returned survives power loss; relaxed: only a crash of the process.",
    )
    server: ServerSettings = Field(default=ServerSettings())
    console: ConsoleSettings = Field(default=ConsoleSettings())
    lifecycle: Literal["task", "batch", "off"] = Field(
        default="task", description="The lifecycle log: an event per task, per call, or none."
    )
    log: str | None = Field(default=None, min_length=1, description="A file for the log, besides standard error.")
    total_storage_limit: Bytes | None = Field(
        default=None,
        ge=0,
        le=MAX_STORAGE_BYTES,
        description="Limit on the payload bytes of all tasks; left out: unchanged, at first no limit.",
    )
    queues: dict[str, QueueSettings] = Field(default_factory=dict, description="Queues by name.")
    schedules: dict[str, ScheduleSettings] = Field(
        default_factory=dict, description="Tasks that a supervisor adds at recurring times, by name."
    )

    def specs(self) -> list[QueueSpec]:
        """Return all queues."""
        return [settings.spec(name) for name, settings in self.queues.items()]


@dataclass(frozen=True, slots=True)
class Override:
    """A setting given outside the file: by an environment variable or a flag, named by `origin`."""

    path: tuple[str, ...]
    value: str
    origin: str


OVERRIDABLE: Final[Mapping[tuple[str, ...], str]] = {
    ("store",): "STORE",
    ("durability",): "DURABILITY",
    ("server", "listen"): "LISTEN",
    ("lifecycle",): "LIFECYCLE",
    ("log",): "LOG",
}
"""Settings that an environment variable can override: `TOWLINE_` and this suffix."""


def environment_overrides(environ: Mapping[str, str]) -> list[Override]:
    """Return the overrides given by `TOWLINE_...` variables."""
    names = {path: f"TOWLINE_{name}" for path, name in OVERRIDABLE.items()}
    return [Override(path, environ[name], name) for path, name in names.items() if environ.get(name)]


def refuse_empty(document: Document) -> None:
    """Raise `DocumentError` for a document without settings, such as a half-written file."""
    if document.data is None:
        found = "nothing is set here (comments set nothing): give queues and pools, or {} for all defaults"
        raise DocumentError((document.line_at(Place(1, 1), found),))


def overlay(data: object, overrides: Sequence[Override]) -> object:
    """Return `data` with the overrides applied, the last one winning; anything but a mapping is left to validation."""
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        return data
    for override in overrides:
        data = _set_value(data, override.path, override.value)
    return data


def _set_value(data: object, path: tuple[str, ...], value: str) -> dict[str, object]:
    mapping = dict(data) if isinstance(data, Mapping) else {}
    mapping[path[0]] = value if len(path) == 1 else _set_value(mapping.get(path[0]), path[1:], value)
    return mapping


_QUEUE_YAML_KEYS: Final = frozenset({"queue", "resume_paused_queues", "application"})
_OF_APP_ENGINE: Final = (
    "this looks like App Engine's {}, not like a settings file: `towline queues apply FILE` makes the queues of a "
    "server or a store as it says, `towline init --from FILE` writes a settings file with them"
)


def parse_queue_file(
    data: object, *, other_keys: Collection[str] = ()
) -> tuple[QueueFile | None, list[SettingProblem]]:
    """Return the model of a document, or None and its problems. Keys in `other_keys` are skipped."""
    if data is None:
        data = {}
    if isinstance(data, str) and data.startswith("<"):
        return None, [SettingProblem((), _OF_APP_ENGINE.format("queue.xml"))]
    if not isinstance(data, Mapping):
        return None, [SettingProblem((), "must be a mapping of settings, such as `store: sqlite:///towline.db`")]
    known = [*QueueFile.model_fields, *other_keys]
    foreign: Collection[str] = ()
    problems: list[SettingProblem] = []
    if isinstance(data.get("queue", ""), list | None):
        foreign = _QUEUE_YAML_KEYS
        problems.append(SettingProblem(("queue",), _OF_APP_ENGINE.format("queue.yaml")))
    problems += [
        SettingProblem((key,), f"unknown setting{did_you_mean(key, known)}")
        for key in data
        if key not in known and key not in foreign
    ]
    mine = {key: value for key, value in data.items() if key in QueueFile.model_fields}
    queues = mine.get("queues")
    if isinstance(queues, Mapping):  # `thumbs:` alone is a queue with default settings
        mine["queues"] = {name: {} if settings is None else settings for name, settings in queues.items()}
    relations = _relations(mine) + home_problems({key: mine[key] for key in mine if key not in ("queues", "schedules")})
    try:
        return QueueFile.model_validate(mine), problems + relations
    except ValidationError as error:
        fields = problems_of(error, model=QueueFile, leave_out={_CONTRADICTION})
        reported = {problem.path for problem in fields}
        return None, problems + fields + [problem for problem in relations if problem.path not in reported]


def document_error(
    document: Document, problems: Sequence[SettingProblem], overrides: Sequence[Override]
) -> DocumentError:
    """Return an error with all problems and the duplicate keys of a document.

    Each is prefixed with its place in the file, or with the variable or flag that gave the value.
    """
    origins = {override.path: override.origin for override in overrides}

    def line(problem: SettingProblem) -> str:
        origin = origins.get(tuple(map(str, problem.path)))
        return f"{origin}: {problem.message}" if origin else document.line_about(problem.path, problem.message)

    lines = [(document.place(problem.path), line(problem)) for problem in problems]
    lines += [(flaw.place, document.line_at(flaw.place, flaw.message)) for flaw in document.repeats]
    ordered = sorted(lines, key=lambda one: one[0])
    return DocumentError(tuple(dict.fromkeys(text for _, text in ordered)))


def absolute_store(url: str, directory: Path) -> str:
    """Resolve a relative `sqlite:///file.db` from `directory`; return any other URL unchanged."""
    prefix = "sqlite:///"
    if not url.startswith(prefix) or url.removeprefix(prefix).startswith("/"):
        return url
    return f"{prefix}{(directory / url.removeprefix(prefix)).absolute()}"


def _relations(data: Mapping[str, object]) -> list[SettingProblem]:
    """Return problems between fields, which pydantic only checks when every field is valid by itself."""
    problems: list[SettingProblem] = []
    queues = data.get("queues")
    for name, settings in queues.items() if isinstance(queues, Mapping) else ():
        path = ("queues", str(name))
        if not _QUEUE_NAME.fullmatch(str(name)):
            limit = f"1 to {MAX_QUEUE_NAME_CHARACTERS} letters, digits or '-'"
            problems.append(SettingProblem(path, f"a queue's name must be {limit}: it has {len(str(name))} characters"))
        if isinstance(settings, Mapping):
            problems += _out_of_order(settings, path, QueueSettings, low="lease", high="max_lease")
            retry = settings.get("retry")
            if isinstance(retry, Mapping):
                problems += _out_of_order(retry, (*path, "retry"), RetrySettings, low="min", high="max")
    schedules = data.get("schedules")
    problems += schedule_relations(schedules, queues) if isinstance(schedules, Mapping) else []
    store, server = data.get("store"), data.get("server")
    problems += store_relations(store) if isinstance(store, Mapping) else []
    return problems + (_server_relations(server) if isinstance(server, Mapping) else [])


def _out_of_order(
    settings: Mapping[str, object], path: tuple[str, ...], model: type[SettingsModel], *, low: str, high: str
) -> list[SettingProblem]:
    seconds = {}
    for key in (low, high):
        try:
            seconds[key] = parse_seconds(settings.get(key, model.model_fields[key].default))
        except ValueError:
            return []  # reported for the field itself
    if seconds[low] <= seconds[high]:
        return []
    where, other = (low, high) if low in settings else (high, low)
    relation = "at most" if where == low else "at least"
    given = "" if other in settings else " by default"
    shown = f"{other}, which is {format_seconds(seconds[other])}{given}: {format_seconds(seconds[where])}"
    return [SettingProblem((*path, where), f"must be {relation} {shown}")]


def _server_relations(server: Mapping[str, object]) -> list[SettingProblem]:
    problems: list[SettingProblem] = []
    tokens = server.get("tokens", ())
    for index, token in enumerate(tokens if isinstance(tokens, Sequence) else ()):
        if isinstance(token, Mapping) and ("token_file" in token) == ("token_env" in token):
            problems.append(SettingProblem(("server", "tokens", index), "give either token_file or token_env"))
    listen = server.get("listen")
    if not tokens and isinstance(listen, str) and not ServerSettings.model_construct(listen=listen).is_private:
        why = "other machines could reach it without a token: add tokens: [{role: admin, token_env: TOWLINE_ADMIN}]"
        problems.append(SettingProblem(("server", "listen"), f"{listen}: {why}, or listen on {DEFAULT_LISTEN}"))
    return problems + grpc_relations(server) + proxy_relations(server)
