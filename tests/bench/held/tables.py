"""The figures of `postgres-held` as tables and as JSON. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tests.bench.held.figures import CATCH_UP_SECONDS, HeldRun
from tests.bench.held.holders import TITLES
from tests.bench.report import text_table

HEADINGS = (
    "system",
    "offered",
    "done before",
    "held",
    "p95 before",
    "held",
    "after",
    "held/before",
    "engine's cores before",
    "held",
    "behind at the end",
    "caught up",
    "totals at the end",
)


def holder_table(holder: str, runs: Sequence[HeldRun], names: Mapping[str, str]) -> str:
    """Return what each system did with this holder: how much of the offered was done, and waits from ready to lease."""
    lines = [HEADINGS, *(_cells(run, names[run.system]) for run in runs)]
    return f"{TITLES[holder]}\n{text_table(lines)}"


def _cells(run: HeldRun, name: str) -> Sequence[str]:
    caught_up = "-" if run.is_carried else "was behind before"
    if run.is_carried and run.behind > run.usually_behind:
        seconds = run.catch_up_seconds
        caught_up = f"not in {CATCH_UP_SECONDS:.0f} s" if seconds is None else f"{seconds:.1f} s"
    totals = "-" if run.differences is None else "exact" if not run.differences else "; ".join(run.differences)
    return (
        name,
        f"{run.tasks_per_second:,}/s",
        *(f"{part.done_share:.1%}" for part in (run.before, run.held)),
        *(f"{part.p95 * 1e3:,.1f} ms" for part in (run.before, run.held, run.after)),
        f"{run.ratio:.2f}x",
        *(f"{part.engine_cores:.2f}" for part in (run.before, run.held)),
        f"{run.behind:,}",
        caught_up,
        totals,
    )


def part_line(run: HeldRun, name: str) -> str:
    """Return one run in a line, for the time until the tables are there."""
    return (
        f"{run.holder}, {name}: {run.held.done_share:.1%} done while held, p95 {run.before.p95 * 1e3:,.1f} ms before,"
        f" {run.held.p95 * 1e3:,.1f} held, {run.after.p95 * 1e3:,.1f} after; {run.behind:,} behind;"
        f" load {run.before.load_average:.1f}, {run.held.load_average:.1f}, {run.after.load_average:.1f}"
    )


def runs_as_json(
    machine: Mapping[str, object], seconds: float, runs: Sequence[HeldRun], skipped: Mapping[str, str]
) -> dict[str, object]:
    """Return everything: times in seconds, rates in tasks a second."""
    listed = [_finite(asdict(run) | {"p95_ratio": run.ratio, "is_carried": run.is_carried}) for run in runs]
    return {"machine": dict(machine), "held_seconds": seconds, "runs": listed, "skipped": dict(skipped)}


def _finite(value: object) -> object:
    """Return it with null for what is infinite: the wait of a part in which nothing was leased."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
