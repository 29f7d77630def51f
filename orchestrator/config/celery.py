"""The settings of pools whose workers are Celery's, and the command line of such a worker. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from orchestrator.config.model import Count, FleetSettingsModel
from queue_core.config.celery_names import store_name
from queue_core.config.messages import SettingProblem

MAX_CELERY_CONCURRENCY: Final = 1_000
MAX_QUEUES: Final = 50
COLD_SECONDS: Final = 10.0
"""Time from SIGQUIT, on which a worker of Celery's ends its tasks and gives them back, to killing it."""
SOFT_MARGIN_SECONDS: Final = 5.0
"""Time before the end of a container's grace at which its worker gives back what still runs."""
OWN_MODULE: Final = "queue_core.kombu.worker"
"""The module that runs Celery's worker with Towline as its broker."""
_APP_FILE: Final = re.compile(r"(?P<module>[^:]*)\.py(?::(?P<attribute>.*))?")
_OURS: Final = {
    "-A": "celery.app",
    "--app": "celery.app",
    "-Q": "celery.queues",
    "--queues": "celery.queues",
    "-c": "celery.concurrency",
    "--concurrency": "celery.concurrency",
    "-P": "celery.pool",
    "--pool": "celery.pool",
    "-n": "the supervisor, which names each worker",
    "--hostname": "the supervisor, which names each worker",
    "--prefetch-multiplier": "the supervisor: a worker leases what it can run",
    "--autoscale": "celery.concurrency; the supervisor scales whole workers",
    "-b": "the supervisor, which knows the broker",
    "--broker": "the supervisor, which knows the broker",
    "-D": "the supervisor: a worker that leaves its process can't be watched",
    "--detach": "the supervisor: a worker that leaves its process can't be watched",
}

_DEFAULT_QUEUES: Final = ("celery",)

CeleryPool = Literal["prefork", "threads", "solo", "gevent", "eventlet"]


def _module(value: object) -> object:
    """Refuse the file of a module, and suggest the module's name."""
    if isinstance(value, str) and (found := _APP_FILE.fullmatch(value)):
        module = found["module"].removeprefix("./").strip("/").replace("/", ".")
        raise ValueError(f"{value}: a module, not a file: write {module}")
    return value


def _queue_name(value: object) -> object:
    if isinstance(value, str) and "," in value:
        raise ValueError(f"{value}: Celery takes a comma for the end of a name: write a list, one name each")
    return value


class CelerySettings(FleetSettingsModel):
    """The settings of a pool's workers that are Celery's: what `celery worker` is told."""

    app: Annotated[str, BeforeValidator(_module)] = Field(
        pattern=r"^[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?$",
        examples=["proj"],
        description="The app, as `celery -A` takes it.",
    )
    queues: tuple[Annotated[str, BeforeValidator(_queue_name), Field(min_length=1, max_length=250)], ...] = Field(
        default=_DEFAULT_QUEUES,
        min_length=1,
        max_length=MAX_QUEUES,
        description="The queues it works on, by Celery's names.",
    )
    concurrency: Count = Field(
        default=1, ge=1, le=MAX_CELERY_CONCURRENCY, description="Tasks one worker runs at a time; the pool's too."
    )
    pool: CeleryPool = Field(default="prefork", description="How a worker runs its tasks, as `celery worker -P`.")
    options: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        examples=[["--max-tasks-per-child", "100"]],
        description="Further arguments of `celery worker`.",
    )
    namespace: str = Field(
        default="", max_length=80, description="The namespace of its queues, as in the broker's URL."
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        examples=["venv/bin/python"],
        description="The Python that has Celery and the app; left out: the supervisor's own, or the container's.",
    )

    @property
    def store_names(self) -> tuple[str, ...]:
        """The names that its queues have in Towline's store."""
        return tuple([store_name(queue, namespace=self.namespace) for queue in self.queues])


