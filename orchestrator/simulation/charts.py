"""Draw a study: block characters for a terminal, SVG for a file. Pure: it returns text."""

import math
from collections.abc import Sequence
from typing import Final

from orchestrator.base.charts import OUTLIER, Chart, ChartPanel, Curve, rates_of, rounded_up, svg_of
from orchestrator.simulation.results import RunResult
from orchestrator.simulation.study import StudyRow
from orchestrator.simulation.workload import Workload
from queue_core.process.wording import shown_seconds, shown_setting


def workers_over(sizes: Sequence[tuple[float, int]], *, end_at: float, slots: int) -> list[float]:
    """Return the mean workers in each slot of the time from 0 to `end_at`; each size holds until the next one."""
    width = end_at / slots
    seconds = [0.0] * slots
    for place, (at, size) in enumerate(sizes):
        until = min(end_at, sizes[place + 1][0] if place + 1 < len(sizes) else end_at)
        slot = int(at / width)
        while size and at < until and slot < slots:
            edge = min(until, (slot + 1) * width)
            seconds[slot] += size * max(0.0, edge - at)
            at = max(at, edge)  # noqa: PLW2901  the rest of this stretch
            slot += 1
    return [held / width for held in seconds]


_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_MIN_COLUMNS: Final = 20
_WIDTH: Final = 960
_ARRIVAL_SLOTS: Final = 240
_WORKERS_HEIGHT: Final = 56
_WAITS_HEIGHT: Final = 40


def terminal_chart(workload: Workload, rows: Sequence[StudyRow], *, columns: int, height: int = 4) -> list[str]:
    """Return lines with the arrivals, then the workers of each row, over the same time; all fleets have one scale."""
    slots = max(_MIN_COLUMNS, columns - 12)
    end_at = _end_of(rows)
    most = _most_workers(rows)
    rates = [rate for _, rate in rates_of(workload.ready_at, seconds=end_at, slots=slots)]
    lines = ["", "arrivals per second", *_blocks(rates, max(rates), height)]
    for row in rows:
        lines += ["", f"{_titled(row)}: workers ({_lateness(row)})"]
        lines += _blocks(workers_over(row.result.sizes, end_at=end_at, slots=slots), most, height)
    marks = [shown_seconds(end_at * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return [*lines, " " * 9 + _axis(marks, slots)]


def _axis(marks: Sequence[str], columns: int) -> str:
    """Return the marks at equal distances; the last one ends where the bars do, and one without room is left out."""
    axis, last = "", columns - len(marks[-1])
    for place, mark in enumerate(marks[:-1]):
        column = columns * place // (len(marks) - 1)
        if column + len(mark) < last and column >= len(axis):
            axis = axis.ljust(column) + mark
    return axis.ljust(last) + marks[-1]


def _blocks(values: Sequence[float], most: float, height: int) -> list[str]:
    """Return rows of blocks, the highest first, with the scale on the left."""
    most = most or 1.0
    lines = []
    for level in range(height, 0, -1):
        filled = (min(1.0, max(0.0, value / most * height - level + 1)) for value in values)
        # Any value above zero is visible.
        bar = "".join(
            _BLOCKS[max(round(part * 8), 1 if level == 1 and value > 0 else 0)]
            for part, value in zip(filled, values, strict=True)
        )
        label = f"{most:.3g}" if level == height else "0" if level == 1 else ""
        lines.append(f"{label:>7} {'┤' if label else '│'}{bar}".rstrip())
    return lines


def svg_chart(workload: Workload, rows: Sequence[StudyRow], *, title: str) -> str:
    """Return a standalone SVG document: arrivals, then workers and waits of each row, over the same time.

    Workers have one scale in all rows, and so have waits: see `_common_top`.
    """
    seconds = _end_of(rows)
    arrivals = Curve("arrivals", rates_of(workload.ready_at, seconds=seconds, slots=_ARRIVAL_SLOTS), "three")
    panels = [ChartPanel("arrivals", "tasks a second", [arrivals])]
    workers = _common_top(rows, [float(row.result.peak) for row in rows])
    slo = max((row.result.slo_seconds for row in rows), default=1.0)
    waits = _common_top(rows, [row.result.wait_max for row in rows], least=1.25 * slo)
    for row in rows:
        result, shade = row.result, "one" if row.is_towline else "two"
        panels += (
            ChartPanel(
                _titled(row),
                "workers",
                [Curve("workers", result.sizes, shade)],
                notes=[_cost_text(result)],
                top=workers,
                height=_WORKERS_HEIGHT,
            ),
            ChartPanel(
                "longest waits",
                "seconds",
                [Curve("longest wait", result.longest_waits, shade)],
                limit=(result.slo_seconds, f"slo {shown_setting(result.slo_seconds)}"),
                top=waits,
                height=_WAITS_HEIGHT,
            ),
        )
    return svg_of(Chart(seconds, panels, title=title), width=_WIDTH)


def _common_top(rows: Sequence[StudyRow], peaks: Sequence[float], *, least: float = 0.0) -> float:
    """Return one scale for the panels of all rows: that of our pools, and of others that are not far above these."""
    ours = max((peak for row, peak in zip(rows, peaks, strict=True) if row.is_towline), default=0.0)
    limit = OUTLIER * max(ours, least) or math.inf
    return rounded_up(max([peak for peak in peaks if peak <= limit] + [ours, least]) or 1.0)


def _cost_text(result: RunResult) -> str:
    """Return the cost of a run and its waits, with their units."""
    return (
        f"{result.worker_seconds / 3600:,.2f} worker-hours; {result.late_share:.2%} late; half of the waits under "
        f"{shown_seconds(result.wait_p50)}, 99 % under {shown_seconds(result.wait_p99)}, the longest "
        f"{shown_seconds(result.wait_max)}, {result.worst_over_slo:.2f} of the slo"
    )


def _titled(row: StudyRow) -> str:
    return f"{row.name} at {shown_setting(row.result.slo_seconds)}" if row.is_towline else row.name


def _lateness(row: StudyRow) -> str:
    """Return how many tasks were late, and how late."""
    result = row.result
    return f"{result.late_share:.2%} late, p99 {result.p99_over_slo:.2f} slo, worst {result.worst_over_slo:.2f} slo"


def _end_of(rows: Sequence[StudyRow]) -> float:
    return max(1.0, *(row.result.ended_at for row in rows)) if rows else 1.0


def _most_workers(rows: Sequence[StudyRow]) -> float:
    """Return the common scale of all panels of workers, so that they can be compared."""
    return float(max((row.result.peak for row in rows), default=1))
