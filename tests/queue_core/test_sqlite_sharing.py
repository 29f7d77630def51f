"""Several threads and processes on one file: one sync for many, nothing lost by kill -9, no use after a fork."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event

import apsw
import pytest

from queue_core.errors import StoreUnavailableError
from queue_core.store import LeaseRequest
from queue_core.stores.sqlite import store as store_module
from queue_core.stores.sqlite.driver import apsw_driver
from queue_core.stores.sqlite.durable import GroupSync
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, NewTask
from tests.support.eventually import eventually
from tests.support.task_builders import QUEUE, a_queue, add, at, delete, lease, stats


class HeldSyncer:
    """A disk that counts, may be made to wait, and may be made to fail."""

    def __init__(self) -> None:
        self.syncs = 0
        self.let_through = Event()
        self.let_through.set()
        self.failure: OSError | None = None

    def sync(self) -> None:
        self.syncs += 1
        assert self.let_through.wait(10)
        if self.failure is not None:
            raise self.failure

    def grow(self, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


def a_store(path: Path, syncer: HeldSyncer | None = None) -> SqliteStore:
    store = SqliteStore(path) if syncer is None else SqliteStore(path, open_syncer=lambda _path: syncer)
    a_queue(store)
    return store


def test_one_sync_serves_every_commit_that_ended_before_it_began(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    store = a_store(tmp_path / "queue.db", syncer)
    store.sync(store.ticket())
    syncer.syncs = 0
    syncer.let_through.clear()
    entered = Barrier(8)

    def add_and_sync() -> None:
        add(store, NewTask())
        ticket = store.ticket()
        entered.wait(10)
        store.sync(ticket)

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(add_and_sync) for _ in range(8)]
        eventually(lambda: syncer.syncs == 1)
        syncer.let_through.set()
        for each in running:
            each.result(10)
    assert syncer.syncs <= 2
    store.close()


def test_a_commit_that_ends_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    group = GroupSync(syncer, tmp_path / "queue.db")
    first = group.note_commit()
    syncer.let_through.clear()
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(group.wait, first)
        eventually(lambda: syncer.syncs == 1)
        follower = threads.submit(group.wait, group.note_commit())
        syncer.let_through.set()
        leader.result(10)
        follower.result(10)
    assert syncer.syncs == 2
    group.wait(first)
    assert syncer.syncs == 2


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_file_is_opened_again(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    store = a_store(tmp_path / "queue.db", syncer)
    store.sync(store.ticket())
    durable = store.ticket()
    add(store, NewTask())
    syncer.failure = OSError(5, "Input/output error")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            store.sync(store.ticket())
        syncer.failure = None
    assert syncer.syncs == 2
    store.sync(durable)
    with pytest.raises(StoreUnavailableError):
        add(store, NewTask())
    assert stats(store).ready == 1
    store.close()
    store = a_store(tmp_path / "queue.db")
    add(store, NewTask())
    store.sync(store.ticket())
    assert store.check().problems == ()
    store.close()


def test_waiters_of_a_failed_sync_are_all_told(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    group = GroupSync(syncer, tmp_path / "queue.db")
    tickets = [group.note_commit() for _ in range(4)]
    syncer.let_through.clear()
    syncer.failure = OSError(28, "No space left on device")
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(group.wait, ticket) for ticket in tickets]
        eventually(lambda: syncer.syncs == 1)
        syncer.let_through.set()
        assert [type(each.exception(10)) for each in waiting] == [StoreUnavailableError] * 4
    assert syncer.syncs == 1


def test_a_look_that_finds_nothing_costs_no_sync(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    store = a_store(tmp_path / "queue.db", syncer)
    lease(store, worker="known")
    store.sync(store.ticket())
    syncer.syncs = 0
    lease(store, worker="known")
    store.sync(store.ticket())
    assert syncer.syncs == 0
    store.close()


def test_threads_share_a_store_and_lease_every_task_once(tmp_path: Path) -> None:
    store = a_store(tmp_path / "queue.db")
    add(store, *[NewTask(tag=f"t{index % 3}") for index in range(300)])

    def work(worker: str) -> list[str]:
        done: list[str] = []
        while leases := lease(store, 7, worker=worker):
            stats(store)
            delete(store, *leases)
            store.sync(store.ticket())
            done += [each.name for each in leases]
        return done

    with ThreadPoolExecutor(4) as threads:
        done = [name for names in threads.map(work, [f"w{index}" for index in range(4)]) for name in names]
    assert len(done) == len(set(done)) == 300
    assert stats(store).deleted_total == 300
    assert store.check().problems == ()
    store.close()


WORKER = """
    import sys
    from pathlib import Path
    from queue_core.stores.sqlite.store import SqliteStore
    from queue_core.task import NewTask
    from tests.support.task_builders import add, delete, lease

    store = SqliteStore(Path(sys.argv[1]))
    print("ready", flush=True)
    for turn in range(int(sys.argv[2])):
        for added in add(store, NewTask(b"x" * 300, tag=f"t{turn % 5}"), NewTask()):
            pass
        store.sync(store.ticket())
        print(added.name, flush=True)
        delete(store, *lease(store, 1, worker=sys.argv[3]))
    store.close()
