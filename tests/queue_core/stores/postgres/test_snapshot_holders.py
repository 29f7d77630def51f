"""Holders of snapshots that are no session of the database: each is named, with the statement that ends it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from queue_core.stores.postgres import held_snapshot as holders
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import NewTask
from queue_core.verbs import HeldSnapshot
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine, EngineUnavailableError, postgresql, postgresql_standby
from tests.support.stores.task_builders import a_queue, add, delete, lease

SETTINGS = {"max_prepared_transactions": "2", "wal_level": "logical"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    try:
        with postgresql(tmp_path_factory.mktemp("primary"), settings=SETTINGS) as started:
            yield started
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def store(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    monkeypatch.setattr(holders, "MANY_DEAD_ROWS", 300)  # the server counts those of each transaction by and by
    ask(engine, "DROP SCHEMA IF EXISTS towline CASCADE")
    with closing(PostgresStore(engine.url)) as opened:
        a_queue(opened)
        yield opened
    ask(engine, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def ask(engine: Engine, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(engine.url, autocommit=True) as connection:
        answer = connection.execute(statement.encode())
        return answer.fetchall() if answer.description else []


def leave_dead(store: PostgresStore) -> None:
    for _ in range(3):
        add(store, *[NewTask()] * 100)
        delete(store, *lease(store, 100))


def found(store: PostgresStore) -> HeldSnapshot:
    """Return the holder, once the server has counted the dead rows and a standby has told what it needs."""
    return eventually(store.held_snapshot)  # type: ignore[return-value]


def is_cleared(engine: Engine) -> bool:
    """Return whether a vacuum could remove all that is dead."""
    ask(engine, "VACUUM towline.tasks")
    return ask(engine, "SELECT pg_stat_get_dead_tuples('towline.tasks'::regclass)") == [(0,)]


@contextmanager
def a_standby(engine: Engine, folder: Path, *, slot: str = "") -> Iterator[Engine]:
    try:
        with postgresql_standby(engine, folder, slot=slot, settings=SETTINGS) as standby:
            yield standby
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def a_report(standby: Engine) -> Iterator[None]:
    """A query on the standby that goes on, with a snapshot that its primary knows of."""
    with closing(psycopg.connect(standby.url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield


def test_a_prepared_transaction_is_named(engine: Engine, store: PostgresStore) -> None:
    with psycopg.connect(engine.url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION 'it''s kept'")
        connection.rollback()
    leave_dead(store)
    held = found(store)
    assert (held.kind, held.name, held.pid, held.user) == ("prepared transaction", "it's kept", None, "towline")
    assert held.seconds is not None
    assert held.dead_rows >= 300
    assert held.remedy == "ROLLBACK PREPARED 'it''s kept'"
    assert store.held_snapshot(min_seconds=3600) is None
    ask(engine, held.remedy)
    assert eventually(lambda: is_cleared(engine))
    assert store.held_snapshot() is None


def test_the_feedback_of_a_standby_is_named(engine: Engine, store: PostgresStore, tmp_path: Path) -> None:
    with a_standby(engine, tmp_path) as standby, a_report(standby):
        leave_dead(store)
        held = found(store)
        ((pid, application),) = ask(engine, "SELECT pid, application_name FROM pg_stat_replication")
        assert (held.kind, held.name, held.pid) == ("standby feedback", f"pid {pid}", pid)
        assert (held.application, held.user, held.host) == (application, "towline", "this machine")
        assert held.seconds is not None
        assert held.dead_rows >= 300
        assert "hot_standby_feedback = off" in held.remedy
        assert store.held_snapshot(min_seconds=3600) is None
        for statement in held.remedy.removeprefix("on the standby: end its query, or ").split("; "):
            ask(standby, statement)
        assert eventually(lambda: is_cleared(engine))
        assert store.held_snapshot() is None


def test_a_standby_whose_queries_end_holds_nothing(
    engine: Engine, store: PostgresStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells its primary something all the time; a store in use has some dead rows all the time."""
    monkeypatch.setattr(holders, "MANY_DEAD_ROWS", 1)
    with a_standby(engine, tmp_path):
        leave_dead(store)
        eventually(lambda: ask(engine, "SELECT 1 FROM pg_stat_replication WHERE backend_xmin IS NOT NULL"))
        eventually(lambda: ask(engine, "SELECT 1 FROM pg_class WHERE pg_stat_get_dead_tuples(oid) > 100"))
        assert store.held_snapshot(min_seconds=60) is None


def test_a_forgotten_slot_is_named(engine: Engine, store: PostgresStore, tmp_path: Path) -> None:
    with a_standby(engine, tmp_path, slot="forgotten") as standby, a_report(standby):
        leave_dead(store)
        held = found(store)
        ((pid,),) = ask(engine, "SELECT pid FROM pg_stat_replication")
        assert (held.kind, held.name, held.pid) == ("standby feedback", "forgotten", pid)
        standby.kill()  # while its query is under way
    eventually(lambda: ask(engine, "SELECT 1 FROM pg_replication_slots WHERE NOT active"))
    held = found(store)
    assert (held.kind, held.name, held.pid) == ("replication slot", "forgotten", None)
    assert held.seconds is not None
    assert held.dead_rows >= 300
    assert held.remedy == "SELECT pg_drop_replication_slot('forgotten')"
    assert store.held_snapshot(min_seconds=3600) is None
    assert not is_cleared(engine)
    ask(engine, held.remedy)
    assert eventually(lambda: is_cleared(engine))
    assert store.held_snapshot() is None


def test_a_logical_slot_keeps_none_of_our_rows_and_is_not_named(engine: Engine, store: PostgresStore) -> None:
    ask(engine, "SELECT pg_create_logical_replication_slot('kept', 'pgoutput')")
    leave_dead(store)
    assert eventually(lambda: is_cleared(engine))
    assert store.held_snapshot() is None


def test_a_holder_of_unknown_age_is_told_where_a_vacuum_was_in_vain(
    engine: Engine, store: PostgresStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says since when a slot holds a snapshot if no lease has finished since."""
    monkeypatch.setattr(holders, "UNSEEN_DEAD_ROWS", 50)
    with a_standby(engine, tmp_path, slot="forgotten") as standby, a_report(standby):
        leave_dead(store)
        found(store)
        ask(engine, "DELETE FROM towline.samples")
        assert eventually(lambda: not is_cleared(engine))
        held = found(store)
        assert (held.name, held.seconds) == ("forgotten", None)
        assert store.held_snapshot(min_seconds=60) is not None
