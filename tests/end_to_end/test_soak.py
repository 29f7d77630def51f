"""The short form of the long runs of `python3 -m tests.soak`."""

from pathlib import Path

from tests.soak.figures import Look
from tests.soak.starts import faults, soak


def test_a_supervisor_is_flat_over_three_hundred_starts_and_stops(tmp_path: Path) -> None:
    looks, code, _said = soak(tmp_path, starts=320, workers=20)
    assert faults(looks, code) == []


def test_what_is_not_flat_is_told() -> None:
    first = Look(1_000, 50 << 20, 6, 2, 0)
    assert faults([first, Look(10_000, 60 << 20, 9, 3, 2)], 0) == [
        "descriptors grew from 6 to 9",
        "threads grew from 2 to 3",
        "2 zombies",
        "memory grows by 1165 bytes a start",
    ]
    assert faults([first, first], 1) == ["the supervisor ended with 1"]
