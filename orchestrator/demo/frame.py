"""A frame of the demo's view: the run as lines of text that fit a terminal of any size. Pure."""

import math
import re
from typing import Final

from rich.text import Text

from orchestrator.base.charts import Steps, slots_of
from orchestrator.demo.figures import StageFigures
from orchestrator.demo.record import Outcome, quantile
from orchestrator.demo.run_state import DemoRun
from orchestrator.demo.script import MAX_WORKERS_PER_POOL
from queue_core.cli.wrapping import wrapped
from queue_core.process.terminal import clean
from queue_core.process.wording import counted, shown_seconds

WIDE_COLUMNS: Final = 72
"""A narrower terminal gets fewer columns, and decisions without their reasons."""
TALL_LINES: Final = 18
"""A lower terminal gets no empty lines, and no lines over time."""
RECENT_WAITS: Final = 200
MAX_LOG_LINES: Final = 12
_UNIT: Final = re.compile(r"([0-9]) (s|ms|min)\b")
_NO_BREAK: Final = "\ue000"
"""Stands for the space before a unit while a text is broken into lines; no text of ours has it."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
SHORTEST_BAR: Final = 5
_LABEL: Final = 9
_REST: Final = 12
"""Columns for what stands behind a line over time."""


def frame_of(run: DemoRun, *, columns: int, lines: int) -> list[Text]:
    """Return the lines of a frame, at most `lines` of at most `columns` characters; all figures are of one instant."""
    is_wide, is_tall = columns >= WIDE_COLUMNS, lines >= TALL_LINES
    parts = [_header(run, columns, is_wide=is_wide), _pools(run, is_wide=is_wide), [_waits(run, columns)]]
    if is_tall:
        parts[2] += _history_lines(run, columns)
    shown: list[Text] = []
    for part in parts:
        shown += [Text()] * (is_tall and bool(shown)) + part
    log = _log(run, columns, room=min(MAX_LOG_LINES, lines - len(shown) - is_tall), is_wide=is_wide)
    shown += [Text()] * (is_tall and bool(log)) + log
    for line in shown:
        line.truncate(columns)
    return shown[:lines]


def decision_line(decision: dict[str, object]) -> str:
    """Return a decision as a sentence: the pool, its size before and after, and why, with the guards that held it."""
    limits = decision.get("limited_by")
    held = f" [{', '.join(map(str, limits))}]" if isinstance(limits, list) and limits else ""
    sizes = f"{decision.get('current')} -> {decision.get('target')}"
    return clean(f"{decision.get('pool')!s:<6} {sizes}: {decision.get('why')}{held}")


def status_line(run: DemoRun) -> str:
    """Return the run's figures as one line."""
    total = run.figures.total
    return (
        f"{clock_of(run)}: {total.done:,} of {counted(run.tasks, 'task')} done, {total.ready:,} ready, "
        f"{total.in_flight:,} in flight, {counted(total.workers, 'worker')}"
    )


def clock_of(run: DemoRun) -> str:
    """Return the time of the run, which ends at its length: what is left is finished after it."""
    seconds, planned = run.figures.at_seconds, run.script.seconds
    if run.is_over:
        return f"{'stopped after' if run.is_stopped else 'done in'} {round(seconds, 1):.0f} s"  # as the summary has it
    if run.is_stopped:
        return f"stopping after {seconds:.0f} s"
    if seconds <= planned:
        return f"{int(seconds)} s of {planned:.0f} s"
    return f"{planned:.0f} s, then {math.ceil(seconds - planned)} s to finish"


def summary_of(outcome: Outcome) -> list[str]:
    """Return the outcome as lines of text."""
    when = f"{outcome.seconds:.0f} s{', then stopped' if outcome.stopped else ''}"
    half, most = shown_seconds(outcome.wait_p50), shown_seconds(outcome.wait_p95)
    again = ""
    if outcome.restarted_seconds is not None:
        its = "its task" if outcome.killed == 1 else "the last one's task"
        again = f"; {its} began again after {shown_seconds(outcome.restarted_seconds)}"
    sizes = f"at most {outcome.peak_workers}, {outcome.final_workers} left"
    return [
        f"{outcome.done:,} of {counted(outcome.added, 'task')} done in {when}; {outcome.left:,} left",
        f"{outcome.lost:,} lost, {outcome.dead:,} dead, {outcome.duplicated:,} run twice",
        f"workers: {sizes}; {counted(outcome.decisions, 'decision')}",
        f"{counted(outcome.killed, 'worker')} killed{again}",
        f"waits: half under {half}, 95 % under {most}; slo {outcome.slo:.0f} s",
        f"report: {outcome.report} ({counted(outcome.pages, 'page')})",
    ]


