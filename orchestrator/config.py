"""What a pool is, as its owner wrote it: frozen models, and every mistake of a document at once.

Text in is somebody else's; here a mapping becomes values, and a mistake carries its path in the document.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.errors import ConfigError
from queue_core.mistakes import Mistake, mistakes_of
from queue_core.units import Bytes, Fraction, Seconds

MAX_WORKERS: Final = 10_000
MAX_CONCURRENCY: Final = 1_000
MAX_TAG_CHARS: Final = 500
DEFAULT_MAX_WORKERS: Final = 8
POOL_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

_CONTRADICTION: Final = "contradiction"
# What a running worker was started with: a change to any of these needs another worker in its place.
_NEEDS_REPLACEMENT: Final = frozenset(
    {
        "queue",
        "tags",
        "untagged",
        "app",
        "command",
        "runtime",
        "env",
        "cwd",
        "concurrency",
        "recycle",
        "grace",
    }
)

Count = Annotated[int, Field(strict=True)]
"""A whole number; a truth value or a string is refused."""


class Model(BaseModel):
    """A group of settings: frozen, and a key nobody knows is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkerBounds(Model):
    """How small and how large a pool may get."""

    min: Count = Field(default=0, ge=0, le=MAX_WORKERS, description="Workers kept even when nothing waits.")
    max: Count = Field(default=DEFAULT_MAX_WORKERS, ge=1, le=MAX_WORKERS, description="Workers never exceeded.")

    @model_validator(mode="after")
    def _agrees(self) -> "WorkerBounds":
        if self.min > self.max:
            raise PydanticCustomError(_CONTRADICTION, "min is above max")
        return self


class Recycle(Model):
    """When a worker is replaced by a fresh one, between tasks; the replacement starts first."""

    tasks: Count | None = Field(default=None, ge=1, description="Tasks done by one worker.")
    memory: Bytes | None = Field(default=None, gt=0, description="Resident memory of one worker.")
    age: Seconds | None = Field(default=None, gt=0, description="Time since the worker was started.")


def _available_runtime(value: object) -> object:
    if isinstance(value, Mapping) and list(value) == ["docker"]:
        raise ValueError("docker is not available in this version yet: write runtime: process")
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write runtime: process")  # noqa: TRY004  pydantic wants a ValueError
    return value


class PoolSpec(Model):
    """One pool: which work it does, what runs, and how long work may wait. `name` is its key in the file."""

    name: str = Field(description="The pool's key in the file.")
    queue: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9-]+$",
        examples=["thumbs"],
        description="The queue it works on.",
    )
    tags: tuple[Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS)], ...] | None = Field(
        default=None, min_length=1, description="Lease these tags only; left out: any task."
    )
    untagged: bool = Field(default=False, strict=True, description="Lease only tasks without a tag.")
    app: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        examples=["tasks:app"],
        description="Handlers, as module:attribute; run by `towline work`.",
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None, min_length=1, description="Any other worker program, as a list of arguments."
    )
    runtime: Annotated[Literal["process"], BeforeValidator(_available_runtime)] = Field(
        default="process", description="What a worker is."
    )
    slo: Seconds = Field(gt=0, description="The longest a task may wait before it is leased.")
    workers: WorkerBounds = Field(default=WorkerBounds())
    grace: Seconds = Field(default=30.0, gt=0, description="From asking a worker to stop to ending it.")
    concurrency: Count = Field(default=1, ge=1, le=MAX_CONCURRENCY, description="Tasks one worker holds at a time.")
    recycle: Recycle = Field(default=Recycle())
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str] = Field(
        default_factory=dict, description="Added to the worker's environment."
    )
    cwd: str | None = Field(default=None, min_length=1, description="The worker's working directory.")
    churn: Seconds = Field(default=20.0, description="Worker-seconds that one start less is worth.")
    eps: Fraction = Field(default=0.005, gt=0, le=0.5, description="Share of tasks that may wait beyond the slo.")
    max_step_up: Count | None = Field(default=None, ge=1, description="Workers added by one decision, at most.")
    spawn_parallelism: Count | None = Field(
        default=None, ge=1, description="Workers starting at a time, at most; left out: twice the cores."
    )

    @model_validator(mode="after")
    def _agrees(self) -> "PoolSpec":
        for mistake in _contradictions(self.model_dump(exclude_none=True)):
            raise PydanticCustomError(_CONTRADICTION, "{why}", {"why": mistake.message})
        return self

    @property
    def turn_seconds(self) -> float:
        """The pool's pace of decisions: a tenth of its slo, in [1, 5] s."""
        return min(5.0, max(1.0, self.slo / 10))

    def digest(self) -> str:
        """Names what a worker of this pool is started with: two pools with one digest have equal workers.

        Bounds, slo and other scaling settings are left out: changing them replaces nobody.
        """
        settings = self.model_dump(mode="json", include=set(_NEEDS_REPLACEMENT))
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


