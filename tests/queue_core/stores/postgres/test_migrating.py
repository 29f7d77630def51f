"""A store moves forward while it is used, and while sessions have its tables locked."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from structlog.testing import capture_logs

from queue_core.errors import StoreUnavailableError
from queue_core.stores import open_store
from queue_core.stores.postgres import schema
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.stores.engines import EngineUnavailableError, postgresql
from tests.support.stores.stores import new_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, stats

KNOWN = schema.migrations()


@pytest.fixture
def url() -> str:
    return new_url("postgresql")


@pytest.fixture
def running(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    """A store of a program from before the migrations, in use."""
    with closing(old_store(url, monkeypatch)) as store:
        yield store


def old_store(url: str, monkeypatch: pytest.MonkeyPatch) -> PostgresStore:
    with monkeypatch.context() as before:
        before.setattr(schema, "migrations", lambda: KNOWN[:1])
        store = PostgresStore(url)
    a_queue(store)
    return store


def versions(url: str) -> int:
    with psycopg.connect(url) as connection:
        (number,) = connection.execute("SELECT count(*) FROM towline.migrations").fetchone() or (0,)
    return int(number)


def work(store: PostgresStore, calls: int) -> None:
    for number in range(calls):
        add(store, NewTask(tag="a"), now=at(number))
        delete(store, *lease(store, now=at(number)), now=at(number))


def attempt(url: str, *, attempts: int) -> None:
    """Bring a store up to date by a clock that is over after so many attempts."""
    seconds = count(step=schema.MIGRATION_SECONDS / attempts)
    with psycopg.connect(url, autocommit=True) as connection:
        schema.prepare(connection, "towline", "the store", monotonic=lambda: float(next(seconds)), pause=lambda _: None)


@pytest.mark.parametrize("table", ["queues", "counts", "sessions", "commit_markers"])
def test_a_store_is_opened_when_the_session_that_locks_its_tables_ends(
    running: PostgresStore, url: str, table: str
) -> None:
    """As a dump does, which reads every table; those that use the store go on meanwhile."""
    opened: list[PostgresStore] = []
    opening = Thread(target=lambda: opened.append(PostgresStore(url)))
    with capture_logs() as logs, psycopg.connect(url, application_name="pg_dump") as dump:
        dump.execute(f"LOCK TABLE towline.{table} IN ACCESS SHARE MODE".encode())
        opening.start()
        eventually(lambda: logs)
        work(running, 30)
        assert versions(url) == 1
        pid = dump.info.backend_pid
    opening.join()
    (entry,) = [one for one in logs if one["event"] == schema.SCHEMA_WAITING]
    assert entry["holder"].startswith(f"pid {pid} of pg_dump as ")
    assert f"SELECT pg_terminate_backend({pid})" in entry["holder"]
    assert versions(url) == len(KNOWN)
    with closing(opened[0]) as store:
        work(running, 3)
        work(store, 3)
        assert stats(store, now=at(99)).deleted_total == 36
        assert store.check().problems == ()


def test_a_session_that_locks_the_tables_for_too_long_is_named_and_nothing_is_changed(
    running: PostgresStore, url: str
) -> None:
    with psycopg.connect(url, application_name="analyst") as holder:
        holder.execute("SELECT count(*) FROM towline.queues")
        with pytest.raises(StoreUnavailableError) as caught:
            attempt(url, attempts=2)
        pid = holder.info.backend_pid
        assert f"from version 1 to {len(KNOWN)}" in str(caught.value)
        assert f"locked by pid {pid} of analyst as {holder.info.user}" in str(caught.value)
        assert f"SELECT pg_terminate_backend({pid})" in str(caught.value)
        assert versions(url) == 1
        work(running, 3)
    attempt(url, attempts=2)
    assert versions(url) == len(KNOWN)


def test_a_callers_own_transaction_is_waited_for(running: PostgresStore, url: str) -> None:
    with psycopg.connect(url) as caller:
        with running.within(caller) as transaction:
            transaction.add(QUEUE, [NewTask(b"kept")], now=at(1))
        with pytest.raises(StoreUnavailableError, match=f"pid {caller.info.backend_pid} "):
            attempt(url, attempts=1)
        caller.commit()
    with closing(open_store(url)) as store:
        assert [held.payload for held in lease(store, now=at(2))] == [b"kept"]


def test_a_prepared_transaction_that_locks_the_tables_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with (
            postgresql(tmp_path, settings={"max_prepared_transactions": "2"}) as engine,
            closing(old_store(engine.url, monkeypatch)),
            psycopg.connect(engine.url) as connection,
        ):
            connection.execute("SELECT count(*) FROM towline.queues")
            connection.execute("PREPARE TRANSACTION 'it''s kept'")
            connection.rollback()
            with pytest.raises(
                StoreUnavailableError, match=r"prepared transaction it's kept .*ROLLBACK PREPARED 'it''s kept'"
            ):
                attempt(engine.url, attempts=1)
            connection.autocommit = True
            connection.execute("ROLLBACK PREPARED 'it''s kept'")
            attempt(engine.url, attempts=1)
            assert versions(engine.url) == len(KNOWN)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
