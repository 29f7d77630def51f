"""The findings of `towline doctor` about schedules."""

from pathlib import Path

import pytest

from orchestrator.cli.project_file import load_project
from orchestrator.cli.schedule_findings import schedule_findings
from queue_core.client.local_calls import LocalQueues
from queue_core.clock import ManualClock, SystemClock, after
from queue_core.schedules.schedule import Schedule
from queue_core.stores import open_store
from queue_core.unit.service import QueueService

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues: {reports: {}}
schedules:
  nightly: {queue: reports, cron: "0 3 * * *"}
"""
NIGHTLY = Schedule("nightly", "reports", "0 3 * * *", origin="towline.yaml")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file with one schedule, and its store."""
    monkeypatch.chdir(tmp_path)
    for name in ("TOWLINE_URL", "TOWLINE_STORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    return tmp_path / "towline.yaml"


def declare(file: Path, *schedules: Schedule, clock: ManualClock | None = None) -> None:
    """Declare schedules in the store as a supervisor does; a clock of long ago leaves them without one since."""
    queues = LocalQueues(QueueService(open_store(f"sqlite:///{file.parent / 'queue.db'}"), clock=clock))
    for spec in load_project(file).queue_file.specs():
        queues.put_queue(spec)
    queues.schedules.declare(schedules)
    queues.close()


def found(file: Path) -> list[tuple[str, str]]:
    """The level and the text of each finding."""
    return [(one.level, one.found) for one in schedule_findings(load_project(file), None)]


def test_a_schedule_that_no_supervisor_has_read_is_named(file: Path) -> None:
    declare(file)
    assert found(file) == [("warn", "nightly: no supervisor has read it yet, so nothing adds its tasks")]


def test_schedules_that_are_served_are_well(file: Path) -> None:
    declare(file, NIGHTLY)
    assert found(file) == [("ok", "1 schedule, and no tick is overdue")]


def test_a_schedule_that_nobody_serves_and_one_without_a_queue_are_bad(file: Path) -> None:
    declare(file, NIGHTLY, Schedule("lost", "nowhere", every=60.0), clock=ManualClock())
    lost, nightly = found(file)
    assert lost == ("bad", "lost: there is no queue 'nowhere': make it, or take the schedule out")
    assert nightly[0] == "bad"
    assert nightly[1].startswith("nightly: no supervisor adds its ticks")


@pytest.mark.parametrize(
    ("hours_ago", "level"), [pytest.param(12, "warn", id="today"), pytest.param(72, "ok", id="days ago")]
)
def test_ticks_that_were_missed_are_told_for_a_day(file: Path, hours_ago: float, level: str) -> None:
    then = after(SystemClock().now(), -3_600 * hours_ago)
    hourly = Schedule("nightly", "reports", every=3_600.0)
    declare(file, hourly, clock=ManualClock(after(then, -7_200)))
    queues = LocalQueues(QueueService(open_store(f"sqlite:///{file.parent / 'queue.db'}"), clock=ManualClock(then)))
    queues.schedules.add_ticks()
    queues.schedules.pause("nightly")  # else it waits for a supervisor since
    queues.close()
    assert [one[0] for one in found(file)] == [level]


def test_without_settings_nothing_is_said() -> None:
    assert list(schedule_findings(None, None)) == []


def test_short_lived_names_on_redis_are_a_note_of_the_settings(file: Path) -> None:
    text = SETTINGS.replace("sqlite:///queue.db", "redis://host/0").replace(
        "reports: {}", "reports: {name_retention: 1m}"
    )
    file.write_text(text)
    notes = [note for note in load_project(file).notes if "schedules.nightly" in note]
    assert len(notes) == 1
    assert "queues.reports.name_retention is 1m: give it 5m or more" in notes[0]
    file.write_text(text.replace("1m", "5m"))
    assert not [note for note in load_project(file).notes if "schedules.nightly" in note]
