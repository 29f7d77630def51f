"""What `towline doctor` says of workers that hang, and of those that somebody else ended."""

from pathlib import Path

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.doctor_checks import worker_findings
from orchestrator.state.directory import StateDir

NOW = SystemMonotonicClock().wall_seconds()


def a_death(worker: str, *, cause: str = "removed", seconds_ago: float = 60.0) -> dict[str, object]:
    return {"worker": worker, "pool": "resize", "cause": cause, "at": NOW - seconds_ago, "detail": ""}


def test_a_worker_that_hangs_is_told_with_what_is_known(tmp_path: Path) -> None:
    frozen = {"worker": "resize-1", "pool": "resize", "state": "unresponsive", "condition": "paused (docker pause)"}
    well = {"worker": "resize-2", "pool": "resize", "state": "idle"}
    (found,) = worker_findings({"workers": [frozen, well]}, StateDir(tmp_path))
    assert (found.check, found.level) == ("workers", "warn")
    assert found.found == "resize: resize-1 is not responding: paused (docker pause)"
    assert "replaced" in found.fix


def test_removed_containers_of_the_last_hour_are_counted(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    for death in (
        a_death("resize-1", seconds_ago=7200.0),
        a_death("resize-2"),
        a_death("resize-3", cause="signalled"),
        a_death("resize-4"),
    ):
        files.deaths.append(death)
    (found,) = worker_findings({}, files)
    assert found.level == "warn"
    assert found.found == "2 containers of workers were removed by somebody else within an hour, last resize-4"


def test_without_either_nothing_is_said(tmp_path: Path) -> None:
    assert list(worker_findings({}, StateDir(tmp_path))) == []
