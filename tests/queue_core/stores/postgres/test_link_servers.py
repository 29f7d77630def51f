"""The server behind a link: restarted, killed, cut off or silent, and what it must be to be used at all."""

import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from queue_core.errors import StoreReadOnlyError, StoreUnavailableError, StoreUnsafeError
from queue_core.stores.postgres.client.pool import ConnectionPool
from tests.support.cutting_proxy import a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine
from tests.support.stores.postgres_connections import (
    Pooler,
    a_pool,
    a_postgres,
    backend,
    operator,
    port_of,
    query_cell,
    through,
)
from tests.support.stores.stores import new_url


@pytest.fixture(scope="module")
def url() -> str:
    return new_url("postgresql")


@pytest.fixture
def pool(url: str) -> Iterator[ConnectionPool]:
    with a_pool(url) as opened:
        yield opened


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    """A server to kill."""
    with a_postgres(tmp_path) as engine:
        yield engine


# -- loss ---------------------------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_not_noticed_by_the_next_call(own_engine: Engine) -> None:
    with a_pool(own_engine.tcp_url) as pool:
        connections = [pool.take() for _ in range(3)]
        for connection in connections:
            pool.give_back(connection)
        own_engine.restart()
        assert backend(pool)
        assert all(connection.driver.closed for connection in connections)
        own_engine.stop()
        own_engine.start()
        assert backend(pool)


def test_a_server_that_is_away_is_unavailable_and_found_when_it_is_back(own_engine: Engine) -> None:
    with a_pool(own_engine.tcp_url) as pool:
        assert backend(pool)
        own_engine.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                pool.take()
        own_engine.start(wait=False)
        eventually(lambda: _is_there(pool), seconds=30.0)


def _is_there(pool: ConnectionPool) -> bool:
    try:
        return bool(backend(pool))
    except StoreUnavailableError:
        return False


def test_one_lost_connection_takes_those_with_it_that_were_idle(url: str) -> None:
    with a_tcp_proxy("127.0.0.1", port_of(url)) as wire_cut, a_pool(through(url, wire_cut.port)) as pool:
        connections = [pool.take() for _ in range(3)]
        for connection in connections[1:]:
            pool.give_back(connection)
        wire_cut.cut_next("drop")
        with pytest.raises(psycopg.OperationalError):
            connections[0].driver.execute("SELECT 1")
        pool.give_back(connections[0])
        assert all(connection.driver.closed for connection in connections)
        assert backend(pool)


def test_a_call_that_is_never_answered_ends_like_a_lost_one(url: str) -> None:
    with a_tcp_proxy("127.0.0.1", port_of(url)) as cut, a_pool(through(url, cut.port)) as pool:
        assert backend(pool)
        cut.cut_next("stall")
        with pytest.raises(StoreUnavailableError), pool.lend(seconds=0.2) as connection:
            connection.driver.execute("SELECT 1")
        assert backend(pool)


def test_who_may_take_its_time_is_not_ended(url: str) -> None:
    with a_pool(url) as pool:
        with pool.lend(seconds=inf) as connection:
            connection.driver.execute("SELECT pg_sleep(0.7)")
        assert backend(pool)


def test_a_server_that_hangs_is_found_out_while_it_is_greeted(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_core.stores.postgres.client.connection.HANDSHAKE_SECONDS", 0.2)
    with a_tcp_proxy(own_engine.host, own_engine.port) as cut, a_pool(through(own_engine.tcp_url, cut.port)) as pool:
        cut.cut_next("stall", after=2)
        with pytest.raises(StoreUnavailableError):
            pool.take()
        assert backend(pool)


def test_a_watch_with_nothing_to_watch_ends_and_begins_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_core.stores.postgres.client.call_timeouts.TICK_SECONDS", 0.01)
    monkeypatch.setattr("queue_core.stores.postgres.client.call_timeouts.LINGER_TICKS", 2)
    with a_pool(url) as pool:
        for _ in range(2):
            with pool.lend() as connection:
                assert _watches()
                with pytest.raises(psycopg.OperationalError):
                    pool.call_timeouts.add(connection.driver.pgconn, seconds=0.05)
                    connection.driver.execute("SELECT pg_sleep(30)")
            eventually(lambda: not _watches())


def _watches() -> bool:
    return any(thread.name == "towline-call-timeouts" for thread in threading.enumerate())


# -- what a server must be ----------------------------------------------------------------------------------------


def test_a_standby_is_unavailable_until_it_is_promoted_and_named_beside_the_primary_passed_over(
    own_engine: Engine, url: str
) -> None:
    own_engine.stop()
    (own_engine.home / "data" / "standby.signal").touch()
    own_engine.start()
    with a_pool(own_engine.tcp_url) as pool:
        with pytest.raises(StoreUnavailableError, match="standby"):
            pool.take()
        both = f"postgresql://towline@127.0.0.1:{own_engine.port},127.0.0.1:{port_of(url)}/postgres"
        with a_pool(both) as several:
            assert query_cell(several, "SELECT inet_server_port()") == port_of(url)
        with operator(own_engine.tcp_url) as connection:
            connection.execute("SELECT pg_promote()")
        assert backend(pool)


def test_a_standby_that_is_told_to_write_heals(pool: ConnectionPool) -> None:
    with pytest.raises(StoreUnavailableError), pool.lend() as connection:
        connection.driver.execute("SET default_transaction_read_only TO on")
        connection.driver.execute("CREATE TABLE never (number int)")


def test_a_database_that_is_set_to_take_no_writes_is_read_only() -> None:
    url = new_url("postgresql")
    with operator(url) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only TO on")  # type: ignore[call-overload]
    with a_pool(url) as pool, pytest.raises(StoreReadOnlyError):
        pool.take()


def test_a_database_of_another_encoding_is_unsafe(url: str) -> None:
    with operator(url) as connection:
        connection.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    with a_pool(f"{url.rpartition('/')[0]}/ascii") as pool, pytest.raises(StoreUnsafeError, match="UTF8"):
        pool.take()


def test_behind_a_pooler_sessions_are_left_as_they_are(url: str) -> None:
    pooler = Pooler("127.0.0.1", port_of(url))
    try:
        with a_pool(through(url, pooler.port)) as pool, pool.lend() as connection:
            assert connection.is_pooled
            row = connection.driver.execute("SELECT current_setting('lock_timeout')").fetchone()
            assert row == ("0",)
    finally:
        pooler.close()


def test_behind_a_pooler_another_isolation_is_unsafe() -> None:
    url = new_url("postgresql")
    with operator(url) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO 'serializable'")  # type: ignore[call-overload]
    pooler = Pooler("127.0.0.1", port_of(url))
    try:
        with a_pool(through(url, pooler.port)) as pool, pytest.raises(StoreUnsafeError, match="isolation"):
            pool.take()
    finally:
        pooler.close()