def derived_from(settings: Mapping[str, object]) -> Mapping[str, object]:
    """Return a pool's settings with those that follow from `celery`: its first queue, and its concurrency."""
    celery = settings.get("celery")
    if isinstance(celery, CelerySettings):
        celery = celery.model_dump()
    if not isinstance(celery, Mapping):
        return settings
    queues = celery.get("queues", _DEFAULT_QUEUES)
    first = queues[0] if isinstance(queues, list | tuple) and queues else None
    namespace = celery.get("namespace", "")
    derived = dict(settings)
    if "queue" not in settings and settings.get("source") is None:
        is_named = isinstance(first, str) and bool(first) and isinstance(namespace, str)
        derived["queue"] = store_name(str(first), namespace=str(namespace)) if is_named else "celery"
    concurrency = celery.get("concurrency", 1)
    if "concurrency" not in settings and isinstance(concurrency, int):
        derived["concurrency"] = min(max(1, concurrency), MAX_CELERY_CONCURRENCY)
    return derived


def celery_contradictions(settings: Mapping[str, object]) -> Iterator[SettingProblem]:
    """Yield the problems of a pool's settings with its `celery`."""
    celery = settings.get("celery")
    if not isinstance(celery, Mapping):
        return
    for other in ("app", "command"):
        if settings.get(other) is not None:
            yield SettingProblem((other,), f"give either {other} or celery, not both")
    for other in ("tags", "untagged"):
        if settings.get(other):
            yield SettingProblem((other,), "a worker of Celery's takes every task of its queues: leave this out")
    yield from _queue_problems(settings, celery)
    yield from _concurrency_problems(settings, celery)
    options = celery.get("options", ())
    for index, option in enumerate(options if isinstance(options, list | tuple) else ()):
        if (owner := _OURS.get(str(option).partition("=")[0])) is not None:
            yield SettingProblem(("celery", "options", index), f"{option}: is set by {owner}: leave it out")
        elif str(option) == "--":
            yield SettingProblem(("celery", "options", index), "--: give options only; settings are the app's")


def _queue_problems(settings: Mapping[str, object], celery: Mapping[str, object]) -> Iterator[SettingProblem]:
    queues, namespace = celery.get("queues", _DEFAULT_QUEUES), celery.get("namespace", "")
    if not isinstance(queues, list | tuple) or not isinstance(namespace, str):
        return
    names = [queue for queue in queues if isinstance(queue, str) and queue]
    if len(set(names)) < len(names):
        yield SettingProblem(("celery", "queues"), "a queue is given twice")
    if (
        names
        and settings.get("source") is None
        and settings.get("queue") not in (None, store_name(names[0], namespace=namespace))
    ):
        yield SettingProblem(("queue",), "its queues are those of celery: write celery.queues, and leave this out")


def _concurrency_problems(settings: Mapping[str, object], celery: Mapping[str, object]) -> Iterator[SettingProblem]:
    concurrency = celery.get("concurrency", 1)
    if settings.get("concurrency", concurrency) != concurrency:
        why = f"a worker holds what celery.concurrency says, which is {concurrency}: write it there, and leave this out"
        yield SettingProblem(("concurrency",), why)
    if celery.get("pool") == "solo" and concurrency != 1:
        yield SettingProblem(("celery", "concurrency"), f"{concurrency}: solo runs one task at a time")


def arguments_of(settings: CelerySettings, *, python: str, soft_seconds: float | None) -> list[str]:
    """Return the command of a worker whose broker is Towline; it names itself by its supervisor's name for it.

    Args:
        python: the interpreter, unless the settings name one.
        soft_seconds: the time from SIGTERM until unfinished tasks are given back; None: its supervisor sees to that.
    """
    found = [settings.python or python, "-m", OWN_MODULE, *_worker_arguments(settings)]
    if soft_seconds is not None:
        found += ["--", f"worker.soft_shutdown_timeout={soft_seconds:g}"]
    return found


def foreign_arguments_of(settings: CelerySettings, *, python: str, node: str) -> list[str]:
    """Return the command of a worker with a broker of its app's own, which needs no Towline; `node` is its name."""
    return [settings.python or python, "-m", "celery", *_worker_arguments(settings), "-n", f"{node}@%h"]


def _worker_arguments(settings: CelerySettings) -> list[str]:
    return [
        *("-A", settings.app, "worker"),
        *("-Q", ",".join(settings.queues)),
        *("-c", str(settings.concurrency)),
        *("-P", settings.pool),
        *("--prefetch-multiplier", "1"),
        *settings.options,
    ]
