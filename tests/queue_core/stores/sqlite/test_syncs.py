"""A strict store has the disk keep each change before it is acknowledged: the log that SQLite writes, and no other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.client.http_calls import HttpQueue
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.stores.syncs import OUTPUT, SyncEvent, events, traced, unsynced

ADDS = 8
CALLERS = 8
MARKS = [f"mark-{number:03}-" for number in range(ADDS)]

ADDING = """
import sys
from queue_core.client.connect import open_queue
queue = open_queue(sys.argv[1], "work", durability=sys.argv[2])
for mark in sys.argv[3:]:
    queue.add(mark.encode())
    print("added", mark, flush=True)
queue.close()
"""


def added(folder: Path, url: str, durability: str = "strict") -> list[SyncEvent]:
    """What a program does that adds tasks one by one through the library, and says so of each."""
    with traced(folder, "-c", ADDING, url, durability, *MARKS) as (program, trace):
        assert program.wait(60) == 0, (folder / OUTPUT).read_text()
    return events(trace)


@contextmanager
def served(folder: Path) -> Iterator[tuple[HttpQueue, Path]]:
    """A traced server of its own, and a queue of it."""
    with traced(folder, "-m", "orchestrator", "serve", "--listen", "unix:q.sock") as (program, trace):
        eventually(lambda: "serving at" in (folder / OUTPUT).read_text() or program.poll() is not None, seconds=60)
        queue = HttpQueue(f"unix://{folder}/q.sock", "default")
        try:
            yield queue, trace
        finally:
            queue.close()


def test_each_add_of_the_library_is_synced_before_it_returns(tmp_path: Path) -> None:
    assert unsynced(added(tmp_path, "sqlite:///queue.db"), log=tmp_path / "queue.db-wal", marks=MARKS) == []


def test_adds_to_a_relaxed_store_are_not_synced(tmp_path: Path) -> None:
    told = added(tmp_path, "sqlite:///queue.db", "relaxed")
    assert unsynced(told, log=tmp_path / "queue.db-wal", marks=MARKS) == MARKS


@pytest.mark.parametrize("has_neighbour", [True, False], ids=["an old log beside the link", "none beside the link"])
def test_the_log_of_the_file_behind_a_link_is_synced(tmp_path: Path, has_neighbour: bool) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "queue.db").symlink_to("real/tasks.db")
    if has_neighbour:
        (tmp_path / "queue.db-wal").touch()
    told = added(tmp_path, "sqlite:///queue.db")
    assert unsynced(told, log=tmp_path / "real" / "tasks.db-wal", marks=MARKS) == []


def test_each_add_over_http_is_synced_before_it_is_answered(tmp_path: Path) -> None:
    with served(tmp_path) as (queue, trace):
        for mark in MARKS:
            queue.add(NewTask(b"x", name=mark))
    assert unsynced(events(trace), log=tmp_path / "towline.db-wal", marks=MARKS) == []


def test_adds_that_share_a_commit_are_all_synced_before_they_are_answered(tmp_path: Path) -> None:
    marks = [f"mark-{number:03}-" for number in range(ADDS * CALLERS)]
    with served(tmp_path) as (queue, trace), ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(lambda mark: queue.add(NewTask(b"x", name=mark)), marks))
    told = events(trace)
    assert unsynced(told, log=tmp_path / "towline.db-wal", marks=marks) == []
    assert sum(one.kind == "synced" for one in told) < len(marks)
