"""Several threads and processes on one file: each task leased once, nothing lost by kill -9."""

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queue_core.stores.sqlite import store as store_module
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, NewTask
from queue_core.verbs import LeaseRequest
from tests.support.stores.sqlite_stores import a_store
from tests.support.stores.task_builders import QUEUE, add, at, delete, lease, stats


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
    from tests.support.stores.task_builders import add, delete, lease

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
        cwd=Path(__file__).parents[4],
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
