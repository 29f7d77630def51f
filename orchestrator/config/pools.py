"""The settings of a pool as frozen models. A mapping becomes values; each problem carries its path in the document."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.base.errors import ConfigError
from orchestrator.config.budget import WorkerHours
from orchestrator.config.celery import (
    COLD_SECONDS,
    SOFT_MARGIN_SECONDS,
    CelerySettings,
    celery_contradictions,
    derived_from,
)
from orchestrator.config.containers import PROCESS, ContainerSettings, RuntimeChoice, RuntimeKind
from orchestrator.config.kubernetes import MAX_POOL_NAME_CHARS, WITHOUT_REPLACEMENT
from orchestrator.config.model import (
    CONTRADICTION,
    DEFAULT_MAX_WORKERS,
    MAX_WORKERS,
    Count,
    FleetSettingsModel,
    WorkerBounds,
)
from orchestrator.config.placeholders import names_worker
from orchestrator.config.schedule import MAX_WINDOWS, TimeOfDay, Window
from orchestrator.config.sources import LABEL, CelerySource, SourceChoice, celery_queues, label_of
from orchestrator.config.stop_plan import StopStep
from queue_core.config.listen import Listen
from queue_core.config.messages import SettingProblem, problems_of
from queue_core.config.units import Bytes, Fraction, Seconds

MAX_CONCURRENCY: Final = 1_000
MAX_TAG_CHARS: Final = 500
MAX_PRIORITY: Final = 1_000
MAX_MIN_BILLING_SECONDS: Final = 86_400.0
_APP_FILE: Final = re.compile(r"(?P<module>[^:]*)\.py(?::(?P<attribute>.*))?")
POOL_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

_ONE_COMMAND: Final = (
    "all workers of a swarm service have one command, so {worker} can't be in it: write it in env, or let a shell read"
    " $TOWLINE_WORKER"
)

# A running worker keeps these settings from its start: a change to any of them replaces it.
_NEEDS_REPLACEMENT: Final = frozenset(
    {
        "queue",
        "tags",
        "untagged",
        "app",
        "command",
        "celery",
        "runtime",
        "env",
        "cwd",
        "concurrency",
        "recycle",
        "grace",
        "redact",
    }
)


class RecycleSettings(FleetSettingsModel):
    """The limits at which a worker is replaced by a new one, between tasks; the replacement starts first.

    A worker with an `app` counts its tasks itself and stops leasing at the limit. On its supervisor's host it then
    continues in a new process, which imports the handlers again (ADR 15); elsewhere it ends, and another one starts.
    """

    tasks: Count | None = Field(default=None, ge=1, description="Tasks leased by one process of a worker, at most.")
    memory: Bytes | None = Field(
        default=None, gt=0, description="Resident memory of one worker; of a forked one, what it shares with no other."
    )
    age: Seconds | None = Field(
        default=None, gt=0, description="Time since the worker was started. A template of this age imports anew."
    )


def _hold_or_count(value: object) -> object:
    if value == "hold" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_WORKERS):
        return value
    raise ValueError(f"{value}: write hold, or a number of workers, at least 1 and at most {MAX_WORKERS:,}")


def _app(value: object) -> object:
    """Refuse the file of a module, and suggest the module's name."""
    if isinstance(value, str) and (found := _APP_FILE.fullmatch(value)):
        module = found["module"].removeprefix("./").strip("/").replace("/", ".")
        raise ValueError(f"{value}: a module, not a file: write {module}:{found['attribute'] or 'app'}")
    return value