class SupervisorSettings(Model):
    """What concerns the supervisor itself and no pool."""

    orphan_grace: Seconds = Field(
        default=60.0, gt=0, description="Workers that miss their supervisor this long drain themselves."
    )
    state_dir: str = Field(default=".towline", min_length=1, description="Where it keeps what it has learned.")


def parse_pools(data: object) -> dict[str, PoolSpec]:
    """The pools of a document, from the mapping under its `pools` key.

    Raises `ConfigError` with every mistake; paths begin with "pools".
    """
    if not isinstance(data, Mapping):
        raise ConfigError([Mistake(("pools",), "must be a mapping of pool names to their settings")])
    pools: dict[str, PoolSpec] = {}
    mistakes: list[Mistake] = []
    for name, settings in data.items():
        outcome = _parse_pool(name, settings)
        if isinstance(outcome, PoolSpec):
            pools[outcome.name] = outcome
        else:
            mistakes.extend(outcome)
    if mistakes:
        raise ConfigError(mistakes)
    return pools


def parse_supervisor(data: object) -> SupervisorSettings:
    """The supervisor's own settings. Raises `ConfigError` with every mistake; paths begin with "supervisor"."""
    try:
        return SupervisorSettings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(mistakes_of(error, model=SupervisorSettings, prefix=("supervisor",))) from None


def _parse_pool(name: object, settings: object) -> PoolSpec | list[Mistake]:
    path = ("pools", str(name))
    if not isinstance(name, str) or not POOL_NAME.fullmatch(name):
        return [
            Mistake(
                path,
                f"{name}: a pool's name is 1 to 63 of a-z, 0-9 and -, and begins with a letter or digit",
            )
        ]
    if not isinstance(settings, Mapping):
        return [Mistake(path, "must be a mapping of settings, with at least queue, slo, and app or command")]
    mistakes = []
    if "name" in settings:
        mistakes.append(Mistake((*path, "name"), "a pool is named by its key: leave this out"))
    try:
        pool = PoolSpec.model_validate({**settings, "name": name})
    except ValidationError as error:
        mistakes += mistakes_of(error, model=PoolSpec, prefix=path, leave_out={_CONTRADICTION})
        # A field's mistake keeps pydantic from comparing fields, so they are compared here in any case.
        mistakes += [Mistake((*path, *m.path), m.message) for m in _contradictions(settings)]
        return mistakes
    return mistakes or pool


def _contradictions(settings: Mapping[str, object]) -> Iterator[Mistake]:
    """Settings that are fine one by one, but not together."""
    app, command = settings.get("app"), settings.get("command")
    if app is not None and command is not None:
        yield Mistake(("command",), "give either app or command, not both")
    if app is None and command is None:
        yield Mistake((), "give app: module:attribute, or command: [program, argument]")
    tags = settings.get("tags")
    if tags is not None and settings.get("untagged"):
        yield Mistake(("untagged",), "give either tags or untagged, not both")
    if isinstance(tags, list | tuple) and len(set(map(str, tags))) < len(tags):
        yield Mistake(("tags",), "a tag is given twice")
    workers = settings.get("workers")
    if isinstance(workers, Mapping):
        low, high = workers.get("min", 0), workers.get("max", DEFAULT_MAX_WORKERS)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Mistake(("workers", "min"), f"must be at most max, which is {high}: {low}")
