"""The settings of an app of Celery's, as far as they decide what becomes of its tasks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

TOWLINE: Final = "towline"
DEFAULT_VISIBILITY_SECONDS: Final = 3600.0
"""After so long a task that is not acknowledged is delivered again by kombu's transport for Redis."""


@dataclass(frozen=True, slots=True)
class CeleryTask:
    """A task of the app. `time_limit_seconds`: its own; None: the app's."""

    name: str
    acks_late: bool = False
    acks_on_failure: bool = True
    is_run_again_when_lost: bool = False
    time_limit_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CeleryFacts:
    """An app.

    Args:
        app: as `celery -A` takes it.
        broker, backend: the schemes of their URLs; "": none.
        visibility_seconds: the setting of the transport; None: none.
        settings: by Celery's names.
        workers: the same of each worker that runs.
        queues: the arguments of each queue, as RabbitMQ names them.
    """

    app: str
    version: str = ""
    broker: str = ""
    backend: str = ""
    visibility_seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[CeleryTask, ...] = ()
    workers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    queues: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_on_towline(self) -> bool:
        """Return whether its broker is Towline."""
        return self.broker.startswith(TOWLINE)

    @property
    def is_on_redis(self) -> bool:
        """Return whether its broker is a Redis."""
        return self.broker in ("redis", "rediss", "redis+socket", "sentinel")

    @property
    def longest_limit_seconds(self) -> float | None:
        """The longest that one of its tasks may run; None: one of them may run for ever."""
        general = _number(self.settings.get("task_time_limit"))
        limits = [one.time_limit_seconds or general for one in self.tasks] or [general]
        known = [limit for limit in limits if limit]
        return max(known) if len(known) == len(limits) else None


def facts_in(answer: Mapping[str, Any]) -> CeleryFacts:
    """Return the facts in what the reader prints."""
    return CeleryFacts(
        app=str(answer["app"]),
        version=str(answer["version"]),
        broker=str(answer["broker"]),
        backend=str(answer["backend"]),
        visibility_seconds=_number(answer["visibility_seconds"]),
        settings=answer["settings"],
        tasks=tuple(
            CeleryTask(
                str(one["name"]),
                acks_late=bool(one["acks_late"]),
                acks_on_failure=bool(one["acks_on_failure_or_timeout"]),
                is_run_again_when_lost=bool(one["reject_on_worker_lost"]),
                time_limit_seconds=_number(one["time_limit"]),
            )
            for one in answer["tasks"]
        ),
        workers=answer["workers"],
        queues=answer["queues"],
    )


def as_run(facts: CeleryFacts, *, broker: str, pool: str) -> CeleryFacts:
    """Return the facts of an app whose workers a pool of ours starts, with a broker and options of its own."""
    settings = {**facts.settings, "worker_prefetch_multiplier": 1, "worker_pool": pool}
    return replace(facts, broker=broker, settings=settings)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