class PoolSpec(FleetSettingsModel):
    """The settings of one pool: its work, its workers, and how long work may wait. `name` is its key in the file."""

    name: str = Field(description="The pool's key in the file.")
    source: SourceChoice | None = Field(
        default=None,
        description="Where its work waits, when that is no queue of ours: {celery: {broker: redis://...}}.",
    )
    celery: CelerySettings | None = Field(
        default=None,
        examples=[{"app": "proj", "queues": ["default", "images"], "concurrency": 4}],
        description="Workers of Celery's; queue and concurrency follow from it, and are left out.",
    )
    queue: str = Field(
        default_factory=lambda known: label_of(known.get("source"), known.get("celery")),
        pattern=rf"^([A-Za-z0-9-]{{1,100}}|{LABEL}.+)$",
        examples=["thumbs"],
        description="The queue it works on.",
    )
    tags: tuple[Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS)], ...] | None = Field(
        default=None, min_length=1, description="Lease these tags only; left out: any task."
    )
    untagged: bool = Field(default=False, strict=True, description="Lease only tasks without a tag.")
    app: Annotated[str | None, BeforeValidator(_app)] = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        examples=["tasks:app"],
        description="Handlers, as module:attribute; run by `towline work`.",
    )
    start: Literal["auto", "fork", "exec"] = Field(
        default="auto",
        description="How a worker with an app starts on this host: forked from a process that has imported it where"
        " that is safe (auto), always (fork), or by importing it itself (exec). Others are never forked.",
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        description="Any other worker program, as a list; {worker} and {pool} are replaced.",
    )
    runtime: RuntimeChoice = Field(default=PROCESS, description="The runtime of a worker.")
    slo: Seconds = Field(gt=0, description="The longest a task may wait before it is leased.")
    workers: WorkerBounds = Field(default=WorkerBounds())
    grace: Seconds = Field(default=30.0, gt=0, description="From asking a worker to finish to killing it.")
    concurrency: Count = Field(default=1, ge=1, le=MAX_CONCURRENCY, description="Tasks one worker holds at a time.")
    recycle: RecycleSettings = Field(default=RecycleSettings())
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str] = Field(
        default_factory=dict, description="Added to the worker's environment; {worker} and {pool} are replaced."
    )
    redact: Literal["on", "off"] = Field(
        default="on",
        description="Whether errors, progress and last lines of its workers are shown without values of payloads and"
        " without secrets.",
    )
    cwd: str | None = Field(
        default=None, min_length=1, description="The worker's working directory; for a container, in its image."
    )
    churn: Seconds = Field(default=15.0, description="Worker-seconds that avoiding one start is worth.")
    eps: Fraction = Field(default=0.005, gt=0, le=0.5, description="Share of tasks that may wait beyond the slo.")
    on_failure: Literal["freeze", "ignore"] = Field(
        default="freeze",
        description="Whether the pool stops growing while its tasks fail.",
    )
    contention: Literal["off", "watch", "guard"] = Field(
        default="off", description="Whether to report (watch) or limit (guard) workers that add no throughput."
    )
    max_step_up: Count | None = Field(default=None, ge=1, description="Workers added by one decision, at most.")
    spawn_parallelism: Count | None = Field(
        default=None,
        ge=1,
        description="Workers starting at a time, at most; left out: as many as the cores carry, at least two per core.",
    )
    schedule: tuple[Window, ...] = Field(
        default=(),
        max_length=MAX_WINDOWS,
        description="Times in which it has other bounds; where several overlap, the last one in the list decides.",
    )
    finish_by: TimeOfDay | None = Field(
        default=None, description="The time of day by which waiting work must be done; the slo still applies."
    )
    surge: Count | None = Field(
        default=None,
        ge=0,
        le=MAX_WORKERS,
        description="Workers beyond max while old ones are replaced; left out: a quarter of max, none where max is 1.",
    )
    priority: Count = Field(
        default=0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Pools of higher priority get memory and CPU first on a host that has too little for all.",
    )
    budget: WorkerHours | None = Field(
        default=None, gt=0, examples=["200h/day"], description="Worker-hours it may use a day, on average."
    )
    min_billing: Seconds = Field(
        default=0.0,
        le=MAX_MIN_BILLING_SECONDS,
        description="The billing step of a worker: an idle one stays until its step ends.",
    )
    fallback: Annotated[Literal["hold"] | int, BeforeValidator(_hold_or_count)] = Field(
        default="hold", description="Without a recent sample of the queue: hold the size, or at least so many workers."
    )
    dry_run: bool = Field(default=False, strict=True, description="Decide and record, but start and stop no worker.")
    _app_folder: str | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, settings: object) -> object:
        return derived_from(settings) if isinstance(settings, Mapping) else settings

    @model_validator(mode="after")
    def _agrees(self) -> "PoolSpec":
        for problem in _contradictions(self.model_dump(exclude_none=True)):
            raise PydanticCustomError(CONTRADICTION, "{why}", {"why": problem.message})
        return self

    @property
    def celery_source(self) -> CelerySource:
        """The settings of its Celery source; only for a pool that has one."""
        if self.source is None:
            raise ValueError(f"{self.name} has no source")
        return self.source.celery

    @property
    def celery_queues(self) -> tuple[str, ...]:
        """The queues of a Celery fleet whose messages its workers take, where it has a `source`."""
        return celery_queues(self.source, self.celery)

    @cached_property
    def turn_seconds(self) -> float:
        """The interval between the pool's decisions: a tenth of its slo, in [1, 5] s."""
        return min(5.0, max(1.0, self.slo / 10))

    @cached_property
    def queues(self) -> tuple[str, ...]:
        """The queues of the store that it works on: several only if its workers are Celery's."""
        return (self.queue,) if self.celery is None or self.source is not None else self.celery.store_names

    @property
    def further_stops(self) -> tuple[StopStep, ...]:
        """The signals that follow a request to finish which was not met within `grace`, before a worker is killed.

        A worker of Celery's gives its tasks back on SIGQUIT; killed, its leases are released by the supervisor.
        """
        return () if self.celery is None else (StopStep("SIGQUIT", COLD_SECONDS),)

    @property
    def soft_seconds(self) -> float | None:
        """The time from a request to finish until a worker of Celery's gives back what it still runs.

        None where its supervisor sees to that. A container may be stopped by others, who kill it after its grace.
        """
        if self.celery is None or self.has_foreign_broker or self.runtime_kind == "process":
            return None
        return max(self.grace - SOFT_MARGIN_SECONDS, self.grace / 2)

    @property
    def has_foreign_broker(self) -> bool:
        """Return whether its workers use a broker other than Towline."""
        return self.source is not None

    @property
    def runtime_kind(self) -> RuntimeKind:
        """The kind of its runtime, in one word."""
        return self.runtime.kind

    @property
    def containers(self) -> ContainerSettings | None:
        """The settings of its workers' containers; None if they are no containers."""
        return self.runtime.containers

    @property
    def app_folder(self) -> str | None:
        """The second folder to search for the handlers' module: the settings file's, if `cwd` only has a link to it."""
        return self._app_folder

    def beside(self, app_folder: str | None) -> "PoolSpec":
        """Return the same pool with another `app_folder`."""
        copied = self.model_copy()
        copied._app_folder = app_folder  # noqa: SLF001  of our own kind
        return copied

    @property
    def surge_workers(self) -> int:
        """The number of replacements that may exist beyond `workers.max`, beside the workers they replace.

        A quarter of max, rounded up, unless `surge` is given. With a max of 1 it is 0: such a pool may rely on never
        having two workers at a time.
        """
        most = self.workers.max
        default = -(-most // 4) if most > 1 else 0
        return default if self.surge is None else self.surge

    def digest(self) -> str:
        """Return a digest of the settings that a worker is started with: equal digests mean equal workers.

        Bounds, slo and other scaling settings are left out: changing them replaces no worker.
        """
        return self._digest

    def bounded(self, low: int, high: int) -> "PoolSpec":
        """Return the same pool with these bounds."""
        return self.model_copy(update={"workers": WorkerBounds(min=low, max=high)})

    @cached_property
    def _digest(self) -> str:
        settings = self.model_dump(mode="json", include=set(_NEEDS_REPLACEMENT))
        for setting, default in (("celery", None), ("redact", "on")):  # the digest is as it was before there was one
            if settings[setting] == default:
                del settings[setting]
        if self.runtime.kubernetes is not None:
            for setting in WITHOUT_REPLACEMENT:
                del settings["runtime"]["kubernetes"][setting]
        if self._app_folder is not None:
            settings["app_folder"] = self._app_folder
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def __copy__(self) -> "PoolSpec":
        """Copy without cached values, as a copy may be given other settings."""
        copied = super().__copy__()
        copied.__dict__.pop("_digest", None)
        copied.__dict__.pop("turn_seconds", None)
        copied.__dict__.pop("queues", None)
        return copied


def bounds_of(pool: PoolSpec) -> tuple[int, int]:
    """Return the least and the most workers at any hour of the pool's schedule."""
    low, high = pool.workers.min, pool.workers.max
    for window in pool.schedule:
        least, most = window.workers.min, window.workers.max
        low = min(bound for bound in (low, least, most) if bound is not None)
        high = high if most is None else max(high, most)
    return low, high


class SupervisorSettings(FleetSettingsModel):
    """The settings of the supervisor itself."""

    orphan_grace: Seconds = Field(
        default=60.0, gt=0, description="Workers whose supervisor has been gone this long drain themselves."
    )
    lead: Seconds = Field(
        default=15.0,
        ge=5,
        le=300,
        examples=["5s"],
        description="Another supervisor of the store leads at most this long after the leader was killed; renewed at "
        "a third of it. Shorter: more renewals, and a store that is silent for so long minus 2 s changes the leader.",
    )
    state_dir: str = Field(default=".towline", min_length=1, description="The folder that holds its state.")
    listen: Listen | None = Field(
        default=None,
        examples=["127.0.0.1:7879"],
        description="Where `towline supervise` serves its metrics, as host:port or unix:/path; `up` uses the server.",
    )


def parse_pools(data: object) -> dict[str, PoolSpec]:
    """Parse the mapping under a document's `pools` key.

    Raises `ConfigError` with every problem; paths begin with "pools".
    """
    if data is None:
        raise ConfigError([SettingProblem(("pools",), "no pool is named below it: name one, or write {} for none")])
    if not isinstance(data, Mapping):
        raise ConfigError([SettingProblem(("pools",), "must be a mapping of pool names to their settings")])
    pools: dict[str, PoolSpec] = {}
    problems: list[SettingProblem] = []
    for name, settings in data.items():
        outcome = _parse_pool(name, settings)
        if isinstance(outcome, PoolSpec):
            pools[outcome.name] = outcome
        else:
            problems.extend(outcome)
    if problems:
        raise ConfigError(problems)
    return pools


def parse_supervisor(data: object) -> SupervisorSettings:
    """Parse the supervisor's own settings. Raises `ConfigError` with every problem; paths begin with "supervisor"."""
    try:
        return SupervisorSettings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, model=SupervisorSettings, prefix=("supervisor",))) from None


