"""Two servers of one store, one of them stopped and going on: each caller's every answer is held against its model."""

from pathlib import Path
from random import Random

import pytest

from tests.faults.outcome import FaultBudget
from tests.faults.stopped import GIVEN_UP_SECONDS, StopConditions, stopped_servers

BRIEF = StopConditions(callers=8, bounds_seconds=(1.0, GIVEN_UP_SECONDS + 0.5))


def test_calls_that_a_stopped_server_reads_late_change_nothing(tmp_path: Path) -> None:
    tally = stopped_servers("sqlite", FaultBudget(60.0, seed=1, operations=300), tmp_path, conditions=BRIEF)
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert [one.what for one in tally.violations] == []
    assert tally.operations >= 300
    assert tally.counts["stop server"] > 0


def test_stops_last_as_long_as_they_may() -> None:
    random = Random(1)
    drawn = [StopConditions().seconds(random) for _ in range(10_000)]
    assert 1.0 <= min(drawn) < GIVEN_UP_SECONDS < max(drawn) <= 60.0
