"""An import adds all of an export once, however often it is interrupted, and leaves existing tasks alone."""

import io
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from queue_core.clock import START, Instant
from queue_core.errors import BadFileError, CutShortError, MoveRefusedError, QueueMovedError
from queue_core.store import Store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec, TaskState
from queue_core.transfer.exporter import STDOUT
from queue_core.transfer.importer import import_file
from queue_core.transfer.progress import holding_lead
from queue_core.verbs import LeaseRequest
from tests.support.stores.transfers import (
    QUEUE,
    ProcessEndedError,
    exported,
    fill,
    imported,
    interrupted,
    lines_of,
    moved_to,
    names_of,
    quiet,
    service,
    tasks_of,
)

MAX_WRITES = 80


def a_file(tmp_path: Path, *, tasks: int = 40, suffix: str = "jsonl") -> tuple[Path, MemoryStore]:
    """An export, and the store it is of, which others look at too."""
    return a_file_of(tmp_path, (QUEUE, tasks), suffix=suffix)


def a_file_of(tmp_path: Path, *queues: tuple[str, int], suffix: str = "jsonl") -> tuple[Path, MemoryStore]:
    """The same with several queues, each of so many tasks."""
    raw, store = an_export(queues, suffix)
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(raw)
    return path, store


@lru_cache
def an_export(queues: tuple[tuple[str, int], ...], suffix: str) -> tuple[bytes, MemoryStore]:
    """Made once: hundreds of tasks take longer to export than to import."""
    store = MemoryStore()
    for queue, tasks in queues:
        fill(store, queue=queue, tasks=tasks, longest=9000)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{suffix}"
        exported(store, path)
        return path.read_bytes(), store


def whole(store: Store, path: Path) -> object:
    """Import a file as the command does."""
    return import_file(store, path, checking=quiet, importing=quiet)


# -- all of it, once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_an_imported_queue_is_as_it_was_exported(tmp_path: Path, new: Store, suffix: str) -> None:
    path, old = a_file(tmp_path, suffix=suffix)
    result = imported(new, path)
    assert tasks_of(new) == tasks_of(old)
    assert names_of(new) == names_of(old) != []
    assert (result.tasks, result.names, result.refused, result.created, result.was_done) == (49, 3, 0, (QUEUE,), False)
    with new.read() as snapshot:
        assert snapshot.queue(QUEUE) == old.queue(QUEUE)
        assert moved_to(new) == ""


def test_several_queues_with_thousands_of_tasks_are_imported(tmp_path: Path, new: Store) -> None:
    path, old = a_file_of(tmp_path, ("b-second", 1300), ("a-first", 700))
    assert imported(new, path).tasks == 2018
    for queue in ("a-first", "b-second"):
        assert tasks_of(new, queue=queue) == tasks_of(old, queue=queue)
        assert moved_to(new, queue=queue) == ""


def test_what_is_exported_and_imported_from_store_to_store_comes_back_the_same(tmp_path: Path, new: Store) -> None:
    path, old = a_file(tmp_path)
    imported(new, path)
    exported(new, tmp_path / "again.jsonl")
    back = MemoryStore()
    imported(back, tmp_path / "again.jsonl")
    assert tasks_of(back) == tasks_of(old)
    assert names_of(back) == names_of(old)


def test_importing_again_does_nothing_though_half_was_done_since(tmp_path: Path, new: Store) -> None:
    path, _ = a_file(tmp_path)
    imported(new, path)
    with new.begin() as transaction:
        transaction.purge(QUEUE, ANY, limit=20, now=new.clock.now())
    before = tasks_of(new)
    again = imported(new, path)
    assert (again.was_done, again.tasks) == (True, 49)
    assert tasks_of(new) == before


def test_an_import_whose_progress_is_forgotten_is_refused_and_does_nothing(tmp_path: Path) -> None:
    path, _ = a_file(tmp_path)
    new = MemoryStore()
    with pytest.raises(ProcessEndedError):
        imported(interrupted(new, at=9, when="after"), path)
    new._answers.clear()
    new.set_moved(QUEUE, "")
    before = tasks_of(new)
    with pytest.raises(MoveRefusedError, match="a day or more ago"):
        imported(new, path)
    assert tasks_of(new) == before