def _parse_pool(name: object, settings: object) -> PoolSpec | list[SettingProblem]:
    path = ("pools", str(name))
    if not isinstance(name, str) or not POOL_NAME.fullmatch(name):
        return [
            SettingProblem(
                path,
                f"{name}: a pool's name is 1 to 63 of a-z, 0-9 and -, and begins with a letter or digit",
            )
        ]
    if not isinstance(settings, Mapping):
        return [SettingProblem(path, "must be a mapping of settings, with at least queue, slo, and app or command")]
    problems = []
    if "name" in settings:
        problems.append(SettingProblem((*path, "name"), "a pool is named by its key: leave this out"))
    try:
        pool = PoolSpec.model_validate({**settings, "name": name})
    except ValidationError as error:
        problems += problems_of(
            error, model=PoolSpec, prefix=path, leave_out={CONTRADICTION, "default_factory_not_called"}
        )
        # If a field is invalid, pydantic does not compare fields, so they are compared here.
        problems += [SettingProblem((*path, *m.path), m.message) for m in _contradictions({**settings, "name": name})]
        return problems
    return problems or pool


def _contradictions(settings: Mapping[str, object]) -> Iterator[SettingProblem]:
    """Yield the problems of settings that are valid one by one, but not together."""
    app, command = settings.get("app"), settings.get("command")
    if app is not None and command is not None:
        yield SettingProblem(("command",), "give either app or command, not both")
    if app is None and command is None and settings.get("celery") is None and settings.get("runtime") != "external":
        yield SettingProblem((), "give app: module:attribute, or command: [program, argument], or celery: {app: proj}")
    yield from celery_contradictions(settings)
    yield from _start_contradictions(settings)
    yield from _source_contradictions(settings)
    tags = settings.get("tags")
    if tags is not None and settings.get("untagged"):
        yield SettingProblem(("untagged",), "give either tags or untagged, not both")
    if isinstance(tags, list | tuple) and len(set(map(str, tags))) < len(tags):
        yield SettingProblem(("tags",), "a tag is given twice")
    yield from _runtime_contradictions(settings)
    workers = settings.get("workers")
    if isinstance(workers, Mapping):
        low, high = workers.get("min", 0), workers.get("max", DEFAULT_MAX_WORKERS)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield SettingProblem(("workers", "min"), f"must be at most max, which is {high}: {low}")
        if isinstance(low, int) and isinstance(high, int):
            yield from _window_contradictions(settings.get("schedule"), low, high)
    else:
        yield from _window_contradictions(settings.get("schedule"), 0, DEFAULT_MAX_WORKERS)


