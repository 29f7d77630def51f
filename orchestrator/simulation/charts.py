"""Draw a study: block characters for a terminal, SVG for a file. Pure: it returns text."""

from bisect import bisect_left
from collections.abc import Sequence
from html import escape
from typing import Final

from orchestrator.simulation.study import StudyRow
from orchestrator.simulation.workload import Workload
from queue_core.process.wording import shown_seconds


def arrivals_over(ready_at: Sequence[float], *, end_at: float, slots: int) -> list[float]:
    """Return the arrivals per second in each slot of the time from 0 to `end_at`."""
    width = end_at / slots
    edges = [bisect_left(ready_at, slot * width) for slot in range(slots)]
    edges.append(len(ready_at))
    return [(edges[slot + 1] - edges[slot]) / width for slot in range(slots)]


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
_LEFT: Final = 150
_RIGHT: Final = 20
_PANEL: Final = 74
_GAP: Final = 26
_TOP: Final = 44
_SLOTS: Final = 400
_NAME_CHARS: Final = 20
_TOWLINE: Final = "#0b7285"
_RULE: Final = "#868e96"
_ARRIVALS: Final = "#e8590c"


def terminal_chart(workload: Workload, rows: Sequence[StudyRow], *, columns: int, height: int = 4) -> list[str]:
    """Return lines with the arrivals, then the workers of each row, over the same time; all fleets have one scale."""
    slots = max(_MIN_COLUMNS, columns - 12)
    end_at = _end_of(rows)
    most = _most_workers(rows)
    rates = arrivals_over(workload.ready_at, end_at=end_at, slots=slots)
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
    """Return a standalone SVG document: a panel of arrivals, and one of workers for each row, over the same time."""
    end_at = _end_of(rows)
    height = _TOP + (len(rows) + 1) * (_PANEL + _GAP) + 30
    most = _most_workers(rows)
    rates = arrivals_over(workload.ready_at, end_at=end_at, slots=_SLOTS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"',
        ' font-family="system-ui, sans-serif" font-size="12" fill="#212529">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        *_panel(0, "arrivals/s", (), rates, max(rates), _ARRIVALS),
    ]
    for place, row in enumerate(rows, 1):
        workers = workers_over(row.result.sizes, end_at=end_at, slots=_SLOTS)
        lines = (f"{row.result.worker_seconds / 3600:.2f} h", *_lateness(row).split(", "))
        parts += _panel(place, _titled(row), lines, workers, most, _TOWLINE if row.is_towline else _RULE)
    parts += _time_axis(height - 14, end_at)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(place: int, name: str, lines: Sequence[str], values: Sequence[float], most: float, colour: str) -> list[str]:
    top = _TOP + place * (_PANEL + _GAP)
    bottom, most = top + _PANEL, most or 1.0
    step = (_WIDTH - _LEFT - _RIGHT) / len(values)
    points = [f"M{_LEFT},{bottom}"]
    for slot, value in enumerate(values):
        y = bottom - min(1.0, value / most) * _PANEL
        points.append(f"L{_LEFT + slot * step:.1f},{y:.1f}L{_LEFT + (slot + 1) * step:.1f},{y:.1f}")
    points.append(f"L{_WIDTH - _RIGHT},{bottom}Z")
    return [
        f'<text x="12" y="{top + 14}" font-weight="600">{escape(_cut(name))}</text>',
        *(
            f'<text x="12" y="{top + 30 + 14 * line}" fill="#495057" font-size="11">{escape(text)}</text>'
            for line, text in enumerate(lines)
        ),
        f'<text x="{_LEFT - 6}" y="{top + 8}" text-anchor="end" fill="#495057" font-size="10">{most:.3g}</text>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}" stroke="#ced4da"/>',
        f'<path d="{"".join(points)}" fill="{colour}" fill-opacity="0.35" stroke="{colour}" stroke-width="1"/>',
    ]


def _time_axis(y: int, end_at: float) -> list[str]:
    width = _WIDTH - _LEFT - _RIGHT
    anchors = ("start", "middle", "middle", "middle", "end")
    return [
        f'<text x="{_LEFT + width * place / 4:.0f}" y="{y}" text-anchor="{anchor}" fill="#495057" font-size="11">'
        f"{shown_seconds(end_at * place / 4)}</text>"
        for place, anchor in enumerate(anchors)
    ]


def _titled(row: StudyRow) -> str:
    return f"{row.name} at {row.result.slo_seconds:g} s" if row.is_towline else row.name


def _lateness(row: StudyRow) -> str:
    """Return how many tasks were late, and how late."""
    result = row.result
    return f"{result.late_share:.2%} late, p99 {result.p99_over_slo:.2f} slo, worst {result.worst_over_slo:.2f} slo"


def _cut(name: str) -> str:
    """Return a name cut to the width of the margin."""
    return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"


def _end_of(rows: Sequence[StudyRow]) -> float:
    return max(1.0, *(row.result.ended_at for row in rows)) if rows else 1.0


def _most_workers(rows: Sequence[StudyRow]) -> float:
    """Return the common scale of all panels of workers, so that they can be compared."""
    return float(max((row.result.peak for row in rows), default=1))