def test_a_file_is_imported_again_once_all_its_queues_were_dropped(tmp_path: Path, new: Store) -> None:
    path, old = a_file_of(tmp_path, ("a-first", 9), ("b-second", 10))
    imported(new, path)
    with new.begin() as transaction:
        transaction.delete_queue("a-first")
    with pytest.raises(MoveRefusedError, match="b-second are left"):
        imported(new, path)
    with new.begin() as transaction:
        transaction.delete_queue("b-second")
    assert imported(new, path).created == ("a-first", "b-second")
    assert tasks_of(new, queue="b-second") == tasks_of(old, queue="b-second")


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_import_that_is_broken_off_at_any_write_goes_on_and_doubles_nothing(
    tmp_path: Path, new: Store, when: str
) -> None:
    path, old = a_file_of(tmp_path, ("a-first", 600), ("b-second", 10))
    for at in range(1, MAX_WRITES):
        try:
            imported(interrupted(new, at=at, when=when), path)
            break
        except ProcessEndedError:
            continue
    assert at > 5
    assert imported(new, path).was_done
    for queue in ("a-first", "b-second"):
        assert tasks_of(new, queue=queue) == tasks_of(old, queue=queue)
        assert names_of(new, queue=queue) == names_of(old, queue=queue)
        assert moved_to(new, queue=queue) == ""


@pytest.mark.parametrize("at", range(1, 14))
def test_an_import_that_is_broken_off_once_goes_on(tmp_path: Path, new: Store, at: int) -> None:
    path, old = a_file(tmp_path, tasks=600)
    with pytest.raises(ProcessEndedError):
        imported(interrupted(new, at=at, when="after"), path)
        raise ProcessEndedError  # it was done before
    imported(new, path)
    assert tasks_of(new) == tasks_of(old)
    assert names_of(new) == names_of(old)


