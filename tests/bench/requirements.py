"""What Towline promises about speed, as ratios between figures of one run, and whether a run kept it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["x", "ms", "s", "%", "MiB"]
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
    """A requirement and what the run says of it; `measured` is None when a figure is missing."""

    requirement: Requirement
    measured: float | None
    word: Literal["ok", "MISSED", "skipped"]
    reason: str = ""


def _faster(what: str, figure: str, times: float, against: str) -> Requirement:
    return Requirement(what, figure, "at least", times, against=against)


def _same_cost(what: str, figure: str, against: str) -> Requirement:
    return Requirement(what, figure, "under", 1.5, against=against)


REQUIREMENTS = (
    _faster("add x100 vs pgmq", "towline.add_batch", 2, "pgmq.add_batch"),
    _faster("add x100 vs Procrastinate", "towline.add_batch", 8, "procrastinate.add_batch"),
    _faster("lease + delete x100, 2 processes, vs pgmq", "towline.drain_batch", 2, "pgmq.drain_batch"),
    _faster("add one by one vs Celery", "towline.add", 2, "celery.add"),
    _faster("lease + delete one by one, 2 processes, vs Celery", "towline.drain", 4, "celery.drain"),
    _faster("lease + delete one by one, 2 processes, vs Procrastinate", "towline.drain", 6, "procrastinate.drain"),
    _faster(
        "lease + delete one by one, 2 processes, vs beanstalkd synced", "towline.drain", 0.9, "beanstalkd-synced.drain"
    ),
    _faster("add one by one, relaxed, vs beanstalkd without a log", "towline-relaxed.add", 2, "beanstalkd.add"),
    _faster("served, 2 workers, one task at a time, vs Celery prefork 2", "towline-served.drain", 3, "celery.drain"),
    _faster("the same, relaxed: Celery syncs nothing either", "towline-served-relaxed.drain", 3, "celery.drain"),
    _faster("served, 2 workers, one task at a time, vs RQ", "towline-served.drain", 30, "rq.drain"),
    _faster("the same, relaxed: RQ syncs nothing either", "towline-served-relaxed.drain", 30, "rq.drain"),
    Requirement("add to start of handler, median", "towline-served.latency", "under", 3, "ms"),
    _faster("64 connections adding one by one vs 1", "path.add_by_64_connections", 5, "path.add_by_1_connection"),
    Requirement("round trips a task in steady state", "path.round_trips_per_task", "under", 1.05),
    _same_cost("stats at 1,000,000 pending vs 10,000", "scale.stats_1m", "scale.stats_10k"),
    _same_cost("lease at 1,000,000 pending vs 10,000", "scale.lease_1m", "scale.lease_10k"),
    _same_cost("add at 1,000,000 pending vs 10,000", "scale.add_1m", "scale.add_10k"),
    _same_cost("stats with 100,000 tags vs 1", "scale.stats_100k_tags", "scale.stats_1_tag"),
    _same_cost("lease by tag with 100,000 tags vs 1", "scale.lease_100k_tags", "scale.lease_1_tag"),
    _same_cost("add with 100,000 tags vs 1", "scale.add_100k_tags", "scale.add_1_tag"),
    _same_cost("memory of the server at 1,000,000 pending vs 10,000", "scale.server_rss_1m", "scale.server_rss_10k"),
    Requirement("1,000 waiting lease calls, of a core", "waiting.cpu_share", "under", 2, "%"),
    Requirement("add to a waiting worker's lease, median", "waiting.wake_up", "under", 5, "ms"),
    Requirement("idle `up`, 3 empty pools, of a core", "idle.cpu_share", "under", 1, "%"),
    Requirement("idle `up`, whole tree, memory (PSS)", "idle.pss", "under", 120, "MiB"),
    Requirement("start of a worker to its first lease", "idle.worker_start", "under", 0.5, "s"),
)


def judge(figures: Mapping[str, float], missing: Mapping[str, str]) -> Sequence[Verdict]:
    """What the run's medians say of each requirement; `missing` tells why a system or section has no figures."""
    return [_verdict(requirement, figures, missing) for requirement in REQUIREMENTS]


def _verdict(requirement: Requirement, figures: Mapping[str, float], missing: Mapping[str, str]) -> Verdict:
    needed = [requirement.figure] + ([requirement.against] if requirement.against else [])
    for name in needed:
        if name not in figures:
            owner = name.split(".")[0]
            reason = missing.get(owner, "not asked for").splitlines()[0]
            return Verdict(requirement, None, "skipped", f"{owner}: {reason}")
    measured = figures[requirement.figure] * SCALE[requirement.unit]
    if requirement.against:
        measured /= figures[requirement.against]
    kept = measured >= requirement.bound if requirement.side == "at least" else measured < requirement.bound
    return Verdict(requirement, measured, "ok" if kept else "MISSED")
