"""A state directory that is removed and made anew under its supervisor: the new one's files are left alone."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.state.directory import StateDir

WRITES = {
    "snapshot": lambda files: files.write_snapshot({"pid": 1}),
    "learned": lambda files: files.write_learned({"resize": {}}),
    "usage": lambda files: files.write_usage({"pools": {}}),
    "answer": lambda files: files.write_reload_answer({"request": "1"}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_old_holder_of_a_replaced_folder_writes_nothing_into_the_new_one(
    tmp_path: Path, write: Callable[[StateDir], None]
) -> None:
    old, new = StateDir(tmp_path / "state"), StateDir(tmp_path / "state")
    with old.locked():
        write(old)
        shutil.rmtree(old.path)
        with pytest.raises(OSError, match="removed or replaced"):
            write(old)
        assert not old.path.exists()
        with new.locked():
            write(new)
            before = {path.name: path.read_bytes() for path in new.path.iterdir()}
            with pytest.raises(OSError, match="removed or replaced"):
                write(old)
            assert {path.name: path.read_bytes() for path in new.path.iterdir()} == before
    write(new)


def test_the_old_holder_adds_no_line_to_the_new_ones_journals_and_says_so_once(tmp_path: Path) -> None:
    old, new = StateDir(tmp_path / "state"), StateDir(tmp_path / "state")
    with old.locked():
        shutil.rmtree(old.path)
        with new.locked(), capture_logs() as logs:
            new.deaths.append({"worker": "new"})
            for _ in range(2):
                old.deaths.append({"worker": "old"})
            assert [death["worker"] for death in new.read_deaths(limit=10)] == ["new"]
    (told,) = [entry for entry in logs if entry["event"] == events.STATE_NOT_WRITTEN]
    assert "removed or replaced" in told["error"]
