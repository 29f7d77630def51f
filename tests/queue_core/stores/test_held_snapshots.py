"""Who holds a snapshot of a store open: found, told once, and gone when it ends."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from queue_core.errors import StoreUnavailableError
from queue_core.server.base.events import SNAPSHOT_ENDED, SNAPSHOT_HELD
from queue_core.server.watches.held_snapshots import LOOK_SECONDS, SnapshotWatch
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.memory.store import MemoryStore
from queue_core.stores.postgres import held_snapshot as postgres_holders
from queue_core.stores.postgres.client import pool
from queue_core.stores.postgres.client.connection import SETTINGS
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.store import PostgresStore
from queue_core.stores.sqlite import file
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.wal import held_snapshot as reader_of
from queue_core.task import ANY, NewTask
from queue_core.verbs import HELD_SECONDS, HeldSnapshot
from tests.support.eventually import eventually
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, stats


@pytest.fixture
def url() -> str:
    return new_store_url("postgresql")


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    monkeypatch.setattr(postgres_holders, "MANY_DEAD_ROWS", 50)
    with closing(PostgresStore(url)) as opened:
        a_queue(opened)
        yield opened


def leave_dead(store: Store, tasks: int = 100) -> None:
    add(store, *[NewTask()] * tasks)
    delete(store, *lease(store, tasks))


def found(store: Store, *, min_seconds: float = 0.0) -> HeldSnapshot:
    """Return who holds a snapshot, once the server has counted the dead rows."""
    return eventually(lambda: store.held_snapshot(min_seconds=min_seconds))  # type: ignore[return-value]


def test_an_idle_transaction_is_named_with_what_ends_it(store: PostgresStore, url: str) -> None:
    with closing(psycopg.connect(url, application_name="analyst")) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        leave_dead(store)
        held = found(store)
        pid = holder.info.backend_pid
        assert (held.kind, held.pid, held.application) == ("idle in transaction", pid, "analyst")
        assert (held.user, held.remedy) == (holder.info.user, f"SELECT pg_terminate_backend({pid})")
        assert held.dead_rows >= 100
        assert held.seconds is not None
        assert str(pid) in held.sentence
        assert "analyst" in held.sentence
        assert store.held_snapshot(min_seconds=3600) is None
        with psycopg.connect(url, autocommit=True) as another:
            another.execute(held.remedy.encode())
    eventually(lambda: store.held_snapshot() is None)


def test_a_snapshot_that_keeps_little_is_not_told(store: PostgresStore, url: str) -> None:
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_current_xact_id()")
        assert store.held_snapshot() is None


def test_a_role_that_may_not_see_others_is_told_which_right_it_needs(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_holders, "UNSEEN_DEAD_ROWS", 50)
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as owner:
        holder.execute("SELECT pg_current_xact_id()")
        leave_dead(store)
        owner.execute("VACUUM towline.tasks")
        name = f"blind_{holder.info.backend_pid}"
        owner.execute(f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA towline TO {name}".encode())
        try:
            with psycopg.connect(url, autocommit=True) as blind:
                blind.execute(f"SET ROLE {name}".encode())
                held = eventually(lambda: postgres_holders.held_snapshot(blind, "towline", min_seconds=0.0))
            assert held is not None
            assert (held.kind, held.remedy) == ("not to be seen", f'GRANT pg_read_all_stats TO "{name}"')
            assert held.remedy in held.sentence
        finally:
            owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_the_stores_own_sessions_hold_no_snapshot_for_long(store: PostgresStore) -> None:
    """The server ends their idle transactions, and their statements once their client is gone."""
    wanted = ("idle_in_transaction_session_timeout", "client_connection_check_interval", "lock_timeout")
    with store._pool.lend() as connection:
        for setting in wanted:
            row = connection.driver.execute("SELECT setting FROM pg_settings WHERE name = %s", (setting,)).fetchone()
            assert row is not None
            assert row[0] == SETTINGS[setting]
            assert 0 < int(str(row[0])) <= 10_000


HOLDING = """
    SELECT 1 FROM pg_stat_activity
    WHERE pid = %s AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND state IS NOT NULL
