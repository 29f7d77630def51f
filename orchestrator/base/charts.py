"""Draw panels of steps over one time axis as SVG text, for light and dark pages and any width. Pure."""

import math
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from orchestrator.base.values import value
from queue_core.process.wording import shown_setting

Steps = Sequence[tuple[float, float]]
"""Instants in seconds, rising, each with the value from then until the next."""


@value
class Curve:
    """One line of a panel; `shade` chooses its colour, see `STYLE`. Later curves are drawn over earlier ones."""

    name: str
    steps: Steps
    shade: str


@value
class ChartPanel:
    """One scale over the chart's time.

    Args:
        name, unit: what is drawn, and in what: "workers", "seconds".
        notes: figures and remarks, below the name.
        limit: a value with its name, drawn as a line that the scale always shows.
        top: the scale's greatest value; None: `scale_top` of the curves.
        height: of the drawing, in pixels.
    """

    name: str
    unit: str
    curves: Sequence[Curve]
    notes: Sequence[str] = ()
    limit: tuple[float, str] | None = None
    top: float | None = None
    height: int = 64


@value
class ChartMark:
    """An instant that is marked in every panel."""

    at_seconds: float
    text: str


@value
class Chart:
    """Panels over the time from 0 to `seconds`."""

    seconds: float
    panels: Sequence[ChartPanel]
    marks: Sequence[ChartMark] = ()
    title: str = ""


OUTLIER: Final = 2.5
"""A peak this many times above nearly all values of a panel is marked instead of obeyed by the scale."""
USUAL_SHARE: Final = 0.97
_NICE: Final = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_TICKS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
_TICK_PIXELS: Final = 70
_LEFT: Final = 44
_RIGHT: Final = 14
_CHARACTER: Final = 6.3
"""About the width of a character of notes, in pixels."""
_LINE: Final = 15
_ABOVE: Final = 14
"""Between a panel's text and its drawing: room for the values of outliers."""
_MAX_LABELS: Final = 3

STYLE: Final = """\
.chart { --ink: #1d2430; --paper: #fdfcf9; --faint: #667085; --grid: #e3e0d8; --one: #0b7285; --two: #e0a030;
  --three: #7a8899; --soft: #9fcfd6; --limit: #c2255c; --mark: #1d2430; font: 12px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { .chart { --ink: #e4e2dc; --paper: #16191d; --faint: #98a2b3; --grid: #2c3138;
  --one: #3bb0c4; --two: #d9a441; --three: #8c98a8; --soft: #1f5a66; --limit: #f06595; --mark: #e4e2dc; } }
.chart text { fill: var(--ink); } .chart .faint { fill: var(--faint); font-size: 11px; }
.chart .title { font-size: 16px; font-weight: 600; } .chart .name { font-weight: 600; font-size: 13px; }
.chart .paper { fill: var(--paper); } .chart .grid { stroke: var(--grid); }
.chart .one { fill: var(--one); } .chart .two { fill: var(--two); } .chart .three { fill: var(--three); }
.chart .soft { fill: var(--soft); } .chart .limit { stroke: var(--limit); stroke-dasharray: 5 4; }
.chart .over { fill: var(--limit); } .chart text.over { font-size: 11px; }
.chart .mark { stroke: var(--mark); stroke-dasharray: 2 3; }
"""
"""Shades: `one`, `two`, `three`, and `soft`, a pale `one`. All rules begin with the class of the drawing."""


def scale_top(values: Sequence[float], *, least: float = 0.0) -> float:
    """Return a round number for the top of a scale: above the greatest value, or above nearly all if that stands out.

    Args:
        values: one for each instant of equal weight.
        least: what the scale must show in any case.
    """
    counted = sorted(value for value in values if value > 0)
    if not counted:
        return rounded_up(least or 1.0)
    usual = max(counted[math.ceil(USUAL_SHARE * len(counted)) - 1], least)
    return rounded_up(usual if counted[-1] > OUTLIER * usual else max(counted[-1], least))


def rounded_up(value: float) -> float:
    """Return the next number above that is short to write."""
    size = 10.0 ** math.floor(math.log10(value))
    return next((nice * size for nice in _NICE if nice * size >= value * (1 - 1e-9)), 10.0 * size)


