"""The fleet of a run, for the report: its charts, its figures and the story in words. Pure."""

import statistics
from collections.abc import Sequence
from html import escape
from typing import Final

from orchestrator.base.charts import Chart, ChartMark, ChartPanel, Curve, Steps, rates_of, svg_of
from orchestrator.demo.pages import figures_list
from orchestrator.demo.record import Outcome
from orchestrator.demo.run_state import DemoRun
from orchestrator.demo.script import MAX_WORKERS_PER_POOL, STAGES
from queue_core.clock import Instant, seconds_between
from queue_core.process.wording import counted, shown_seconds

WIDE: Final = 1_040
NARROW: Final = 350
"""Widths of the two drawings in pixels; a page shows the one that fits."""
MAX_WAIT_SLOTS: Final = 150
WAIT_SLOT_SECONDS: Final = 0.4
"""The shortest slot of waits: in shorter ones there may be no lease at all."""


def fleet_chart(run: DemoRun) -> Chart:
    """Return backlog, workers, waits and arrivals of a run over the same time, with its kills marked."""
    seconds = max(1.0, run.figures.at_seconds)
    first = STAGES[0]
    of_all = {stage: _seconds_of(run, run.record.added_at.get(stage, ())) for stage in STAGES}
    every = sorted(at for added in of_all.values() for at in added)
    slots = max(1, round(seconds))
    longest, half = _waits(run, seconds)
    slo = run.script.slo_seconds
    panels = [
        ChartPanel("backlog", "tasks that wait", _stacked(_history(run, "ready"), _history(run, "ready", first))),
        ChartPanel(
            "workers",
            f"at most {MAX_WORKERS_PER_POOL} a pool",
            _stacked(_history(run, "workers"), _history(run, "workers", first)),
        ),
        ChartPanel(
            "waits",
            "seconds",
            [Curve("longest", longest, "soft"), Curve("half under", half, "one")],
            limit=(slo, f"slo {slo:.0f} s"),
        ),
        ChartPanel(
            "arrivals",
            "tasks a second",
            _stacked(
                rates_of(every, seconds=seconds, slots=slots), rates_of(of_all[first], seconds=seconds, slots=slots)
            ),
        ),
    ]
    marks = [ChartMark(at, f"{worker} killed") for worker, at in _kills(run)]
    return Chart(seconds, panels, marks, title=f"Towline's demo: {counted(run.tasks, 'task')}")


def fleet_section(run: DemoRun, outcome: Outcome) -> str:
    """Return the beginning of the report as HTML."""
    chart = fleet_chart(run)
    untitled = Chart(chart.seconds, chart.panels, chart.marks)
    figures: dict[str, int | str] = {
        "tasks done": outcome.done,
        "lost": outcome.lost,
        "workers at most": outcome.peak_workers,
        f"95 % of waits under; slo {outcome.slo:.0f} s": shown_seconds(outcome.wait_p95),
    }
    if outcome.restarted_seconds is not None:
        figures["from the kill to the task's next start"] = shown_seconds(outcome.restarted_seconds)
    return "\n".join(
        [
            "<h1>A fleet at work</h1>",
            f'<p class="lead">{escape(_story(run, outcome))}</p>',
            figures_list(figures),
            f"<figure>{svg_of(untitled, width=WIDE)}{svg_of(untitled, width=NARROW)}</figure>",
        ]
    )


def _story(run: DemoRun, outcome: Outcome) -> str:
    """Return the run in sentences."""
    modules = counted(run.fed, "module")
    first = f"{modules} of Python's standard library arrived, each to be parsed and rendered by a task of its own."
    grown = f"Two pools of workers grew from 0 to {outcome.peak_workers} as tasks waited, and shrank to 0."
    sentences = [first, grown]
    sentences += [f"After {at:.0f} s {worker} was killed in the middle of a task." for worker, at in _kills(run)]
    if outcome.restarted_seconds is not None:
        sentences.append(f"That task began again {shown_seconds(outcome.restarted_seconds)} later.")
    if outcome.stopped:
        left = f"{counted(outcome.left, 'task')} {'is' if outcome.left == 1 else 'are'} still in the store"
        sentences.append(f"After {outcome.seconds:.0f} s somebody stopped the demo: {left}, {outcome.lost:,} lost.")
    else:
        sentences.append(f"All was done after {outcome.seconds:.0f} s; {outcome.lost:,} lost.")
    return " ".join(sentences)


def _kills(run: DemoRun) -> list[tuple[str, float]]:
    return [(worker, seconds_between(run.began_at, at)) for worker, at in run.killed]


def _stacked(every: Steps, first: Steps) -> list[Curve]:
    """Return the curves of both pools: the sum, with the first pool's part drawn over it."""
    return [Curve(STAGES[1], every, "two"), Curve(STAGES[0], first, "one")]


def _history(run: DemoRun, figure: str, stage: str | None = None) -> Steps:
    return [
        (one.at_seconds, float(getattr(one.total if stage is None else one.stages[stage], figure)))
        for one in run.history
    ]


def _seconds_of(run: DemoRun, instants: Sequence[Instant]) -> list[float]:
    return [seconds_between(run.began_at, at) for at in instants]


def _waits(run: DemoRun, seconds: float) -> tuple[Steps, Steps]:
    """Return the longest wait, and the one that half of them were under, of the leases in each slot of time."""
    slots = max(1, min(MAX_WAIT_SLOTS, int(seconds / WAIT_SLOT_SECONDS)))
    found: list[list[float]] = [[] for _ in range(slots)]
    for at, waited in zip(_seconds_of(run, run.record.leased_at), run.record.waits, strict=True):
        found[min(slots - 1, max(0, int(at / seconds * slots)))].append(waited)
    starts = [slot * seconds / slots for slot in range(slots)]
    longest = [(at, max(waits, default=0.0)) for at, waits in zip(starts, found, strict=True)]
    half = [(at, statistics.median(waits) if waits else 0.0) for at, waits in zip(starts, found, strict=True)]
    return longest, half
