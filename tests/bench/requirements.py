"""Towline's speed requirements, as ratios between figures of one run, and their verdicts. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["x", "ms", "s", "%", "MiB"]
SCALED_VERBS = ("stats", "add", "lease", "delete")
SCALE: Mapping[Unit, float] = {"x": 1.0, "ms": 1e3, "s": 1.0, "%": 100.0, "MiB": 1 / (1 << 20)}


@dataclass(frozen=True, slots=True)
class Requirement:
    """`figure`, or its ratio to `against`, must lie on the right side of `bound` (in `unit`)."""

    what: str
    figure: str
    side: Literal["at least", "under"]
    bound: float
    unit: Unit = "x"
    against: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a requirement; `measured` is None when a figure is missing."""

    requirement: Requirement
    measured: float | None
    word: Literal["ok", "MISSED", "skipped"]
    reason: str = ""


def _faster(what: str, figure: str, times: float, against: str) -> Requirement:
    return Requirement(what, figure, "at least", times, against=against)


def _same_cost(what: str, figure: str, against: str) -> Requirement:
    return Requirement(what, figure, "under", 1.5, against=against)


def _scale(owner: str, engine: str) -> Sequence[Requirement]:
    """Require the same cost at a hundred times the tasks, and at many tags."""
    return (
        *(
            _same_cost(f"{engine}: {verb} at 1,000,000 pending vs 10,000", f"{owner}.{verb}_1m", f"{owner}.{verb}_10k")
            for verb in SCALED_VERBS
        ),
        *(
            _same_cost(f"{engine}: {verb} with 100,000 tags vs 1", f"{owner}.{verb}_100k_tags", f"{owner}.{verb}_1_tag")
            for verb in SCALED_VERBS
        ),
    )


def _flat(owner: str, engine: str, names: Sequence[str]) -> Sequence[Requirement]:
    """Require that churn does not make these grow."""
    return tuple(
        _same_cost(f"{engine}: churn, {name}, last vs second minute", f"{owner}.last_{name}", f"{owner}.second_{name}")
        for name in names
    )


def _across(engine: str, name: str) -> Requirement:
    what = f"{name}: add at one server to a lease waiting at another, median"
    return Requirement(what, f"latency-{engine}.across_servers", "under", 10, "ms")


def _starts(application: str, what: str) -> Sequence[Requirement]:
    """Require what forking workers promises, whatever the application imports."""
    name = f"starts.{application}_fork"
    return (
        Requirement(f"forked, {what}: decision to the task begun", f"{name}_one", "under", 25, "ms"),
        Requirement(f"forked, {what}: add at a pool at zero to the task begun", f"{name}_way", "under", 60, "ms"),
        Requirement(f"forked, {what}: kill -9 of a worker to its task restarted", f"{name}_again", "under", 0.2, "s"),
        Requirement(f"forked, {what}: last of 40 tasks begun", f"{name}_last", "under", 0.8, "s"),
    )


def _held(holder: str, what: str) -> Sequence[Requirement]:
    """Require that work goes on as before while a snapshot is held."""
    name = f"postgres-held-postgresql.{holder}_towline"
    return (
        Requirement(f"held by {what}: done of 800 tasks a second", f"{name}_held_done_share", "at least", 99, "%"),
        Requirement(
            f"held by {what}: ready to lease, p95, vs before",
            f"{name}_held_p95",
            "under",
            2,
            against=f"{name}_before_p95",
        ),
        Requirement(f"held by {what}: totals that are wrong", f"{name}_wrong_totals_count", "under", 1),
    )


def _shared(what: str, figure: str) -> Requirement:
    """Require that what is imported is shared. Each worker writes to 6 MiB, a third of one that imports nothing."""
    return Requirement(what, f"starts.large_fork_{figure}", "under", 0.25, against=f"starts.large_exec_{figure}")