"""


@pytest.mark.parametrize("is_write", [False, True])
def test_the_server_ends_our_transaction_that_a_stuck_caller_leaves_open(
    url: str, monkeypatch: pytest.MonkeyPatch, *, is_write: bool
) -> None:
    monkeypatch.setattr(pool, "SETTINGS", {**SETTINGS, "idle_in_transaction_session_timeout": "300"})
    with closing(PostgresStore(url)) as store, psycopg.connect(url, autocommit=True) as looking:
        a_queue(store)
        with (
            pytest.raises(StoreUnavailableError),
            store.begin() if is_write else store.read() as transaction,
        ):
            transaction.stats(QUEUE, ANY, now=at(1))
            ((pid,),) = transaction._session.rows(Statement("pid", "SELECT pg_backend_pid()"))
            eventually(lambda: looking.execute(HOLDING, (pid,)).fetchone() is None)
            transaction.stats(QUEUE, ANY, now=at(1))
        assert stats(store, now=at(1)).ready == 0


def test_the_server_ends_our_statement_whose_client_is_gone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SETTINGS", {**SETTINGS, "client_connection_check_interval": "300"})
    with (
        closing(PostgresStore(url)) as store,
        psycopg.connect(url, autocommit=True) as looking,
        store._pool.lend() as connection,
    ):
        pgconn = connection.driver.pgconn
        pgconn.send_query(b"SELECT pg_current_xact_id(), pg_sleep(3600)")
        pid = connection.driver.info.backend_pid
        eventually(lambda: looking.execute(HOLDING, (pid,)).fetchone())
        with socket.socket(fileno=os.dup(pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
        eventually(lambda: looking.execute(HOLDING, (pid,)).fetchone() is None)


def test_the_watch_tells_a_holder_once_and_its_end() -> None:
    held = HeldSnapshot("idle in transaction", "pid 7", 7, "psql", "ann", "here", 61.0, 5000, remedy="end it")
    course = (None, held, held, None, None)
    answers: list[HeldSnapshot | None] = [*course]

    class Answering(MemoryStore):
        def held_snapshot(self, *, min_seconds: float = 0.0) -> HeldSnapshot | None:  # type: ignore[override]
            assert min_seconds == HELD_SECONDS
            return answers.pop(0)

    watch = SnapshotWatch(Answering())
    with capture_logs() as logs:
        for expected in course:
            watch.look()
            assert watch.held == expected
    assert [entry["event"] for entry in logs] == [SNAPSHOT_HELD, SNAPSHOT_ENDED]
    assert (logs[0]["pid"], logs[0]["cure"], logs[0]["dead_rows"]) == (7, "end it", 5000)


def test_a_holder_of_unknown_age_is_told_after_a_minute_of_looks() -> None:
    held = HeldSnapshot("replication slot", "kept", dead_rows=5000, remedy="drop it")

    class Answering(MemoryStore):
        def held_snapshot(self, *, min_seconds: float = 0.0) -> HeldSnapshot | None:  # type: ignore[override]
            return held

    watch = SnapshotWatch(Answering())
    looks = 0
    while watch.held is None:
        watch.look()
        looks += 1
    assert looks == HELD_SECONDS / LOOK_SECONDS


# -- SQLite --------------------------------------------------------------------------------------------------------

READER = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1])
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
print("reading", flush=True)
sys.stdin.readline()
"""


@contextmanager
def a_reader(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that reads the file until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        reader.stdout.readline()
        yield reader
        reader.stdin.close()


def test_a_reader_of_the_file_is_named_while_the_log_is_long(tmp_path: Path) -> None:
    log, shared = tmp_path / "queue.db-wal", tmp_path / "queue.db-shm"
    with closing(SqliteStore(tmp_path / "queue.db")) as store:
        a_queue(store)
        add(store, NewTask())
        with a_reader(tmp_path / "queue.db") as reader:
            assert reader_of(log, shared) is None
            held = reader_of(log, shared, long_bytes=1)
        assert held is not None
        assert (held.kind, held.pid, held.remedy) == ("reader of the file", reader.pid, f"kill {reader.pid}")
        assert f"pid {reader.pid}" in held.sentence
        assert reader_of(log, shared, long_bytes=1) is None
        assert store.held_snapshot() is None


def test_the_log_is_small_again_after_a_reader_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "WAL_KEPT_BYTES", 8 << 20)
    log = tmp_path / "queue.db-wal"
    big = [NewTask(b"x" * 100_000)] * 40
    with closing(SqliteStore(tmp_path / "queue.db", durability="relaxed")) as store:
        a_queue(store)
        add(store, NewTask())
        with a_reader(tmp_path / "queue.db"):
            for _ in range(8):
                add(store, *big)
            assert log.stat().st_size > 24 << 20
        for _ in range(6):
            add(store, *big)
        assert log.stat().st_size <= 16 << 20


def test_a_store_without_snapshots_tells_of_none() -> None:
    with closing(open_store("memory:")) as store:
        assert store.held_snapshot() is None
