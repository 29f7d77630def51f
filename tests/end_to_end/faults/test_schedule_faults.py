"""A few kills of servers and supervisors under a schedule; `python3 -m tests.faults --only schedules` has more."""

from pathlib import Path

import pytest

from tests.faults.outcome import FaultBudget
from tests.faults.schedules import ticks_once


def test_each_tick_is_added_once_by_two_servers_and_two_supervisors_that_are_killed(tmp_path: Path) -> None:
    tally = ticks_once("postgresql", FaultBudget(1.0, seed=1), tmp_path)
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert tally.violations == []
    assert tally.kills == 4
    assert tally.operations >= 8
