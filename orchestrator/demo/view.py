"""Show a run: live on a terminal, one line per decision elsewhere."""

from typing import Final, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.demo.record import Outcome, quantile
from orchestrator.demo.runner import DemoRun
from orchestrator.demo.script import MAX_WORKERS_PER_POOL

POOLS: Final = ("parse", "render")
SHOWN_LINES: Final = 6
RECENT_WAITS: Final = 200
BAR: Final = 30


class LineView:
    """Prints one line per decision to stderr."""

    def update(self, run: DemoRun) -> None:
        """Do nothing: lines are enough."""

    def decided(self, decision: dict[str, object]) -> None:
        """Print a decision and its reason."""
        click.echo(line_of(decision), err=True)

    def notify(self, text: str) -> None:
        """Print a message."""
        click.echo(f"-- {text}", err=True)


class LiveView:
    """A screen redrawn a few times a second; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._lines: list[Text] = []
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._drawn_at = -1.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def update(self, run: DemoRun) -> None:
        """Redraw, at most eight times a second."""
        if run.elapsed_seconds - self._drawn_at >= 0.125:
            self._drawn_at = run.elapsed_seconds
            self._live.update(Group(_header(run), _pools(run), _waits(run), *self._lines))

    def decided(self, decision: dict[str, object]) -> None:
        """Show the last few decisions that changed a size."""
        if decision.get("current") != decision.get("target"):
            self._add(Text(line_of(decision), style="dim", no_wrap=True, overflow="ellipsis"))

    def notify(self, text: str) -> None:
        """Show a message among the decisions."""
        self._add(Text(f"-- {text}", style="bold yellow"))

    def _add(self, line: Text) -> None:
        self._lines = [*self._lines, line][-SHOWN_LINES:]


def line_of(decision: dict[str, object]) -> str:
    """Return a decision as one line."""
    held = (
        f" [{', '.join(map(str, limits))}]" if isinstance(limits := decision.get("limited_by"), list) and limits else ""
    )
    sizes = f"{decision.get('current')} -> {decision.get('target')}"
    return f"{decision.get('pool')!s:<7} {sizes:<8} {decision.get('rule')!s:<9} {decision.get('why')}{held}"


def summary_of(outcome: Outcome) -> str:
    """Return the outcome as text."""
    again = (
        "" if outcome.restarted_seconds is None else f", its task started again in {outcome.restarted_seconds:.3f} s"
    )
    lines = [
        f"{outcome.done:,} of {outcome.added:,} tasks done in {outcome.seconds:.0f} s",
        f"{outcome.lost} lost, {outcome.dead} dead, {outcome.duplicated} run twice",
        f"workers: at most {outcome.peak_workers}, {outcome.final_workers} left; {outcome.decisions} decisions",
        f"{outcome.killed} killed{again}",
        f"waits: half under {outcome.wait_p50:.2f} s, 95 % under {outcome.wait_p95:.2f} s; slo {outcome.slo:.0f} s",
        f"report: {outcome.report} ({outcome.pages:,} pages)",
    ]
    return "\n".join(lines)


def _header(run: DemoRun) -> Text:
    done, tasks = len(run.record.deleted), run.script.tasks
    filled = round(BAR * done / tasks)
    return Text.assemble(
        ("towline demo  ", "bold"),
        (f"{run.elapsed_seconds:4.0f} s of {run.script.seconds:.0f} s   ", "dim"),
        ("━" * filled, "green"),
        ("━" * (BAR - filled), "bright_black"),
        f"  {done:,} of {tasks:,} tasks done",
    )


def _pools(run: DemoRun) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("pool", "workers", "", "ready", "in-flight", "rule"):
        table.add_column(title, justify="right" if title in ("ready", "in-flight") else "left")
    for pool in POOLS:
        workers, decision = run.workers_of(pool), run.pools.get(pool, {})
        bar = Text("█" * workers, style="cyan") + Text(
            "·" * max(0, MAX_WORKERS_PER_POOL - workers), style="bright_black"
        )
        counts = (str(decision.get(name, 0)) for name in ("ready", "in_flight"))
        table.add_row(pool, bar, str(workers), *counts, str(decision.get("rule", "")))
    return table


def _waits(run: DemoRun) -> Text:
    recent = run.record.waits[-RECENT_WAITS:]
    late, slo = quantile(recent, 0.95), run.script.slo_seconds
    filled = min(BAR, round(BAR * late / slo))
    return Text.assemble(
        ("waits    ", "dim"),
        ("━" * filled, "yellow" if late <= slo else "red"),
        ("━" * (BAR - filled), "bright_black"),
        f"  95 % of the last {len(recent)} under {late:.2f} s, slo {slo:.0f} s",
    )