def slots_of(steps: Steps, *, seconds: float, slots: int) -> list[float]:
    """Return the greatest value in each of `slots` equal spans of the time from 0 to `seconds`."""
    found = [0.0] * slots
    for place, (at, height) in enumerate(steps):
        until = steps[place + 1][0] if place + 1 < len(steps) else seconds
        first = min(slots - 1, max(0, int(at / seconds * slots)))
        last = min(slots - 1, max(first, math.ceil(until / seconds * slots) - 1))
        for slot in range(first, last + 1):
            found[slot] = max(found[slot], height)
    return found


def svg_of(chart: Chart, *, width: int) -> str:
    """Return the chart as an SVG element, alone or inside a page; `width` in pixels is that of the place it is for."""
    parts: list[str] = []
    y = 12
    if chart.title:
        for line in textwrap.wrap(chart.title, max(20, int((width - 24) / 8.5))):
            parts.append(_text(12, y + 14, line, "title"))
            y += 21
        y += 4
    marked_from = y
    labels = list(_labels(chart, width))
    y += _LINE * max((label.row + 1 for label in labels), default=0)
    for panel in chart.panels:
        drawn, y = _panel(panel, chart, y, width)
        parts += drawn
    for label in labels:
        parts += _mark(label, marked_from, y)
    parts += _time_axis(chart, y + _LINE, width)
    height = y + _LINE + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(_described(chart))}">'
    )
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", paper, *parts, "</svg>"]) + "\n"