_SQLITE = (
    _faster("add x100 vs pgmq", "towline.add_batch", 2, "pgmq.add_batch"),
    _faster("add x100 vs Procrastinate", "towline.add_batch", 8, "procrastinate.add_batch"),
    _faster("lease + delete x100, 2 processes, vs pgmq", "towline.drain_batch", 2, "pgmq.drain_batch"),
    _faster("add one by one vs Celery", "towline.add", 1.8, "celery.add"),
    _faster("lease + delete one by one, 2 processes, vs Celery", "towline.drain", 3.8, "celery.drain"),
    _faster("lease + delete one by one, 2 processes, vs Huey", "towline.drain", 1.3, "huey.drain"),
    _faster("lease + delete one by one, 2 processes, vs Procrastinate", "towline.drain", 6, "procrastinate.drain"),
    _faster(
        "lease + delete one by one, 2 processes, vs beanstalkd synced", "towline.drain", 0.9, "beanstalkd-synced.drain"
    ),
    _faster("add one by one, relaxed, vs beanstalkd without a log", "towline-relaxed.add", 2, "beanstalkd.add"),
    _faster("served, 2 workers, one task at a time, vs Celery prefork 2", "towline-served.drain", 2.6, "celery.drain"),
    _faster("the same, relaxed: Celery syncs nothing either", "towline-served-relaxed.drain", 2.6, "celery.drain"),
    _faster("served, 2 workers, one task at a time, vs RQ", "towline-served.drain", 20, "rq.drain"),
    _faster("the same, relaxed: RQ syncs nothing either", "towline-served-relaxed.drain", 20, "rq.drain"),
    Requirement("add to start of handler, median", "towline-served.latency", "under", 3, "ms"),
    _faster("64 connections adding one by one vs 1", "path.add_by_64_connections", 5, "path.add_by_1_connection"),
    Requirement("round trips a task in steady state", "path.round_trips_per_task", "under", 1.05),
    *_scale("scale", "SQLite"),
    _same_cost("memory of the server at 1,000,000 pending vs 10,000", "scale.server_rss_1m", "scale.server_rss_10k"),
    Requirement("1,000 waiting lease calls, of a core", "waiting.cpu_share", "under", 2, "%"),
    Requirement("add to a waiting worker's lease, median", "waiting.wake_up", "under", 5, "ms"),
    Requirement("idle `up`, 3 empty pools, of a core", "idle.cpu_share", "under", 1, "%"),
    Requirement("`up` on a terminal, idle, of a core", "relaying.idle_cpu_share", "under", 1, "%"),
    Requirement("`up`, 10,000 lines a second of output, of a core", "relaying.relaying_cpu_share", "under", 10, "%"),
    Requirement("idle `up`, whole tree, memory (PSS)", "idle.pss", "under", 120, "MiB"),
    Requirement("start of a worker to its first lease", "idle.worker_start", "under", 0.5, "s"),
    *_starts("nothing", "imports nothing"),
    *_starts("large", "imports pandas"),
    *_starts("slow", "imports for 2 s"),
    _shared("forked, imports pandas: memory of 40 (PSS) vs executed", "pss"),
    _shared("the same after 1,000 tasks each and a collection", "pss_after"),
    *_flat("churn", "SQLite", ("table_bytes", "log_bytes", "add_p50", "add_p95", "exchange_p50", "exchange_p95")),
)
_POSTGRESQL = (
    _faster("PostgreSQL: add x100 vs pgmq", "towline-postgresql.add_batch", 1, "pgmq.add_batch"),
    _faster(
        "PostgreSQL: lease + delete x100, 2 processes, vs pgmq",
        "towline-postgresql.drain_batch",
        1.3,
        "pgmq.drain_batch",
    ),
    _faster(
        "PostgreSQL: lease + delete one by one, 2 processes, vs pgmq", "towline-postgresql.drain", 1.8, "pgmq.drain"
    ),
    _faster(
        "PostgreSQL: lease + delete one by one vs Procrastinate's workers",
        "towline-postgresql.drain",
        3,
        "procrastinate.drain",
    ),
    _faster(
        "PostgreSQL: 2 `work` processes vs Procrastinate's workers",
        "towline-postgresql-work.drain",
        3,
        "procrastinate.drain",
    ),
    *_scale("scale-postgresql", "PostgreSQL"),
    *_flat(
        "churn-postgresql",
        "PostgreSQL",
        ("table_bytes", "index_bytes", "add_p50", "add_p95", "exchange_p50", "exchange_p95"),
    ),
    _across("postgresql", "PostgreSQL"),
    *_held("transaction", "a transaction"),
    *_held("dump", "pg_dump"),
    *_held("prepared", "a prepared transaction"),
    *_held("slot", "a standby's slot"),
)
_REDIS = (
    _faster("Redis: add one by one vs Celery", "towline-redis.add", 2, "celery-logged.add"),
    _faster(
        "Redis: 2 `work` processes, one by one, vs Celery prefork 2",
        "towline-redis-work.drain",
        4,
        "celery-logged.drain",
    ),
    _faster("Redis: the same vs Celery tuned", "towline-redis-work.drain", 4, "celery-tuned.drain"),
    _faster("Redis: add one by one vs Taskiq streams", "towline-redis.add", 1.2, "taskiq.add"),
    _faster(
        "Redis: 2 workers of 100 tasks each vs Taskiq streams", "towline-redis-work-100.drain", 1.2, "taskiq.drain"
    ),
    _faster("Redis: add one by one vs ARQ", "towline-redis.add", 1.2, "arq.add"),
    _faster("Redis: 2 workers one by one vs ARQ's of 10 jobs each", "towline-redis-work.drain", 1.2, "arq-tuned.drain"),
    *_scale("scale-redis", "Redis"),
    *_flat("churn-redis", "Redis", ("table_bytes", "add_p50", "add_p95", "exchange_p50", "exchange_p95")),
    _across("redis", "Redis"),
)
REQUIREMENTS = _SQLITE + _POSTGRESQL + _REDIS


def judge(figures: Mapping[str, float], missing: Mapping[str, str]) -> Sequence[Verdict]:
    """Return the verdict on each requirement from the run's medians; those not chosen are left out.

    Args:
        missing: why a chosen system or section has no figures.
    """
    verdicts = [_verdict(requirement, figures, missing) for requirement in REQUIREMENTS]
    return [verdict for verdict in verdicts if verdict is not None]


def _verdict(requirement: Requirement, figures: Mapping[str, float], missing: Mapping[str, str]) -> Verdict | None:
    needed = [requirement.figure] + ([requirement.against] if requirement.against else [])
    absent = [name.split(".")[0] for name in needed if name not in figures]
    for owner in absent:
        if owner in missing:
            return Verdict(requirement, None, "skipped", f"{owner}: {missing[owner].splitlines()[0]}")
    if absent:
        return None
    measured = figures[requirement.figure] * SCALE[requirement.unit]
    if requirement.against:
        measured /= figures[requirement.against]
    kept = measured >= requirement.bound if requirement.side == "at least" else measured < requirement.bound
    return Verdict(requirement, measured, "ok" if kept else "MISSED")
