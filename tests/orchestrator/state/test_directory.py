"""What a supervisor keeps in its folder, and what becomes of it when the folder is damaged or full."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.errors import AlreadySupervisedError
from orchestrator.state import journal
from orchestrator.state.directory import StateDir
from orchestrator.state.journal import Journal, read_journal


def test_one_supervisor_at_a_time_works_with_a_folder(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    assert not files.is_supervised()
    with files.locked():
        assert files.is_supervised()
        with pytest.raises(AlreadySupervisedError, match="another supervisor works with"), StateDir(tmp_path).locked():
            pass
    assert not files.is_supervised()


def test_a_snapshot_is_read_as_it_was_shown(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    assert files.read_snapshot() is None
    files.write_snapshot({"pid": 1})
    files.write_snapshot({"pid": 2})
    assert files.read_snapshot() == {"pid": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["supervisor.json"]


def test_what_was_learned_is_kept_per_pool(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    assert files.read_learned() == {}
    files.write_learned({"resize": {"slack": 0.8}})
    assert files.read_learned() == {"resize": {"slack": 0.8}}


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"version": 2, "pools": {}}', '{"version": 1, "pools": 7}'])
def test_learned_state_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ValueError, match=r"state\.json is not a state of version 1"):
        StateDir(tmp_path).read_learned()


def test_a_journal_is_read_newest_first(tmp_path: Path) -> None:
    written = Journal(tmp_path / "decisions.jsonl")
    for number in range(5):
        written.append({"number": number})
    assert [record["number"] for record in read_journal(tmp_path / "decisions.jsonl", limit=3)] == [4, 3, 2]


def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"number": 1}\n{"num')
    assert read_journal(path, limit=10) == [{"number": 1}]


def test_a_journal_stays_small_and_keeps_its_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "deaths.jsonl"
    written = Journal(path)
    line = {"filler": "x" * 100_000}
    for number in range(100):
        written.append({"number": number, **line})
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * journal.MAX_JOURNAL_BYTES
    assert [record["number"] for record in read_journal(path, limit=10)] == list(range(99, 89, -1))


def test_a_journal_that_cannot_be_written_says_so_once(tmp_path: Path) -> None:
    written = Journal(tmp_path / "missing" / "deaths.jsonl")
    with capture_logs() as logs:
        written.append({"number": 1})
        written.append({"number": 2})
    assert [entry["event"] for entry in logs] == [events.STATE_NOT_WRITTEN]
    assert json.dumps(logs[0])
