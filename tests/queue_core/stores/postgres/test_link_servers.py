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
    a_connection,
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
def link(url: str) -> Iterator[ConnectionPool]:
    with a_connection(url) as opened:
        yield opened


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    """A server to kill."""
    with a_postgres(tmp_path) as engine:
        yield engine


# -- loss ---------------------------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_not_noticed_by_the_next_call(own_engine: Engine) -> None:
    with a_connection(own_engine.tcp_url) as link:
        wires = [link.take() for _ in range(3)]
        for wire in wires:
            link.give_back(wire)
        own_engine.restart()
        assert backend(link)
        assert all(wire.connection.closed for wire in wires)
        own_engine.stop()
        own_engine.start()
        assert backend(link)


def test_a_server_that_is_away_is_unavailable_and_found_when_it_is_back(own_engine: Engine) -> None:
    with a_connection(own_engine.tcp_url) as link:
        assert backend(link)
        own_engine.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                link.take()
        own_engine.start(wait=False)
        eventually(lambda: _is_there(link), seconds=30.0)


def _is_there(link: ConnectionPool) -> bool:
    try:
        return bool(backend(link))
    except StoreUnavailableError:
        return False


def test_one_lost_connection_takes_those_with_it_that_were_idle(url: str) -> None:
    with a_tcp_proxy("127.0.0.1", port_of(url)) as wire_cut, a_connection(through(url, wire_cut.port)) as link:
        wires = [link.take() for _ in range(3)]
        for wire in wires[1:]:
            link.give_back(wire)
        wire_cut.cut_next("drop")
        with pytest.raises(psycopg.OperationalError):
            wires[0].connection.execute("SELECT 1")
        link.give_back(wires[0])
        assert all(wire.connection.closed for wire in wires)
        assert backend(link)


def test_a_call_that_is_never_answered_ends_like_a_lost_one(url: str) -> None:
    with a_tcp_proxy("127.0.0.1", port_of(url)) as cut, a_connection(through(url, cut.port)) as link:
        assert backend(link)
        cut.cut_next("stall")
        with pytest.raises(StoreUnavailableError), link.lend(seconds=0.2) as wire:
            wire.connection.execute("SELECT 1")
        assert backend(link)


def test_who_may_take_its_time_is_not_ended(url: str) -> None:
    with a_connection(url) as link:
        with link.lend(seconds=inf) as wire:
            wire.connection.execute("SELECT pg_sleep(0.7)")
        assert backend(link)


def test_a_server_that_hangs_is_found_out_while_it_is_greeted(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_core.stores.postgres.client.connection.GREETING_SECONDS", 0.2)
    with (
        a_tcp_proxy(own_engine.host, own_engine.port) as cut,
        a_connection(through(own_engine.tcp_url, cut.port)) as link,
    ):
        cut.cut_next("stall", after=2)
        with pytest.raises(StoreUnavailableError):
            link.take()
        assert backend(link)


def test_a_watch_with_nothing_to_watch_ends_and_begins_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_core.stores.postgres.client.call_timeouts.TICK_SECONDS", 0.01)
    monkeypatch.setattr("queue_core.stores.postgres.client.call_timeouts.LINGER_TICKS", 2)
    with a_connection(url) as link:
        for _ in range(2):
            with link.lend() as wire:
                assert _watches()
                with pytest.raises(psycopg.OperationalError):
                    link.watch.add(wire.connection.pgconn, seconds=0.05)
                    wire.connection.execute("SELECT pg_sleep(30)")
            eventually(lambda: not _watches())


def _watches() -> bool:
    return any(thread.name == "towline-watch" for thread in threading.enumerate())


# -- what a server must be ----------------------------------------------------------------------------------------


def test_a_standby_is_unavailable_until_it_is_promoted_and_named_beside_the_primary_passed_over(
    own_engine: Engine, url: str
) -> None:
    own_engine.stop()
    (own_engine.home / "data" / "standby.signal").touch()
    own_engine.start()
    with a_connection(own_engine.tcp_url) as link:
        with pytest.raises(StoreUnavailableError, match="standby"):
            link.take()
        both = f"postgresql://towline@127.0.0.1:{own_engine.port},127.0.0.1:{port_of(url)}/postgres"
        with a_connection(both) as several:
            assert query_cell(several, "SELECT inet_server_port()") == port_of(url)
        with operator(own_engine.tcp_url) as connection:
            connection.execute("SELECT pg_promote()")
        assert backend(link)


def test_a_standby_that_is_told_to_write_heals(link: ConnectionPool) -> None:
    with pytest.raises(StoreUnavailableError), link.lend() as wire:
        wire.connection.execute("SET default_transaction_read_only TO on")
        wire.connection.execute("CREATE TABLE never (number int)")


def test_a_database_that_is_set_to_take_no_writes_is_read_only() -> None:
    url = new_url("postgresql")
    with operator(url) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only TO on")  # type: ignore[call-overload]
    with a_connection(url) as link, pytest.raises(StoreReadOnlyError):
        link.take()


def test_a_database_of_another_encoding_is_unsafe(url: str) -> None:
    with operator(url) as connection:
        connection.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    with a_connection(f"{url.rpartition('/')[0]}/ascii") as link, pytest.raises(StoreUnsafeError, match="UTF8"):
        link.take()


def test_behind_a_pooler_sessions_are_left_as_they_are(url: str) -> None:
    pooler = Pooler("127.0.0.1", port_of(url))
    try:
        with a_connection(through(url, pooler.port)) as link, link.lend() as wire:
            assert wire.is_pooled
            row = wire.connection.execute("SELECT current_setting('lock_timeout')").fetchone()
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
        with a_connection(through(url, pooler.port)) as link, pytest.raises(StoreUnsafeError, match="isolation"):
            link.take()
    finally:
        pooler.close()
