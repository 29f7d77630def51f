"""A mark in memory that processes share."""

import os
import subprocess
import sys
from pathlib import Path

from queue_core.stores.sqlite.shared_mark import MARK_BYTES, SharedMark


def descriptors(path: Path) -> list[Path]:
    """Those of this process that lead to the file."""
    links = Path("/proc/self/fd").iterdir()
    return [link for link in links if os.path.realpath(link) == str(path)]


def test_each_change_is_seen_by_all_and_makes_it_what_it_never_was(tmp_path: Path) -> None:
    marks = [SharedMark(tmp_path / "lock") for _ in range(2)]
    seen = {marks[0].value()}
    for number in range(200):
        marks[number % 2].change()
        assert marks[0].value() == marks[1].value()
        seen.add(marks[0].value())
    assert len(seen) == 201
    assert None not in seen
    for mark in marks:
        mark.close()


def test_a_change_of_another_process_is_seen(tmp_path: Path) -> None:
    mark = SharedMark(tmp_path / "lock")
    before = mark.value()
    program = (
        "import sys; from pathlib import Path; from queue_core.stores.sqlite.shared_mark import SharedMark;"
        " SharedMark(Path(sys.argv[1])).change()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=True)
    assert mark.value() != before
    mark.close()


def test_a_file_that_is_there_keeps_its_mark_and_its_length(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"m" * MARK_BYTES + b"more")
    mark = SharedMark(path)
    assert mark.value() == b"m" * MARK_BYTES
    mark.change()
    assert path.stat().st_size == MARK_BYTES + 4
    assert path.read_bytes().endswith(b"more")
    mark.close()


def test_where_there_is_no_such_file_it_cant_be_told(tmp_path: Path) -> None:
    mark = SharedMark(tmp_path / "no folder" / "lock")
    mark.change()
    assert mark.value() is None
    mark.close()


def test_once_closed_nothing_is_told_or_written_any_more(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mark = SharedMark(path)
    mark.change()
    kept = path.read_bytes()
    assert len(descriptors(path)) == 2  # its own, and the mapping's
    mark.close()
    assert descriptors(path) == []
    mark.change()
    assert mark.value() is None
    assert path.read_bytes() == kept
    mark.close()
