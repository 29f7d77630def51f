"""Crash tests with fixed seeds: a few seconds of each driver of `python3 -m tests.faults`, and proof of their teeth."""

import json
from pathlib import Path
from random import Random

import pytest

from tests.faults.__main__ import main
from tests.faults.disk import SECTOR_BYTES, Directory, Write
from tests.faults.full_disk import failing_disks, unable_to_sync
from tests.faults.kill_random import kills_at_random
from tests.faults.kill_server import kills_of_servers
from tests.faults.kill_write import kills_at_writes
from tests.faults.outcome import FaultBudget, FaultTally
from tests.faults.power_cut import power_cuts

AMPLE_SECONDS = 60.0


def test_nothing_is_lost_when_producers_and_workers_are_killed_at_random(tmp_path: Path) -> None:
    tally = kills_at_random(FaultBudget(4.0, seed=1), tmp_path)
    assert tally.violations == []
    assert tally.kills >= 8
    assert tally.operations >= 200


def test_limits_hold_when_producers_and_workers_are_killed_at_random(tmp_path: Path) -> None:
    tally = kills_at_random(FaultBudget(7.0, seed=1), tmp_path, limited=True)
    assert tally.violations == []
    assert tally.kills >= 8
    assert tally.checked["queues and tags at their limit"] >= 1


def test_the_store_survives_a_kill_at_its_nth_write(tmp_path: Path) -> None:
    tally = kills_at_writes(FaultBudget(AMPLE_SECONDS, seed=1), tmp_path, points=48)
    assert tally.violations == []
    assert tally.kills >= 40


def test_what_was_acknowledged_survives_power_cuts(tmp_path: Path) -> None:
    tally = power_cuts(FaultBudget(AMPLE_SECONDS, seed=1), tmp_path, cuts=60)
    assert tally.violations == []
    assert tally.cuts == 60


def test_power_cuts_show_a_store_that_does_not_sync(tmp_path: Path) -> None:
    tally = power_cuts(FaultBudget(AMPLE_SECONDS, seed=1), tmp_path, cuts=20, syncing=False)
    assert "I1" in {violation.invariant for violation in tally.violations}


def test_nothing_is_lost_when_server_supervisor_and_workers_are_killed(tmp_path: Path) -> None:
    tally = kills_of_servers(FaultBudget(7.0, seed=4), tmp_path)  # its callers share a client
    assert tally.violations == []
    assert tally.kills >= 2
    assert tally.operations >= 100


def test_a_full_disk_and_a_failing_sync_lose_nothing(tmp_path: Path) -> None:
    tally = failing_disks(FaultBudget(AMPLE_SECONDS, seed=1), tmp_path, points=24)
    assert tally.violations == []
    assert tally.disk_errors >= 20


def test_a_failing_sync_shows_a_store_that_does_not_heed_it(tmp_path: Path) -> None:
    tally = FaultTally("disk")
    for number in range(8):
        home = tmp_path / str(number)
        home.mkdir()
        unable_to_sync(tally, home, f"1/{number}", FaultBudget(AMPLE_SECONDS, seed=1).started(), heeding=False)
    assert "I1" in {violation.invariant for violation in tally.violations}


def test_the_command_counts_everything_as_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--for", "1s", "--only", "disk", "--json", "--directory", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["violations"] == dict.fromkeys(told["violations"], 0)
    assert told["operations"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_a_scenario_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "flood"]) == 2
    assert "flood" in capsys.readouterr().err


def test_a_modelled_disk_keeps_what_was_synced_and_nothing_that_never_was() -> None:
    directory = Directory()
    inode = directory.open("a")
    inode.pending.append(Write(0, b"1" * SECTOR_BYTES))
    inode.sync(inode.changes)
    directory.sync()
    inode.pending.append(Write(SECTOR_BYTES // 2, b"2" * SECTOR_BYTES))
    wreck = directory.wreck()
    seen = {wreck.materialise("sectors", Random(seed))["a"].rstrip(b"\0") for seed in range(40)}
    half = SECTOR_BYTES // 2
    old, new = b"1" * SECTOR_BYTES, b"1" * half + b"2" * half
    assert wreck.materialise("none", Random(0)) == {"a": old}
    assert wreck.materialise("all", Random(0)) == {"a": b"1" * half + b"2" * SECTOR_BYTES}
    assert seen == {old, new, new + b"2" * half, old + b"2" * half}


def test_a_modelled_file_whose_name_was_not_synced_may_be_gone_or_back() -> None:
    directory = Directory()
    directory.open("new")
    directory.open("old")
    wreck = directory.wreck()
    assert {tuple(wreck.materialise("sectors", Random(seed))) for seed in range(40)} == {
        (),
        ("new",),
        ("old",),
        ("new", "old"),
    }
    directory.sync()
    directory.delete("old")
    assert {"old" in directory.wreck().materialise("sectors", Random(seed)) for seed in range(40)} == {True, False}
    directory.sync()
    assert list(directory.wreck().materialise("sectors", Random(0))) == ["new"]
