"""Print a study: a table with its assumptions, JSON, a chart or an SVG file; and progress while it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from orchestrator.simulation.charts import svg_chart, terminal_chart
from orchestrator.simulation.results import RunResult
from orchestrator.simulation.study import Progress, StudyRow
from orchestrator.simulation.workload import SimulatedWorld, Workload
from queue_core.cli.output import (
    HANG,
    can_redraw,
    columns,
    echo,
    print_info,
    print_json,
    print_table,
    shown_seconds,
    terminal_width,
)
from queue_core.cli.wrapping import shortened
from queue_core.process.private_files import source_opener
from queue_core.process.terminal import clean
from queue_core.process.wording import counted, shown_setting

CHART_COLUMNS = 100
"""The width of a chart where there is no terminal."""


def progress_of(*, is_json: bool) -> Progress | None:
    """Return a function that reports progress on a terminal; None when stderr isn't one, or with JSON."""
    if is_json or not can_redraw(err=True):
        return None

    def report(name: str, share: float) -> None:
        text = shortened(f"{clean(name)}: {share:.0%}", terminal_width(err=True) or 80)
        click.echo(f"\r\033[K{text}", nl=False, err=True)

    return report


def end_progress(progress: Progress | None) -> None:
    """Erase the progress line."""
    if progress is not None:
        click.echo("\r\033[K", nl=False, err=True)


def show(
    workload: Workload,
    world: SimulatedWorld,
    rows: Sequence[StudyRow],
    *,
    notes: Sequence[str],
    as_json: bool,
    has_chart: bool,
    svg: Path | None,
    real: Mapping[str, float] | None = None,
) -> None:
    """Print a study. `real` is a recorded run's figures, named as those of a simulated result."""
    if svg is not None:
        title = f"{workload.name}: {counted(workload.tasks, 'task')}"
        with open(svg, "w", encoding="utf-8", opener=source_opener) as file:
            file.write(svg_chart(workload, rows, title=title))
    if as_json:
        print_json(_record(workload, world, rows, notes, real))
        return
    echo(_about(workload, world), hang=HANG)
    for note in notes:
        echo(note, hang=HANG)
    echo()
    heads = columns(
        "WHAT",
        ">SLO",
        ">LATE",
        ">P99/SLO",
        ">WORST/SLO",
        ">P50",
        ">P95",
        ">P99",
        ">WORKER-HOURS",
        ">OF HINDSIGHT",
        ">STARTS",
        ">CHANGES/H",
        ">PEAK",
        least=("CHANGES/H", "STARTS", "P95", "P50", "P99", "WORST/SLO", "SLO", "PEAK", "OF HINDSIGHT"),
        keeps=("LATE", "WORKER-HOURS"),
    )
    print_table(heads, [*_real_line(real), *_lines(rows)], empty="nothing to show")
    if any(row.result.unfinished or row.result.dead for row in rows):
        for row in rows:
            if row.result.unfinished or row.result.dead:
                never = counted(row.result.unfinished, "task was", "tasks were")
                print_info(f"{row.name}: {never} never done, {row.result.dead:,} died")
    if has_chart:
        for line in terminal_chart(workload, rows, columns=terminal_width() or CHART_COLUMNS):
            echo(line, hang=HANG)
    if svg is not None:
        print_info(f"chart written to {svg}")


def _about(workload: Workload, world: SimulatedWorld) -> str:
    hours = max(1.0, workload.last_at)
    return (
        f"{workload.name}: {counted(workload.tasks, 'task')} in {shown_seconds(workload.last_at)}, "
        f"{workload.tasks / hours:.3g}/s; {shown_seconds(workload.mean_service_seconds)} each, "
        f"{shown_seconds(workload.work_seconds)} of work; a start takes {shown_seconds(world.mean_startup_seconds)}"
    )


def _lines(rows: Sequence[StudyRow]) -> list[tuple[object, ...]]:
    """Return the rows of the table; `(hindsight)` is shown once for each slo."""
    lines: list[tuple[object, ...]] = []
    slos_shown: set[float] = set()
    for row in sorted(rows, key=lambda row: row.result.slo_seconds):
        result = row.result
        if row.hindsight is not None and result.slo_seconds not in slos_shown:
            slos_shown.add(result.slo_seconds)
            yardstick = row.hindsight
            slo, hours = shown_setting(result.slo_seconds), f"{yardstick.worker_seconds / 3600:.2f}"
            no_waits = [""] * 5
            lines.append(("(hindsight)", slo, "0.00%", *no_waits, hours, "1.00x", yardstick.starts, "", ""))
        lines.append(
            (
                row.name,
                shown_setting(result.slo_seconds),
                f"{result.late_share:.2%}",
                f"{result.p99_over_slo:.2f}",
                f"{result.worst_over_slo:.2f}",
                shown_seconds(result.wait_p50),
                shown_seconds(result.wait_p95),
                shown_seconds(result.wait_p99),
                f"{result.worker_seconds / 3600:.2f}",
                "-" if row.cost_ratio is None else f"{row.cost_ratio:.2f}x",
                result.starts,
                f"{result.changes_per_hour:.0f}",
                result.peak,
            )
        )
    return lines


def _real_line(real: Mapping[str, float] | None) -> list[tuple[object, ...]]:
    if real is None:
        return []
    late = f"{real['late_share']:.2%}", f"{real['p99_over_slo']:.2f}", f"{real['worst_over_slo']:.2f}"
    waits = [shown_seconds(real[name]) for name in ("wait_p50", "wait_p95", "wait_p99")]
    hours = f"{real['worker_seconds'] / 3600:.2f}" if "worker_seconds" in real else "-"
    return [("(as it was)", shown_setting(real["slo_seconds"]), *late, *waits, hours, "", "", "", "")]


def _record(
    workload: Workload,
    world: SimulatedWorld,
    rows: Sequence[StudyRow],
    notes: Sequence[str],
    real: Mapping[str, float] | None,
) -> dict[str, object]:
    return {
        "workload": {
            "name": workload.name,
            "tasks": workload.tasks,
            "seconds": round(workload.last_at, 3),
            "service_seconds": round(workload.mean_service_seconds, 6),
            "work_seconds": round(workload.work_seconds, 3),
        },
        "startup_seconds": world.mean_startup_seconds,
        "notes": list(notes),
        "real": None if real is None else {name: round(value, 6) for name, value in real.items()},
        "rows": [_row_record(row) for row in rows],
    }


def _row_record(row: StudyRow) -> dict[str, object]:
    yardstick = row.hindsight
    return {
        "name": row.name,
        "towline": row.is_towline,
        **_result_record(row.result),
        "of_hindsight": None if row.cost_ratio is None else round(row.cost_ratio, 4),
        "hindsight_worker_seconds": None if yardstick is None else round(yardstick.worker_seconds, 3),
        "least_worker_seconds": None if yardstick is None else round(yardstick.least_worker_seconds, 3),
    }


def _result_record(result: RunResult) -> dict[str, object]:
    figures: dict[str, object] = {
        name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(result).items()
    }
    for name in ("scaler", "sizes", "longest_waits"):
        del figures[name]
    return figures | {
        "p99_over_slo": round(result.p99_over_slo, 4),
        "worst_over_slo": round(result.worst_over_slo, 4),
        "changes_per_hour": round(result.changes_per_hour, 3),
    }
