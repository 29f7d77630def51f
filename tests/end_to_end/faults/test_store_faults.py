"""Every store under everything at once, and two servers on hosts that fail: `python3 -m tests.faults`, for seconds."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.checker import Violation
from tests.faults.kill_store import kills_on
from tests.faults.outcome import FaultBudget
from tests.faults.sites import STORES, StoreName
from tests.faults.two_servers import BRIEF, two_servers

ROUND_SECONDS = 5.0
LONGEST_SECONDS = 90.0  # where many programs share the machine; else the first round or the second is enough
ENOUGH_OPERATIONS = 300
CALL_CHARS = 600
MOST_CALLS = 60


def evidence(violations: Sequence[Violation], folder: Path) -> str:
    """Return the violations with the calls on the tasks they name; the histories are removed with older runs."""
    told = [f"{violation.invariant}: {violation.what}" for violation in violations]
    words = {word for line in told for word in line.split() if word.count("-") >= 2}
    calls = [line for file in sorted(folder.glob("round-*/*.jsonl")) for line in file.read_text().splitlines()]
    named = [line[:CALL_CHARS] for line in calls if any(word in line for word in words)]
    return "\n".join([*told, *named[:MOST_CALLS]])


@pytest.mark.parametrize("store", STORES)
def test_nothing_is_lost_or_doubled_whatever_is_killed_or_cut(store: StoreName, tmp_path: Path) -> None:
    budget = FaultBudget(LONGEST_SECONDS, seed=2, operations=ENOUGH_OPERATIONS)
    tally = kills_on(store, budget, tmp_path, round_seconds=ROUND_SECONDS)
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert not tally.violations, evidence(tally.violations, tmp_path)
    assert tally.operations >= ENOUGH_OPERATIONS
    assert tally.kills >= 5
    assert (tally.engine_kills >= 1) == (store != "sqlite")


def test_a_store_that_waits_for_no_disk_is_seen_to_lose_what_was_acknowledged(tmp_path: Path) -> None:
    budget = FaultBudget(LONGEST_SECONDS, seed=1)
    tally = kills_on("postgresql", budget, tmp_path, round_seconds=ROUND_SECONDS, durability="relaxed")
    if tally.skipped:
        pytest.skip(tally.skipped)
    # An add, a deletion, or a lease that was charged: whichever was last when the engine was killed.
    assert {violation.invariant for violation in tally.violations} & {"I1", "I4", "I11"}


@pytest.mark.parametrize("store", ["postgresql", "redis"])
def test_forty_workers_get_over_a_killed_server_and_a_store_that_is_cut_off(store: str, tmp_path: Path) -> None:
    tally = two_servers(store, FaultBudget(0.0, seed=1), tmp_path, course=BRIEF)
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert tally.violations == []
    assert tally.operations >= 200
    assert tally.figures["store_cut_off_tasks_run_twice"] <= tally.figures["store_cut_off_in_flight_tasks"]
