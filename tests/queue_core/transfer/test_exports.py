"""An export: all that a store has, beside what goes on; and a file that was cut short is completed."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.errors import BadFileError, UnknownQueueError
from queue_core.store import Store
from queue_core.task import NewTask, QueueSpec, TagFilter
from queue_core.transfer.exporter import export
from tests.support.stores.stores import STORES, opened
from tests.support.stores.transfers import QUEUE, checked, exported, fill, lines_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a queue that has everything in it."""
    with opened("sqlite", tmp_path) as found:
        fill(found, longest=9000)
        yield found


# -- exporting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_every_store_exports_all_it_has(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as store:
        fill(store)
        told = exported(store, tmp_path / "x.jsonl")
    assert (told.tasks, told.names) == checked(tmp_path / "x.jsonl") == (49, 3)
    kinds = [line["kind"] for line in lines_of(tmp_path / "x.jsonl")]
    assert kinds == ["header", *["name"] * 3, *["task"] * 49, "end"]


def test_compressed_lines_are_the_same_lines(store: Store, tmp_path: Path) -> None:
    exported(store, tmp_path / "x.jsonl")
    exported(store, tmp_path / "x.jsonl.gz")
    plain = (tmp_path / "x.jsonl").read_bytes().splitlines()[1:-1]
    assert gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()).splitlines()[1:-1] == plain


def test_queues_are_named_or_else_all_that_were_not_moved(store: Store, tmp_path: Path) -> None:
    fill(store, queue="gone", tasks=3)
    fill(store, queue="more", tasks=3)
    with store.begin() as transaction:
        transaction.set_moved("gone", "sqlite:////srv/elsewhere.db")
    assert [spec.name for spec in exported(store, tmp_path / "all").header.queues] == ["more", QUEUE]
    assert [spec.name for spec in exported(store, tmp_path / "one", queues=["gone"]).header.queues] == ["gone"]
    with pytest.raises(UnknownQueueError):
        exported(store, tmp_path / "none", queues=["nowhere"])
    assert not (tmp_path / "none").exists()


def test_a_store_without_queues_is_not_exported(tmp_path: Path) -> None:
    with opened("sqlite", tmp_path) as empty, pytest.raises(UnknownQueueError, match="no queues"):
        exported(empty, tmp_path / "x")


def test_tasks_that_come_and_go_during_an_export_leave_it_whole(store: Store, tmp_path: Path) -> None:
    meddled: list[str] = []

    def meddle(queue: str, _done: int, _total: int) -> None:
        if not meddled:
            meddled.append(queue)
            with store.begin() as transaction:
                transaction.purge(QUEUE, TagFilter.of("a"), limit=100, now=store.clock.now())
                transaction.add(QUEUE, [NewTask(b"came meanwhile")], now=store.clock.now())

    fill(store, queue="a-first", tasks=3)
    with store.read() as look:
        gone = look.stats(QUEUE, TagFilter.of("a"), now=store.clock.now())
    told = export(store, tmp_path / "x.jsonl", progress=meddle)
    assert told.tasks == 49 + 12 + 1 - gone.ready - gone.delayed
    assert checked(tmp_path / "x.jsonl") == (told.tasks, told.names)
    assert b"came meanwhile" in (tmp_path / "x.jsonl").read_bytes()


def test_a_file_that_is_there_is_not_written_over(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("precious")
    with pytest.raises(FileExistsError):
        exported(store, tmp_path / "x")
    assert (tmp_path / "x").read_text() == "precious"


# -- completing what was cut short ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_an_export_cut_at_any_byte_is_completed_and_then_the_same(store: Store, tmp_path: Path, suffix: str) -> None:
    fill(store, queue="a-first", tasks=5)
    path = tmp_path / f"x.{suffix}"
    exported(store, path)
    whole = path.read_bytes()
    told = _texts(path)
    for size in (*range(0, len(whole), max(1, len(whole) // 60)), len(whole) - 1):
        path.write_bytes(whole[:size])
        done = exported(store, path, mode="resume")
        assert (done.tasks, done.names, done.was_whole) == (49 + 14, 6, False)
        assert _texts(path)[1:-1] == told[1:-1]
        assert checked(path) == (49 + 14, 6)


def _texts(path: Path) -> list[bytes]:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()


def test_an_export_that_is_whole_is_left_alone(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    before = path.read_bytes()
    assert exported(store, path, mode="resume").was_whole
    assert path.read_bytes() == before


def test_resuming_begins_a_file_that_is_not_there(store: Store, tmp_path: Path) -> None:
    assert exported(store, tmp_path / "x.jsonl", mode="resume").tasks == 49


def test_what_came_before_the_rest_was_written_is_in_the_rest(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    path.write_bytes(path.read_bytes()[:-300])
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"came later")], now=store.clock.now())
    assert exported(store, path, mode="resume").tasks == 50
    assert b"came later" in path.read_bytes()


def test_another_stores_export_is_not_added_to(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    exported(store, path)
    cut = path.read_bytes()[:-300]
    path.write_bytes(cut)
    (tmp_path / "other").mkdir()
    with opened("sqlite", tmp_path / "other") as other:
        with other.begin() as transaction:
            transaction.put_queue(QueueSpec(QUEUE), now=other.clock.now())
        with pytest.raises(BadFileError, match="resume it there"):
            exported(other, path, mode="resume")
    with pytest.raises(BadFileError, match="name those queues"):
        exported(store, path, mode="resume", queues=["elsewhere"])
    assert path.read_bytes() == cut


def test_a_file_that_is_no_export_is_not_added_to(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious\nlines\n")
    with pytest.raises(BadFileError):
        exported(store, path, mode="resume")
    assert path.read_text() == "precious\nlines\n"
