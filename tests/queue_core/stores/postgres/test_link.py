"""Connections to a real PostgreSQL: how they are lent, how they tell the time, what their errors say."""

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from queue_core.clock import MICROSECONDS, SystemClock
from queue_core.errors import (
    OutcomeUnknownError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnsafeError,
)
from queue_core.stores.postgres.client import pool as pool_module
from queue_core.stores.postgres.client.address import parse_address
from queue_core.stores.postgres.client.errors import translate
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.remote_clock import STALE_SECONDS, RemoteClock
from tests.support.stores import engines
from tests.support.stores.postgres_connections import a_pool, backend, operator, query_cell
from tests.support.stores.slow_clock import slow_at_first
from tests.support.stores.stores import new_url

SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def url() -> str:
    return new_url("postgresql")


@pytest.fixture
def pool(url: str) -> Iterator[ConnectionPool]:
    with a_pool(url) as opened:
        yield opened


# -- lending ------------------------------------------------------------------------------------------------------


def test_a_connection_is_used_again_the_last_one_first(pool: ConnectionPool) -> None:
    first, second = pool.take(), pool.take()
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take() is second
    assert pool.take() is first
    pool.give_back(first)
    pool.give_back(second)


def test_what_is_left_open_is_rolled_back(pool: ConnectionPool) -> None:
    with pool.lend() as connection:
        connection.driver.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
        connection.driver.execute("BEGIN")
        connection.driver.execute("INSERT INTO kept VALUES (1)")
    with pool.lend() as connection:
        connection.driver.execute("BEGIN")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.driver.execute("SELECT 1 / 0")
    with pool.lend() as again:
        assert again is connection
    assert query_cell(pool, "SELECT count(*) FROM kept") == 0


def test_threads_share_connections_and_wait_when_all_are_in_use(url: str) -> None:
    with a_pool(url, max_connections=2) as pool, ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: backend(pool), range(100)))
        assert len(found) <= 2


def test_who_waits_too_long_for_a_connection_is_told_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", 0.01)
    with a_pool(url, max_connections=1) as pool, pool.lend(), pytest.raises(StoreUnavailableError):
        pool.take()


def test_a_connection_that_lay_idle_for_long_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_pool(url) as pool:
        old, other = pool.take(), pool.take()
        pool.give_back(old)
        monkeypatch.setattr(pool_module, "IDLE_SECONDS", -1.0)
        pool.give_back(other)
        assert old.driver.closed
        assert not other.driver.closed


def test_sessions_are_set_so_that_nothing_is_held_or_waited_for_long(pool: ConnectionPool) -> None:
    assert query_cell(pool, "SELECT current_setting('idle_in_transaction_session_timeout')") == "5s"
    assert query_cell(pool, "SELECT current_setting('lock_timeout')") == "8s"
    assert query_cell(pool, "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()") == "towline"


def test_another_isolation_set_for_the_database_is_overruled() -> None:
    url = new_url("postgresql")
    with operator(url) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO 'serializable'")  # type: ignore[call-overload]
    with a_pool(url) as pool:
        assert query_cell(pool, "SELECT current_setting('transaction_isolation')") == "read committed"


def test_a_closed_link_says_so_and_closes_what_comes_back(url: str) -> None:
    with a_pool(url) as pool:
        connection = pool.take()
        pool.close()
        pool.give_back(connection)
        assert connection.driver.closed
        with pytest.raises(StoreUnavailableError):
            pool.take()


def test_a_child_process_ends_none_of_its_parents_sessions(pool: ConnectionPool, url: str) -> None:
    before = backend(pool)
    child = os.fork()
    if not child:
        pool.leave_to_parent()
        gc.collect()
        with a_pool(url) as own:  # the locks of the other one may be held by threads that are not here
            os._exit(0 if backend(own) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert backend(pool) == before


# -- time ---------------------------------------------------------------------------------------------------------


def test_the_clock_is_told_by_every_new_connection_and_again_when_it_is_stale(url: str) -> None:
    since_boot = [5 * MICROSECONDS]
    with a_pool(url) as pool:
        pool.clock = clock = RemoteClock(since_boot=lambda: since_boot[0])
        with pool.lend():
            assert abs(clock.now() - SystemClock().now()) < 10 * MICROSECONDS
        since_boot[0] += round((STALE_SECONDS + 1) * MICROSECONDS)
        assert clock.is_stale
        with pool.lend():
            assert not clock.is_stale


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
def test_a_state_of_the_server_says_what_the_caller_can_do(
    pool: ConnectionPool, state: str, expected: type[StoreError]
) -> None:
    with pool.lend() as connection, pytest.raises(psycopg.Error) as caught:
        connection.driver.execute(
            f"DO $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{state}', DETAIL = '{SECRET}'; END $$"  # type: ignore[call-overload]
        )
    error = translate(caught.value, "postgresql://h/work")
    assert type(error) is expected
    assert "so it is" in str(error)
    assert state in str(error)
    assert SECRET not in str(error)


def test_a_server_that_can_not_be_reached_is_named_without_its_password() -> None:
    port = engines.free_port()
    with a_pool(f"postgresql://app:{SECRET}@127.0.0.1:{port}/work") as pool:
        with pytest.raises(StoreUnavailableError, match=str(port)) as caught:
            pool.take()
        assert SECRET not in str(caught.value)
        assert SECRET not in str(caught.value.__cause__)
        with pytest.raises(StoreUnavailableError):
            pool.take()


def test_a_role_whose_connections_are_used_up_is_unavailable(url: str) -> None:
    with operator(url) as connection:
        connection.execute("CREATE ROLE scarce LOGIN CONNECTION LIMIT 1")
    scarce = url.replace("towline@", "scarce@")
    with a_pool(scarce) as pool, pool.lend(), pytest.raises(StoreUnavailableError, match="too many"):
        pool.take()


def test_a_first_answer_that_took_long_is_asked_for_again_at_once(url: str) -> None:
    pool = ConnectionPool(parse_address(url), clock=RemoteClock(since_boot=slow_at_first()))
    with pool.lend():
        assert not pool.clock.is_vague
    pool.close()