def _runtime_contradictions(settings: Mapping[str, object]) -> Iterator[SettingProblem]:
    """Yield the problems of settings that don't go with the pool's runtime."""
    cwd, runtime = settings.get("cwd"), settings.get("runtime")
    if isinstance(cwd, str) and isinstance(runtime, Mapping) and not cwd.startswith("/"):
        yield SettingProblem(("cwd",), f"{cwd}: a container's cwd is a path in its image: begin it with /")
    name = settings.get("name")
    if isinstance(runtime, Mapping) and "kubernetes" in runtime and len(str(name)) > MAX_POOL_NAME_CHARS:
        most = f"at most {MAX_POOL_NAME_CHARS} characters, so that a Pod's name is a host name"
        yield SettingProblem((), f"{name}: the name of a pool of Pods has {most}: it has {len(str(name))}")
    command = settings.get("command")
    if isinstance(runtime, Mapping) and "swarm" in runtime and isinstance(command, list | tuple):
        for index, argument in enumerate(command):
            if names_worker(str(argument)):
                yield SettingProblem(("command", index), _ONE_COMMAND)


def _start_contradictions(settings: Mapping[str, object]) -> Iterator[SettingProblem]:
    """Yield the problem of `start: fork` where there is no template to fork workers from."""
    if settings.get("start") != "fork":
        return
    runtime, why = settings.get("runtime", "process"), ""
    if runtime == "external":
        why = "external workers are started by something else"
    elif isinstance(runtime, Mapping):
        why = "only workers that are processes of this host are forked, and these are containers"
    elif settings.get("command") is not None:
        why = "only an app is imported and forked, and these workers are a command"
    elif settings.get("celery") is not None:
        why = "only an app of Towline's is imported and forked, and these workers are Celery's"
    if why:
        yield SettingProblem(("start",), f"fork: {why}: leave start out")