def test_a_pipe_that_breaks_is_gone_on_with_when_the_same_export_comes_again(
    tmp_path: Path, new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = a_file(tmp_path, tasks=1300)
    raw = path.read_bytes()
    pipe_in(monkeypatch, raw[: len(raw) * 2 // 3])
    with pytest.raises(CutShortError, match="stdin"):
        whole(new, STDOUT)
    assert 0 < len(tasks_of(new)) < 1309
    pipe_in(monkeypatch, raw)
    whole(new, STDOUT)
    assert tasks_of(new) == tasks_of(old)


def test_a_pipe_is_held_to_its_checksum_though_it_was_broken_off_before(
    tmp_path: Path, new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = a_file(tmp_path, tasks=1300)
    raw = path.read_bytes()
    pipe_in(monkeypatch, raw[: len(raw) * 2 // 3])
    with pytest.raises(CutShortError):
        whole(new, STDOUT)
    pipe_in(monkeypatch, raw.replace(b"task 2", b"task 3", 1))
    with pytest.raises(BadFileError, match="sha256"):
        whole(new, STDOUT)


def pipe_in(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    """What is read from stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))


# -- nothing, where something is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_nothing_is_done_with_a_file_that_is_not_whole(tmp_path: Path, new: Store, suffix: str) -> None:
    path, _ = a_file(tmp_path, tasks=1300, suffix=suffix)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CutShortError):
        whole(new, path)
    with new.read() as snapshot:
        assert snapshot.queues() == []


def test_nothing_is_done_with_a_file_that_is_wrong_near_its_end(tmp_path: Path, new: Store) -> None:
    path, _ = a_file(tmp_path, tasks=1300)
    path.write_bytes(path.read_bytes().replace(b'"state":"dead"', b'"state":"deaf"', 1))
    with pytest.raises(BadFileError, match="state"):
        whole(new, path)
    with new.read() as snapshot:
        assert snapshot.queues() == []


def test_two_imports_of_one_file_do_not_run_at_once(tmp_path: Path, new: Store) -> None:
    path, _ = a_file(tmp_path)
    session = f"import-{lines_of(path)[0]['id']}"
    with holding_lead(service(new), session, seconds=60), pytest.raises(MoveRefusedError, match="another"):
        imported(new, path)


# -- what is there already --------------------------------------------------------------------------------------------


def test_a_task_whose_name_is_taken_is_left_out_and_told(tmp_path: Path, new: Store) -> None:
    path, _ = a_file(tmp_path)
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE, lease_seconds=7.0), now=new.clock.now())
        transaction.add(QUEUE, [NewTask(b"its own", name="name-0")], now=new.clock.now())
    result = imported(new, path)
    assert (result.tasks, result.refused, result.created) == (48, 1, ())
    assert [task.payload for task in tasks_of(new) if task.name == "name-0"] == [b"its own"]
    with new.read() as snapshot:
        assert snapshot.queue(QUEUE).lease_seconds == 7.0


def test_a_queue_that_was_moved_away_is_not_imported_into(tmp_path: Path, new: Store) -> None:
    path, _ = a_file(tmp_path)
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=new.clock.now())
        transaction.set_moved(QUEUE, "sqlite:////srv/elsewhere.db")
    with pytest.raises(QueueMovedError, match="elsewhere"):
        imported(new, path)
    assert tasks_of(new) == []


def test_a_queue_is_paused_where_it_was_paused_and_made(tmp_path: Path, new: Store) -> None:
    old = MemoryStore()
    fill(old, longest=9000)
    old.set_paused(QUEUE, "paused")
    exported(old, tmp_path / "x.jsonl")
    imported(new, tmp_path / "x.jsonl")
    with new.read() as snapshot:
        assert snapshot.queue(QUEUE).paused


def test_producers_and_workers_go_on_while_their_queue_is_imported_into(tmp_path: Path, new: Store) -> None:
    if new.unit == "verb":
        pytest.skip(f"{new.url} is closed while it is filled")
    path, _ = a_file(tmp_path, tasks=1300)
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=new.clock.now())
    with pytest.raises(ProcessEndedError):
        imported(interrupted(new, at=4, when="after"), path)
    with new.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"its own")], now=new.clock.now())
        assert transaction.lease(QUEUE, LeaseRequest(1, 60, ANY, "w"), now=new.clock.now()).leases
    imported(new, path)
    assert len(tasks_of(new)) == 1310


def test_a_queue_that_is_filled_step_by_step_is_closed_until_it_is_full(tmp_path: Path, new: Store) -> None:
    if new.unit == "transaction":
        pytest.skip(f"{new.url} keeps a chunk and its progress in one transaction")
    path, _ = a_file(tmp_path, tasks=1300)
    with pytest.raises(ProcessEndedError):
        imported(interrupted(new, at=12, when="after"), path)
    with pytest.raises(QueueMovedError, match="being filled"), new.begin() as transaction:
        transaction.add(QUEUE, [NewTask()], now=new.clock.now())
    imported(new, path)
    assert moved_to(new) == ""


def test_who_waits_is_woken_by_what_is_imported(tmp_path: Path, new: Store) -> None:
    path, _ = a_file(tmp_path)
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=new.clock.now())
    waiting = new.signals.subscribe(QUEUE, ANY)
    try:
        imported(new, path)
        assert waiting.wait(timeout_seconds=10)
    finally:
        waiting.close()


def test_a_task_in_flight_when_it_was_exported_stays_hidden_until_its_lease_would_have_ended(
    tmp_path: Path, new: Store
) -> None:
    path, old = a_file(tmp_path)
    imported(new, path)
    leased = [task for task in tasks_of(new) if task.state is TaskState.LEASED]
    assert leased == [task for task in tasks_of(old) if task.state is TaskState.LEASED] != []


def test_large_tasks_come_whole_with_their_queues_settings_though_its_limit_was_lowered(
    tmp_path: Path, new: Store
) -> None:
    old = MemoryStore()
    large = [bytes(range(256)) * (20 << 10), b"t" * (3 << 20), b"short"]
    eta = Instant(old.clock.now() + 300 * 86_400_000_000)
    with old.begin() as transaction:
        transaction.put_queue(QueueSpec("big"), now=START)
        transaction.put_queue(
            QueueSpec("far", max_payload_bytes=5 << 20, max_eta_seconds=400 * 86_400.0, label="f_r"), now=START
        )
        transaction.add("big", [NewTask(payload) for payload in large], now=START)
        transaction.add("far", [NewTask(b"later", eta=eta)], now=old.clock.now())
    exported(old, tmp_path / "x.jsonl.gz")
    imported(new, tmp_path / "x.jsonl.gz")
    with old.read() as before, new.read() as transaction:
        assert transaction.queue("far") == before.queue("far")
        assert transaction.next_eta("far", now=old.clock.now()) == eta
    assert [task.payload for task in tasks_of(new, queue="big")] == large
