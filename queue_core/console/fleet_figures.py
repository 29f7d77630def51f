"""The first page at a glance: rates, waits and workers, each with its last hour. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

from queue_core.console.rates import QueueRates
from queue_core.console.sparkline import Sparkline, greatest_of, sparkline, total_of
from queue_core.process.wording import shown_rate, shown_seconds
from queue_core.verbs.wire import Json

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the first page.

    Args:
        detail: a few words under it; "" for none.
        line: its last hour; None where that is not known.
        of_line: what the line shows, for those who do not see it.
        is_bad: whether a person should look at it.
    """

    label: str
    text: str
    detail: str = ""
    line: Sparkline | None = None
    of_line: str = ""
    is_bad: bool = False


def figures_of_pools(pools: Sequence[Json], trends: Sequence[Json]) -> list[Figure]:
    """Return the figures of a fleet: its pools now, and their last hour."""

    def line(name: str, together: Callable[[Sequence[Values]], Values] = total_of) -> Sparkline | None:
        lines = [tuple(cast("list[float | None]", one[name])) for one in trends if name in one]
        return sparkline(together(lines)) if lines else None

    def rate(name: str) -> float:
        return sum(cast("float", one.get(f"{name}_per_second", 0.0)) for one in trends)

    return [
        *_moving(QueueRates(rate("arrivals"), rate("completed"), rate("failed")), line),
        _waiting(pools, line("ready")),
        _wait(pools, line("longest_wait_seconds", greatest_of)),
        _workers(pools, line("workers")),
    ]


def _moving(rates: QueueRates, line: Callable[[str], Sparkline | None] = lambda _: None) -> list[Figure]:
    """Return what goes in, what comes out and what fails; `line` has the last hour of each."""

    def figure(label: str, per_second: float, detail: str, name: str, *, is_bad: bool = False) -> Figure:
        of_line = f"{detail.capitalize()} per minute"
        return Figure(label, f"{shown_rate(per_second)}/s", detail, line(name), of_line, is_bad)

    return [
        figure("In", rates.added, "tasks added", "arrivals"),
        figure("Out", rates.completed, "tasks completed", "completed"),
        figure("Failures", rates.failed, "failed attempts", "failed", is_bad=rates.failed > 0),
    ]


def _waiting(pools: Sequence[Json], line: Sparkline | None) -> Figure:
    ready = sum(cast("int", pool["ready"]) for pool in pools)
    oldest = max((cast("float", pool["oldest_age_seconds"]) for pool in pools if pool["ready"]), default=0.0)
    detail = f"oldest {shown_seconds(oldest)}" if ready else "nothing waits"
    return Figure("Waiting", f"{ready:,}", detail, line, "Tasks waiting")


def _wait(pools: Sequence[Json], line: Sparkline | None) -> Figure:
    """Return the pool whose waits are worst against its SLO."""
    if not pools:
        return Figure("p99 wait", "none", "no pools")
    worst = max(pools, key=lambda pool: cast("float", pool["p99_over_slo"]))
    over, slo = cast("float", worst["p99_over_slo"]), cast("float", worst["slo_seconds"])
    where = f" ({worst['pool']})" if len(pools) > 1 else ""
    detail = f"of the {shown_seconds(slo)} SLO{where}"
    return Figure("p99 wait", shown_seconds(over * slo), detail, line, "Longest wait in seconds", over > 1)


def _workers(pools: Sequence[Json], line: Sparkline | None) -> Figure:
    counts = {state: sum(cast("int", pool[f"{state}_workers"]) for pool in pools) for state in _STATES}
    parts = [f"{count:,} {state}" for state, count in counts.items() if count]
    alive = sum(cast("int", pool["alive_workers"]) for pool in pools)
    return Figure("Workers", f"{alive:,}", ", ".join(parts) or "none needed", line, "Workers")


_STATES = ("busy", "idle", "starting", "draining")


def figures_of_queues(queues: Sequence[Json], rates: Collection[QueueRates]) -> list[Figure]:
    """Return the figures of a server that no supervisor runs beside: what its queues count."""

    def total(name: str) -> int:
        return sum(cast("int", one[name]) for one in queues)

    added, completed = sum(one.added for one in rates), sum(one.completed for one in rates)
    failed = sum(one.failed for one in rates)
    dead = total("dead")
    return [
        *(_moving(QueueRates(added, completed, failed)) if rates else ()),
        Figure("Waiting", f"{total('ready'):,}"),
        Figure("Running", f"{total('in_flight'):,}"),
        Figure("Dead", f"{dead:,}", is_bad=dead > 0),
        Figure("Queues", f"{len(queues):,}"),
    ]