def _header(run: DemoRun, columns: int, *, is_wide: bool) -> list[Text]:
    done, tasks = run.figures.total.done, run.tasks
    title = Text.assemble(("towline demo", "bold"), f"   {clock_of(run)}")
    count = f"{done:,} of {tasks:,} done, {run.left:,} left"
    if not is_wide:
        return [title, Text(count)]
    room = min(30, columns - len(title.plain) - len(count) - 6)
    if room < SHORTEST_BAR:
        return [Text.assemble(title, f"   {count}")]
    filled = min(room, round(room * done / max(1, tasks)))
    bar = ("█" * filled, "green"), ("·" * (room - filled), "bright_black")
    return [Text.assemble(title, "   ", *bar, f"   {count}")]


def _pools(run: DemoRun, *, is_wide: bool) -> list[Text]:
    heads = f"{'pool':<{_LABEL}}"
    heads += f"{'workers':<{MAX_WORKERS_PER_POOL + 5}}" if is_wide else f"{'workers':>7}"
    heads += f"{'ready':>7}{'in flight':>11}" + (f"{'done':>8}{'oldest waits':>15}" if is_wide else "")
    return [Text(heads, style="dim"), *(_pool(name, stage, is_wide) for name, stage in run.figures.stages.items())]


def _pool(name: str, stage: StageFigures, is_wide: bool) -> Text:  # noqa: FBT001
    counts = f"{stage.ready:>7,}{stage.in_flight:>11,}"
    if not is_wide:
        return Text(f"{name:<{_LABEL}}{stage.workers:>7}{counts}")
    filled = min(stage.workers, MAX_WORKERS_PER_POOL)
    oldest = shown_seconds(stage.oldest_seconds) if stage.ready else "-"
    return Text.assemble(
        f"{name:<{_LABEL}}",
        ("█" * filled, "cyan"),
        ("·" * (MAX_WORKERS_PER_POOL - filled), "bright_black"),
        f"{stage.workers:>3}  {counts}{stage.done:>8,}{oldest:>15}",
    )


def _waits(run: DemoRun, columns: int) -> Text:
    recent, slo = run.record.waits[-RECENT_WAITS:], run.script.slo_seconds
    late = quantile(recent, 0.95)
    style = "red" if late > slo else ""
    text = f"95 % under {shown_seconds(late)}, slo {slo:.0f} s"
    if not recent:
        text = f"nothing leased so far, slo {slo:.0f} s"
    elif columns >= WIDE_COLUMNS:
        text = f"95 % of the last {len(recent)} under {shown_seconds(late)}, slo {slo:.0f} s"
    return Text.assemble((f"{'waits':<{_LABEL}}", "dim"), (text, style))


def _history_lines(run: DemoRun, columns: int) -> list[Text]:
    """Return the backlog and the workers as a line of blocks each, over the time of the run."""
    seconds = max(run.script.seconds, run.figures.at_seconds)
    slots = max(10, min(60, columns - _LABEL - _REST))
    lines = []
    for name, style in (("ready", "yellow"), ("workers", "cyan")):
        steps: Steps = [(one.at_seconds, float(getattr(one.total, name))) for one in run.history]
        values = slots_of([*steps, (run.figures.at_seconds, 0.0)], seconds=seconds, slots=slots)
        most = max(values) or 1.0
        blocks = "".join(_BLOCKS[max(round(8 * one / most), 1 if one else 0)] for one in values)
        lines.append(Text.assemble((f"{name:<{_LABEL}}", "dim"), (blocks, style), (f"  top {most:,.0f}", "dim")))
    return lines


def _log(run: DemoRun, columns: int, *, room: int, is_wide: bool) -> list[Text]:
    """Return the newest messages that fit whole, oldest first."""
    found: list[Text] = []
    for at_seconds, kind, message in reversed(run.log):
        text = message if is_wide or kind == "note" else message.partition(":")[0]
        kept = _UNIT.sub(f"\\1{_NO_BREAK}\\2", text)  # no line begins with a unit
        broken = wrapped(kept, width=columns, prefix=f"{int(at_seconds):>3} s  ")
        if len(found) + len(broken) > room:
            break
        style = "bold yellow" if kind == "note" else "dim"
        found = [*(Text(line.replace(_NO_BREAK, " "), style=style) for line in broken), *found]
    return found