def _source_contradictions(settings: Mapping[str, object]) -> Iterator[SettingProblem]:
    """Yield the problems of a pool's work: it waits in a queue of ours, or at a broker."""
    queue, source = settings.get("queue"), settings.get("source")
    is_label = isinstance(queue, str) and queue.startswith(LABEL)
    if source is None:
        if not queue:
            yield SettingProblem(("queue",), "is required: The queue it works on")
        elif is_label:
            yield SettingProblem(("queue",), f"{queue}: a name of a source's work: give source, or a queue of ours")
        return
    if queue and not is_label:
        yield SettingProblem(("queue",), f"{queue}: its work waits at the source's broker: leave queue out")
    if settings.get("tags") is not None or settings.get("untagged"):
        yield SettingProblem(("tags",), "messages of a broker have no tags: leave this out")
    if settings.get("app") is not None:
        yield SettingProblem(("app",), "handlers run by `towline work` take no messages of a broker: give command")


def _window_contradictions(schedule: object, low: int, high: int) -> Iterator[SettingProblem]:
    """Yield the problems of windows that set nothing, or that put min above max, given the pool's own bounds."""
    for index, window in enumerate(schedule if isinstance(schedule, list | tuple) else ()):
        workers = window.get("workers") if isinstance(window, Mapping) else None
        if not isinstance(workers, Mapping):
            continue
        path = ("schedule", index, "workers")
        if not workers:
            yield SettingProblem(path, "give min, max or both")
        least, most = workers.get("min", low), workers.get("max", high)
        shuts = most == 0 and "min" not in workers  # then min does not matter
        if isinstance(least, int) and isinstance(most, int) and least > most and not shuts:
            whose = "" if "max" in workers else "the pool's own "
            yield SettingProblem((*path, "min"), f"must be at most {whose}max, which is {most}: {least}")