"""


def a_process(path: Path, turns: int, worker: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(path), str(turns), worker],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = a_store(path)
    processes = [a_process(path, 150, f"w{index}") for index in range(2)]
    added = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert not set(added[0][1:]) & set(added[1][1:])
    found = stats(store)
    assert (found.added_total, found.deleted_total, found.ready) == (600, 300, 300)
    assert store.check().problems == ()
    store.close()


def test_what_was_acknowledged_survives_kill_minus_nine(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = a_store(path)
    store.close()
    with a_process(path, 1_000_000, "victim") as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(120)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read().split("\n")[:-1]  # `communicate` would leave out what was read ahead of these
    store = SqliteStore(path)
    assert store.check().problems == ()
    with store.begin() as transaction:
        released = transaction.release_worker("victim", now=at(0))
    assert len(released) <= 1
    last = max(int(name[1:]) for name in told[1:])
    assert last <= stats(store).added_total <= last + 2
    store.close()


def test_a_store_is_not_used_after_a_fork(tmp_path: Path) -> None:
    store = a_store(tmp_path / "queue.db")
    refused: list[Callable[[], object]] = [
        lambda: add(store, NewTask()),
        lambda: stats(store),
    ]
    child = os.fork()
    if child == 0:
        failures = 0
        for call in refused:
            try:
                call()
            except StoreUnavailableError:
                failures += 1
        os._exit(failures)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(refused)
    assert stats(store).ready == 0
    store.close()


def test_a_lingering_reader_sees_its_snapshot_and_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 50)
    store = a_store(tmp_path / "queue.db")
    wal = tmp_path / "queue.db-wal"
    with store.read() as snapshot:
        assert snapshot.stats(QUEUE, ANY, now=at(0)).ready == 0
        for _ in range(30):
            add(store, *[NewTask(b"x" * 1000) for _ in range(20)])
        assert snapshot.stats(QUEUE, ANY, now=at(0)).ready == 0
    grown = wal.stat().st_size
    for _ in range(60):
        add(store, *[NewTask(b"x" * 1000) for _ in range(20)])
    assert stats(store).ready == 1800
    assert wal.stat().st_size <= grown + 200 * 1024
    store.close()


def test_the_log_of_a_relaxed_store_is_folded_in_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 10)
    store = SqliteStore(tmp_path / "queue.db", durability="relaxed")
    a_queue(store)
    for _ in range(100):
        add(store, *[NewTask(b"x" * 1000) for _ in range(20)])
    assert (tmp_path / "queue.db-wal").stat().st_size <= 200 * 4120
    assert store.check().problems == ()
    store.close()


class FailingSyncer:
    """A disk that takes nothing."""

    def __init__(self, path: Path) -> None:
        pass

    def sync(self) -> None:
        raise OSError("no")

    def grow(self, size_bytes: int) -> None:
        raise OSError("no")

    def close(self) -> None:
        pass


def test_a_relaxed_store_whose_log_can_not_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 1)
    store = SqliteStore(tmp_path / "queue.db", durability="relaxed", open_syncer=FailingSyncer)

    def refuses() -> bool:
        try:
            a_queue(store)
            add(store, NewTask())
        except StoreUnavailableError:
            return True
        return False

    eventually(refuses)
    store.close()


def test_a_tag_that_another_process_forgot_is_made_anew(tmp_path: Path) -> None:
    first, second = a_store(tmp_path / "queue.db"), a_store(tmp_path / "queue.db")
    add(first, NewTask(tag="old"))
    delete(first, *lease(first))
    add(second, *[NewTask(tag=f"new-{index}") for index in range(20)], now=at(3 * 86_400))
    add(first, NewTask(tag="old"), now=at(3 * 86_400))
    with first.begin() as transaction:
        granted = transaction.lease(QUEUE, LeaseRequest(50, 5.0, ANY, ""), now=at(3 * 86_400))
    assert "old" in {each.tag for each in granted.leases}
    assert first.check().problems == ()
    first.close()
    second.close()


class FailingCheckpoints(apsw.Connection):
    """A file whose log can be written, but not folded into it."""

    error: type[Exception] = apsw.IOError

    def execute(self, sql: str, *cells: object) -> object:  # type: ignore[override]
        if sql == "PRAGMA wal_checkpoint(PASSIVE)":
            raise self.error("no")
        return super().execute(sql, *cells)  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "goes_on"), [(apsw.FullError, True), (apsw.IOError, False)])
def test_only_a_full_disk_may_be_tried_again_after_a_failed_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], goes_on: bool
) -> None:
    monkeypatch.setattr(FailingCheckpoints, "error", error)
    driver = replace(apsw_driver(), connect=lambda path, _vfs: FailingCheckpoints(path))
    store = SqliteStore(tmp_path / "queue.db", driver=driver)
    a_queue(store)
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 1)
    add(store, NewTask())
    if goes_on:
        add(store, NewTask())
        store.sync(store.ticket())
    else:
        with pytest.raises(StoreUnavailableError):
            store.sync(store.ticket())
        with pytest.raises(StoreUnavailableError):
            add(store, NewTask())
    store.close()
    store = SqliteStore(tmp_path / "queue.db")
    assert stats(store).ready == 1 + goes_on
    store.close()
