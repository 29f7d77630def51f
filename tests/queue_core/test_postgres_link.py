"""Connections to a real PostgreSQL: lent, checked, lost with a restart or a cut wire, and made anew."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from queue_core.clock import MICROSECONDS, SystemClock
from queue_core.errors import (
    OutcomeUnknownError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreUnsafeError,
)
from queue_core.stores.postgres import link as link_module
from queue_core.stores.postgres.address import parse_address
from queue_core.stores.postgres.failures import translate
from queue_core.stores.postgres.link import Link
from queue_core.stores.remote_clock import STALE_SECONDS, RemoteClock
from tests.support import engines
from tests.support.cutting_wire import a_wire
from tests.support.engines import Engine, EngineUnavailableError
from tests.support.eventually import eventually
from tests.support.postgres_links import Pooler, a_link, operator, through
from tests.support.slow_clock import slow_at_first
from tests.support.stores import new_url

SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def url() -> str:
    return new_url("postgresql")


@pytest.fixture
def link(url: str) -> Iterator[Link]:
    with a_link(url) as opened:
        yield opened


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    """A server to kill."""
    try:
        with engines.postgresql(tmp_path) as engine:
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def port_of(url: str) -> int:
    return int(str(conninfo_to_dict(url)["port"]))


def asked(link: Link, query: str) -> object:
    with link.lend() as wire:
        row = wire.connection.execute(query).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return row[0]


def backend(link: Link) -> object:
    return asked(link, "SELECT pg_backend_pid()")


# -- lending ------------------------------------------------------------------------------------------------------


def test_a_connection_is_used_again_the_last_one_first(link: Link) -> None:
    first, second = link.take(), link.take()
    link.give_back(first)
    link.give_back(second)
    assert link.take() is second
    assert link.take() is first
    link.give_back(first)
    link.give_back(second)


def test_what_is_left_open_is_rolled_back(link: Link) -> None:
    with link.lend() as wire:
        wire.connection.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
        wire.connection.execute("BEGIN")
        wire.connection.execute("INSERT INTO kept VALUES (1)")
    with link.lend() as wire:
        wire.connection.execute("BEGIN")
        with pytest.raises(psycopg.errors.DivisionByZero):
            wire.connection.execute("SELECT 1 / 0")
    with link.lend() as again:
        assert again is wire
    assert asked(link, "SELECT count(*) FROM kept") == 0


def test_threads_share_connections_and_wait_when_all_are_in_use(url: str) -> None:
    with a_link(url, max_connections=2) as link, ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: backend(link), range(100)))
        assert len(found) <= 2


def test_who_waits_too_long_for_a_connection_is_told_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "WAIT_SECONDS", 0.01)
    with a_link(url, max_connections=1) as link, link.lend(), pytest.raises(StoreUnavailableError):
        link.take()


def test_a_connection_that_lay_idle_for_long_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_link(url) as link:
        old, other = link.take(), link.take()
        link.give_back(old)
        monkeypatch.setattr(link_module, "IDLE_SECONDS", -1.0)
        link.give_back(other)
        assert old.connection.closed
        assert not other.connection.closed


def test_sessions_are_set_so_that_nothing_is_held_or_waited_for_long(link: Link) -> None:
    assert asked(link, "SELECT current_setting('idle_in_transaction_session_timeout')") == "5s"
    assert asked(link, "SELECT current_setting('lock_timeout')") == "8s"
    assert asked(link, "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()") == "towline"


def test_another_isolation_set_for_the_database_is_overruled() -> None:
    url = new_url("postgresql")
    with operator(url) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO 'serializable'")  # type: ignore[call-overload]
    with a_link(url) as link:
        assert asked(link, "SELECT current_setting('transaction_isolation')") == "read committed"


def test_a_closed_link_says_so_and_closes_what_comes_back(url: str) -> None:
    with a_link(url) as link:
        wire = link.take()
        link.close()
        link.give_back(wire)
        assert wire.connection.closed
        with pytest.raises(StoreUnavailableError):
            link.take()


def test_a_child_process_can_not_use_its_parents_connections(link: Link) -> None:
    assert backend(link)
    child = os.fork()
    if not child:
        code = 1
        try:
            link.take()
        except StoreUnavailableError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert backend(link)


# -- time ---------------------------------------------------------------------------------------------------------


def test_the_clock_is_told_by_every_new_connection_and_again_when_it_is_stale(url: str) -> None:
    since_boot = [5 * MICROSECONDS]
    with a_link(url) as link:
        link.clock = clock = RemoteClock(since_boot=lambda: since_boot[0])
        with link.lend():
            assert abs(clock.now() - SystemClock().now()) < 10 * MICROSECONDS
        since_boot[0] += round((STALE_SECONDS + 1) * MICROSECONDS)
        assert clock.is_stale
        with link.lend():
            assert not clock.is_stale


# -- loss ---------------------------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_not_noticed_by_the_next_call(own_engine: Engine) -> None:
    with a_link(own_engine.tcp_url) as link:
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
    with a_link(own_engine.tcp_url) as link:
        assert backend(link)
        own_engine.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                link.take()
        own_engine.start(wait=False)
        eventually(lambda: _is_there(link), seconds=30.0)


def _is_there(link: Link) -> bool:
    try:
        return bool(backend(link))
    except StoreUnavailableError:
        return False


def test_one_lost_connection_takes_those_with_it_that_were_idle(url: str) -> None:
    with a_wire("127.0.0.1", port_of(url)) as wire_cut, a_link(through(url, wire_cut.port)) as link:
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
    with a_wire("127.0.0.1", port_of(url)) as cut, a_link(through(url, cut.port)) as link:
        assert backend(link)
        cut.cut_next("stall")
        with pytest.raises(StoreUnavailableError), link.lend(seconds=0.2) as wire:
            wire.connection.execute("SELECT 1")
        assert backend(link)


def test_who_may_take_its_time_is_not_ended(url: str) -> None:
    with a_link(url) as link:
        with link.lend(seconds=inf) as wire:
            wire.connection.execute("SELECT pg_sleep(0.7)")
        assert backend(link)


def test_a_server_that_hangs_is_found_out_while_it_is_greeted(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_core.stores.postgres.wire.GREETING_SECONDS", 0.2)
    with a_wire(own_engine.host, own_engine.port) as cut, a_link(through(own_engine.tcp_url, cut.port)) as link:
        cut.cut_next("stall", after=2)
        with pytest.raises(StoreUnavailableError):
            link.take()
        assert backend(link)


def test_a_watch_with_nothing_to_watch_ends_and_begins_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_core.stores.postgres.watching.TICK_SECONDS", 0.01)
    monkeypatch.setattr("queue_core.stores.postgres.watching.LINGER_TICKS", 2)
    with a_link(url) as link:
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
    with a_link(own_engine.tcp_url) as link:
        with pytest.raises(StoreUnavailableError, match="standby"):
            link.take()
        both = f"postgresql://towline@127.0.0.1:{own_engine.port},127.0.0.1:{port_of(url)}/postgres"
        with a_link(both) as several:
            assert asked(several, "SELECT inet_server_port()") == port_of(url)
        with operator(own_engine.tcp_url) as connection:
            connection.execute("SELECT pg_promote()")
        assert backend(link)


def test_a_standby_that_is_told_to_write_heals(link: Link) -> None:
    with pytest.raises(StoreUnavailableError), link.lend() as wire:
        wire.connection.execute("SET default_transaction_read_only TO on")
        wire.connection.execute("CREATE TABLE never (number int)")


def test_a_database_that_is_set_to_take_no_writes_is_read_only() -> None:
    url = new_url("postgresql")
    with operator(url) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only TO on")  # type: ignore[call-overload]
    with a_link(url) as link, pytest.raises(StoreReadOnlyError):
        link.take()


def test_a_database_of_another_encoding_is_unsafe(url: str) -> None:
    with operator(url) as connection:
        connection.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    with a_link(f"{url.rpartition('/')[0]}/ascii") as link, pytest.raises(StoreUnsafeError, match="UTF8"):
        link.take()


def test_behind_a_pooler_sessions_are_left_as_they_are(url: str) -> None:
    pooler = Pooler("127.0.0.1", port_of(url))
    try:
        with a_link(through(url, pooler.port)) as link, link.lend() as wire:
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
        with a_link(through(url, pooler.port)) as link, pytest.raises(StoreUnsafeError, match="isolation"):
            link.take()
    finally:
        pooler.close()


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("08006", StoreUnavailableError),
        ("08007", OutcomeUnknownError),
        ("25006", StoreUnavailableError),
        ("25P03", StoreUnavailableError),
        ("3F000", StoreCorruptError),
        ("40001", StoreUnavailableError),
        ("40003", OutcomeUnknownError),
        ("40P01", StoreUnavailableError),
        ("42501", StoreUnsafeError),
        ("42883", StoreCorruptError),
        ("42P01", StoreCorruptError),
        ("53100", StoreFullError),
        ("53300", StoreUnavailableError),
        ("55P03", StoreUnavailableError),
        ("57014", StoreUnavailableError),
        ("57P01", StoreUnavailableError),
        ("57P03", StoreUnavailableError),
        ("58030", StoreUnavailableError),
        ("22012", StoreError),
        ("XX001", StoreCorruptError),
        ("XX000", StoreError),
    ],
)
def test_a_state_of_the_server_says_what_the_caller_can_do(link: Link, state: str, expected: type[StoreError]) -> None:
    with link.lend() as wire, pytest.raises(psycopg.Error) as caught:
        wire.connection.execute(
            f"DO $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{state}', DETAIL = '{SECRET}'; END $$"  # type: ignore[call-overload]
        )
    error = translate(caught.value, "postgresql://h/work")
    assert type(error) is expected
    assert "so it is" in str(error)
    assert state in str(error)
    assert SECRET not in str(error)


def test_a_server_that_can_not_be_reached_is_named_without_its_password() -> None:
    port = engines.free_port()
    with a_link(f"postgresql://app:{SECRET}@127.0.0.1:{port}/work") as link:
        with pytest.raises(StoreUnavailableError, match=str(port)) as caught:
            link.take()
        assert SECRET not in str(caught.value)
        assert SECRET not in str(caught.value.__cause__)
        with pytest.raises(StoreUnavailableError):
            link.take()


def test_a_role_whose_connections_are_used_up_is_unavailable(url: str) -> None:
    with operator(url) as connection:
        connection.execute("CREATE ROLE scarce LOGIN CONNECTION LIMIT 1")
    scarce = url.replace("towline@", "scarce@")
    with a_link(scarce) as link, link.lend(), pytest.raises(StoreUnavailableError, match="too many"):
        link.take()


def test_a_first_answer_that_took_long_is_asked_for_again_at_once(url: str) -> None:
    link = Link(parse_address(url), clock=RemoteClock(since_boot=slow_at_first()))
    with link.lend():
        assert not link.clock.is_vague
    link.close()
