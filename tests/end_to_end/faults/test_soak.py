"""The short form of the long runs of `python3 -m tests.soak`."""

from pathlib import Path

from tests.soak.figures import Look
from tests.soak.renewing import renewals
from tests.soak.rolling import roll
from tests.soak.starts import faults, soak
from tests.soak.towline_up import TaskOutcome


def test_a_supervisor_is_flat_over_three_hundred_starts_and_stops(tmp_path: Path) -> None:
    looks, code, _said = soak(tmp_path, starts=300, workers=50)
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


def test_a_pool_at_its_max_is_replaced_under_load_without_a_gap(tmp_path: Path) -> None:
    rolled = roll(tmp_path, workers=4, task_seconds=0.3)
    assert rolled.least_ready == 4
    assert rolled.most_processes <= 5
    assert rolled.done == TaskOutcome(rolled.done.added, lost=0, twice=0, released=0, expired=0)


def test_a_supervisor_and_its_server_are_renewed_under_load_and_nobody_notices(tmp_path: Path) -> None:
    renewed = renewals(tmp_path, times=2, workers=2)
    assert (renewed.least_ready, renewed.is_same_crew, renewed.is_same_process) == (2, True, True)
    assert renewed.done == TaskOutcome(renewed.done.added, lost=0, twice=0, released=0, expired=0)