def _panel(panel: ChartPanel, chart: Chart, y: int, width: int) -> tuple[list[str], int]:
    """Return the elements of a panel, and where the next one begins."""
    y += _LINE
    parts = list(_heading(panel, y, width))
    for note in panel.notes:
        for line in textwrap.wrap(note, max(20, int((width - 24) / _CHARACTER))):
            y += _LINE
            parts.append(_text(12, y, line, "faint"))
    top, bottom = y + _ABOVE, y + _ABOVE + panel.height
    slots = max(1, (width - _LEFT - _RIGHT) // 2)
    curves = [(curve, slots_of(curve.steps, seconds=chart.seconds, slots=slots)) for curve in panel.curves]
    values = [max(at_once) for at_once in zip(*(found for _, found in curves), strict=True)]
    least = panel.limit[0] * 1.25 if panel.limit else 0.0
    most = scale_top(values, least=least) if panel.top is None else panel.top
    for share in (0.0, 0.5, 1.0):
        at = bottom - share * panel.height
        parts.append(_line(_LEFT, at, width - _RIGHT, at, "grid"))
        if share != 0.5 or share * most == round(share * most) or most < 1:
            parts.append(_text(_LEFT - 6, at + 4, shown_value(share * most), "faint", anchor="end"))
    for curve, found in curves:
        parts.append(_area(found, most, bottom, panel.height, width, curve))
    if panel.limit is not None:
        at = bottom - min(1.0, panel.limit[0] / most) * panel.height
        parts += (
            _line(_LEFT, at, width - _RIGHT, at, "limit"),
            _text(width - _RIGHT, at - 4, panel.limit[1], "over", anchor="end"),
        )
    parts += _outliers(values, most, top, width)
    return parts, bottom + 14


def _heading(panel: ChartPanel, y: int, width: int) -> Iterator[str]:
    """Yield the name with its unit, and the names of several curves on the right."""
    unit = f'<tspan class="faint" font-weight="400" dx="6">{escape(panel.unit)}</tspan>' if panel.unit else ""
    yield f'<text class="name" x="12" y="{y}">{escape(panel.name)}{unit}</text>'
    if len(panel.curves) < 2:
        return
    x = float(width - _RIGHT)
    for curve in panel.curves:
        x -= len(curve.name) * _CHARACTER
        yield _text(x, y, curve.name, "faint")
        x -= 14
        yield f'<rect class="{curve.shade}" x="{x:.0f}" y="{y - 9}" width="9" height="9" rx="2"/>'
        x -= 12


def _area(values: Sequence[float], most: float, bottom: int, height: int, width: int, curve: Curve) -> str:
    step = (width - _LEFT - _RIGHT) / len(values)
    path, before = [f"M{_LEFT},{bottom}"], 0.0
    for slot, one in enumerate(values):
        if one != before:
            path.append(f"H{_LEFT + slot * step:.1f}V{bottom - min(1.0, one / most) * height:.1f}")
            before = one
    path.append(f"H{width - _RIGHT}V{bottom}Z")
    return f'<path class="{curve.shade}" d="{"".join(path)}"><title>{escape(curve.name)}</title></path>'


def _outliers(values: Sequence[float], most: float, top: int, width: int) -> list[str]:
    """Mark each stretch above the scale, and write the value of the greatest ones."""
    step = (width - _LEFT - _RIGHT) / len(values)
    stretches: list[tuple[float, int]] = []
    before = 0.0
    for slot, one in enumerate(values):
        if one > most * (1 + 1e-9):
            if before and one > stretches[-1][0]:
                stretches[-1] = (one, slot)
            elif not before:
                stretches.append((one, slot))
        before = one if one > most * (1 + 1e-9) else 0.0
    labelled = sorted(stretches, reverse=True)[:_MAX_LABELS]
    parts, free_from = [], 0.0
    for one, slot in stretches:
        x = _LEFT + (slot + 0.5) * step
        parts.append(f'<path class="over" d="M{x - 4:.1f},{top}h8l-4,-6z"><title>{shown_value(one)}</title></path>')
        text = shown_value(one)
        side, reach = ("start", x + 6) if x < width - 80 else ("end", x - 6 - len(text) * _CHARACTER)
        if (one, slot) in labelled and reach >= free_from:
            parts.append(_text(x + 6 if side == "start" else x - 6, top - 1, text, "over", anchor=side))
            free_from = reach + len(text) * _CHARACTER + 8
    return parts


@value
class _MarkLabel:
    """The text of a mark at `x`, in the first row that has room for it."""

    text: str
    x: float
    row: int
    anchor: str


def _labels(chart: Chart, width: int) -> Iterator[_MarkLabel]:
    taken: list[float] = []  # where the last text of each row ends
    for mark in sorted(chart.marks, key=lambda mark: mark.at_seconds):
        x, room = _x(mark.at_seconds, chart, width), len(mark.text) * _CHARACTER + 8
        anchor = "start" if x + room < width - _RIGHT else "end"
        begin = x if anchor == "start" else x - room
        row = next((row for row, end in enumerate(taken) if end <= begin), len(taken))
        taken[row : row + 1] = [begin + room]
        yield _MarkLabel(mark.text, x, row, anchor)


def _mark(label: _MarkLabel, top: int, bottom: int) -> Iterator[str]:
    y = top + label.row * _LINE
    yield _line(label.x, y, label.x, bottom - 14, "mark")
    yield _text(label.x + (4 if label.anchor == "start" else -4), y + 10, label.text, "faint", anchor=label.anchor)


def _time_axis(chart: Chart, y: int, width: int) -> Iterator[str]:
    wanted = chart.seconds / max(2.0, (width - _LEFT - _RIGHT) / _TICK_PIXELS)
    tick = next((tick for tick in _TICKS if tick >= wanted), _TICKS[-1] * math.ceil(wanted / _TICKS[-1]))
    for place in range(int(chart.seconds / tick + 1e-9) + 1):
        x = _x(place * tick, chart, width)
        yield _text(x, y, shown_setting(place * tick), "faint", anchor="end" if x > width - _RIGHT - 20 else "middle")


def shown_value(number: float) -> str:
    """Format a value of a scale: to three digits, thousands separated."""
    if number >= 100 or number == round(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def rates_of(instants: Sequence[float], *, seconds: float, slots: int) -> list[tuple[float, float]]:
    """Return how many of the instants (rising) fall into each slot of the time from 0 to `seconds`, per second."""
    width = seconds / slots
    edges = [bisect_left(instants, slot * width) for slot in range(slots)] + [len(instants)]
    return [(slot * width, (edges[slot + 1] - edges[slot]) / width) for slot in range(slots)]


def _described(chart: Chart) -> str:
    """Return the chart in words, for those who don't see it."""
    panels = ", ".join(f"{panel.name} ({panel.unit})" if panel.unit else panel.name for panel in chart.panels)
    marks = "".join(f"; {mark.text}" for mark in chart.marks)
    return f"{chart.title or 'Chart'}: {panels} over {shown_setting(round(chart.seconds))}{marks}"


def _x(at_seconds: float, chart: Chart, width: int) -> float:
    return _LEFT + min(1.0, at_seconds / chart.seconds) * (width - _LEFT - _RIGHT)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
