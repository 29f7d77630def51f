"""A line of an hour as the points of an SVG, small enough for a row of a table. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

WIDTH: Final = 118
HEIGHT: Final = 20
_EDGE: Final = 1


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A line: its parts as `points` of SVG polylines, and its least and greatest value for those who do not see it."""

    parts: tuple[str, ...]
    least: float
    most: float

    width: int = WIDTH
    height: int = HEIGHT


@lru_cache(maxsize=4_096)
def sparkline(values: tuple[float | None, ...]) -> Sparkline | None:
    """Return the line through values at equal distances; None where there are not two to draw one through.

    None among the values interrupts the line. It begins at 0, so that small changes of many look small.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    most = max(known)
    step, scale = (WIDTH - 2 * _EDGE) / (len(values) - 1), (HEIGHT - 2 * _EDGE) / (most or 1)
    parts: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            parts.append([])
        else:
            parts[-1].append(f"{_EDGE + place * step:.0f},{HEIGHT - _EDGE - value * scale:.1f}")
    return Sparkline(tuple(" ".join(part) for part in parts if len(part) > 1), min(known), most)


def total_of(lines: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    """Return the sum of several lines, point by point; None where none of them has a value."""
    return _together(lines, sum)


def greatest_of(lines: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    """Return the greatest of several lines, point by point; None where none of them has a value."""
    return _together(lines, max)


def _together(
    lines: Sequence[Sequence[float | None]], value: Callable[[Sequence[float]], float]
) -> tuple[float | None, ...]:
    points = []
    for values in zip(*lines, strict=True):
        known = [one for one in values if one is not None]
        points.append(value(known) if known else None)
    return tuple(points)
