"""When the demo's tasks arrive: a recorded shape, stretched to the length of the demo. Pure but for one data file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

SHAPE: Final = Path(__file__).with_name("arrivals.csv")


def recorded_shape(path: Path = SHAPE) -> list[int]:
    """Arrivals per slot, as recorded."""
    rows = (line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    return [int(row.partition(",")[2]) for row in rows]


def due_seconds(shape: Sequence[int], *, tasks: int, feed_seconds: float) -> list[float]:
    """When each of `tasks` arrives, in seconds from the start, in order: `shape` stretched over `feed_seconds`.

    Inside a slot arrivals are evenly spread. Raises `ValueError` for a shape without arrivals.
    """
    total = sum(shape)
    if total <= 0:
        raise ValueError("a shape needs at least one arrival")
    slot_seconds = feed_seconds / len(shape)
    starts: list[float] = []
    before = 0
    for slot, arrivals in enumerate(shape):
        first, last = round(before * tasks / total), round((before + arrivals) * tasks / total)
        starts += [(slot + (index + 0.5) / (last - first)) * slot_seconds for index in range(last - first)]
        before += arrivals
    return starts
