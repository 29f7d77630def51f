"""What became of a commit whose answer was lost, on a real server that is cut off, killed and restarted."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from queue_core.errors import OutcomeUnknownError
from queue_core.stores.postgres.client import pool as pool_module
from queue_core.stores.postgres.client.commit_outcome import Status, judge
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from tests.support.cutting_proxy import TcpFate, a_tcp_proxy
from tests.support.stores.engines import Engine
from tests.support.stores.postgres_connections import Pooler, a_pool, a_postgres, make_schema, operator, through
from tests.support.stores.stores import new_url

OLD, NEW = "7.00000001.700.aa", "7.00000001.900.bb"


@pytest.mark.parametrize(
    ("status", "xid", "then", "now", "expected"),
    [
        pytest.param("committed", 800, OLD, OLD, "committed", id="no crash: committed"),
        pytest.param("aborted", 800, OLD, OLD, "aborted", id="no crash: aborted"),
        pytest.param("in progress", 800, OLD, OLD, "open", id="no crash: at work still"),
        pytest.param("", 800, OLD, OLD, "unknown", id="no crash, but too long ago"),
        pytest.param("committed", 899, OLD, NEW, "committed", id="crashed; its number was written down"),
        pytest.param("committed", 900, OLD, NEW, "aborted", id="crashed; its number was given to another"),
        pytest.param("in progress", 900, OLD, NEW, "aborted", id="crashed; another with its number is at work"),
        pytest.param("aborted", 899, OLD, NEW, "aborted", id="crashed while it was at work"),
        pytest.param("future", 950, OLD, NEW, "aborted", id="crashed; its number was not given again yet"),
        pytest.param("committed", 899, OLD, "7.00000001..bb", "unknown", id="crashed; first number not known"),
        pytest.param("committed", 899, OLD, "7.00000002.900.bb", "unknown", id="a standby took over"),
        pytest.param("committed", 899, OLD, "8.00000001.900.bb", "unknown", id="another server"),
        pytest.param("future", 950, OLD, "7.00000002.900.bb", "aborted", id="a standby took over without it"),
        pytest.param("committed", 800, "", NEW, "unknown", id="its life is not known"),
        pytest.param("in progress", 800, "", NEW, "open", id="its life is not known, and it is at work"),
        pytest.param("aborted", 800, "", NEW, "aborted", id="its life is not known, but it is not there"),
    ],
)
def test_a_numbers_status_is_read_with_the_servers_life(
    status: Status, xid: int, then: str, now: str, expected: str
) -> None:
    assert judge(status, xid, then=then, now=now) == expected


@pytest.fixture
def url() -> str:
    return make_schema(new_url("postgresql"))


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    """A server to kill."""
    with a_postgres(tmp_path) as engine:
        make_schema(engine.tcp_url)
        yield engine


def begun(connection: PostgresConnection) -> int:
    """The number of a transaction that was begun and wrote a row."""
    connection.driver.execute("CREATE TABLE IF NOT EXISTS effects (number int)")
    connection.driver.execute("BEGIN")
    connection.driver.execute("INSERT INTO effects VALUES (1)")
    return number(connection)


def number(connection: PostgresConnection) -> int:
    return number_given(connection.driver)


def number_given(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(str(row[0]))


def effects(url: str) -> int:
    with operator(url) as connection:
        row = connection.execute("SELECT count(*) FROM effects").fetchone()
    assert row is not None
    return int(str(row[0]))


@pytest.mark.parametrize(("fate", "expected"), [("lose answer", "committed"), ("drop", "aborted")])
def test_a_commit_whose_answer_was_lost_is_found_out(url: str, fate: TcpFate, expected: str) -> None:
    server = psycopg.conninfo.conninfo_to_dict(url)
    with a_tcp_proxy("127.0.0.1", int(str(server["port"]))) as cut, a_pool(through(url, cut.port)) as pool:
        connection = pool.take()
        xid = begun(connection)
        cut.cut_next(fate)
        with pytest.raises(psycopg.OperationalError):
            connection.driver.execute("COMMIT")
        pool.give_back(connection)
        assert pool.outcome(xid, life=connection.life) == expected
        assert effects(url) == (1 if expected == "committed" else 0)


def test_a_commit_that_is_never_answered_is_found_out(url: str) -> None:
    server = psycopg.conninfo.conninfo_to_dict(url)
    with a_tcp_proxy("127.0.0.1", int(str(server["port"]))) as cut, a_pool(through(url, cut.port)) as pool:
        with pool.lend():
            pass
        connection = pool.take(seconds=1.0)
        xid = begun(connection)
        cut.cut_next("stall")
        with pytest.raises(psycopg.OperationalError):
            connection.driver.execute("COMMIT")
        pool.give_back(connection)
        assert pool.outcome(xid, life=connection.life) == "committed"


def test_a_transaction_that_lost_its_client_is_ended_and_then_known(url: str) -> None:
    with a_pool(url) as lost, a_pool(url) as pool:
        connection = lost.take()
        xid = begun(connection)
        assert pool.outcome(xid, life=connection.life) == "aborted"
        lost.give_back(connection)
        assert effects(url) == 0


def test_a_crash_does_not_hide_a_commit(own_engine: Engine) -> None:
    with a_pool(own_engine.tcp_url) as pool:
        connection = pool.take()
        xid = begun(connection)
        connection.driver.execute("COMMIT")
        own_engine.restart()
        assert pool.outcome(xid, life=connection.life) == "committed"
        pool.give_back(connection)
        assert effects(own_engine.tcp_url) == 1


def test_a_number_that_a_crash_gave_to_another_is_not_taken_for_the_first(own_engine: Engine) -> None:
    with a_pool(own_engine.tcp_url) as pool:
        connection = pool.take()
        connection.driver.execute("CREATE TABLE effects (number int)")
        connection.driver.execute("CHECKPOINT")
        connection.driver.execute("BEGIN")
        xid = number(connection)
        own_engine.restart()
        with operator(own_engine.tcp_url) as other:
            while number_given(other) < xid:
                pass
            assert other.execute("SELECT pg_xact_status(%s::text::xid8)", (str(xid),)).fetchone() == ("committed",)
        assert pool.outcome(xid, life=connection.life) == "aborted"
        pool.give_back(connection)


def test_a_number_that_was_given_to_another_between_two_crashes_is_not_taken_for_the_first(own_engine: Engine) -> None:
    with a_pool(own_engine.tcp_url) as pool:
        connection = pool.take()
        connection.driver.execute("CREATE TABLE effects (number int)")
        connection.driver.execute("CHECKPOINT")
        connection.driver.execute("BEGIN")
        xid = number(connection)
        own_engine.restart()
        with a_pool(own_engine.tcp_url) as another, another.lend() as theirs:
            while number(theirs) < xid:
                pass
            theirs.driver.execute("INSERT INTO effects VALUES (1)")
        own_engine.restart()
        with operator(own_engine.tcp_url) as other:
            assert other.execute("SELECT pg_xact_status(%s::text::xid8)", (str(xid),)).fetchone() == ("committed",)
        assert pool.outcome(xid, life=connection.life) == "aborted"
        pool.give_back(connection)


def test_an_orderly_restart_begins_no_new_life(own_engine: Engine) -> None:
    with a_pool(own_engine.tcp_url) as pool:
        with pool.lend() as connection:
            life = connection.life
            xid = begun(connection)
            connection.driver.execute("COMMIT")
        own_engine.stop()
        own_engine.start()
        with pool.lend() as connection:
            assert connection.life == life
        assert pool.outcome(xid, life=life) == "committed"


def test_a_server_that_stays_away_leaves_the_outcome_unknown(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "OUTCOME_SECONDS", 0.5)
    with a_pool(own_engine.tcp_url) as pool:
        with pool.lend() as connection:
            xid = begun(connection)
        own_engine.kill()
        with pytest.raises(OutcomeUnknownError):
            pool.outcome(xid, life=connection.life)


def test_a_server_that_came_back_unfit_leaves_the_outcome_unknown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "OUTCOME_SECONDS", 0.2)
    with a_pool(url) as pool:
        connection = pool.take()
        xid = begun(connection)
        with operator(url) as other:
            name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
            other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only TO on")  # type: ignore[call-overload]
        with pytest.raises(OutcomeUnknownError):
            pool.outcome(xid, life=connection.life)
        pool.give_back(connection)


def test_behind_a_pooler_only_an_abort_is_certain(url: str) -> None:
    server = psycopg.conninfo.conninfo_to_dict(url)
    pooler = Pooler("127.0.0.1", int(str(server["port"])))
    try:
        with a_pool(through(url, pooler.port)) as pool:
            committed = _ended(pool, "COMMIT")
            aborted = _ended(pool, "ROLLBACK")
            assert pool.outcome(aborted, life="") == "aborted"
            with pytest.raises(OutcomeUnknownError):
                pool.outcome(committed, life="")
    finally:
        pooler.close()


def _ended(pool: ConnectionPool, how: str) -> int:
    with pool.lend() as connection:
        assert connection.is_pooled
        assert connection.life == ""
        xid = begun(connection)
        connection.driver.execute(how)
    return xid
