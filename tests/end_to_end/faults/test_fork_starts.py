"""Twenty rounds of `python3 -m tests.faults --only starts`."""

from pathlib import Path

from tests.faults.fork_starts import WORKERS, fork_starts
from tests.faults.outcome import FaultBudget

ROUNDS = 20
AMPLE_SECONDS = 600.0


def test_no_start_of_a_forked_worker_is_lost_or_doubled_by_a_crash_at_any_step(tmp_path: Path) -> None:
    tally = fork_starts(FaultBudget(AMPLE_SECONDS, seed=1, operations=ROUNDS), tmp_path)
    assert tally.violations == []
    assert tally.operations == ROUNDS * WORKERS
    assert tally.kills >= ROUNDS // 2
