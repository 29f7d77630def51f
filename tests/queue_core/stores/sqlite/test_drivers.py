"""What the store needs of an SQLite library, held against both: values, transactions, errors by kind, copies.

`tests/queue_core/stores/test_store_model.py` holds the store itself to every verb on the standard library's.
"""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from queue_core.stores.sqlite.driver import (
    BUSY_SECONDS,
    PAGES_PER_STEP,
    Cell,
    Driver,
    SqliteConnection,
    apsw_driver,
    stdlib_driver,
)

FILE = "queue.db"


@pytest.fixture(params=[apsw_driver, stdlib_driver], ids=["apsw", "sqlite3"])
def driver(request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param()
    return made


@pytest.fixture
def connection(driver: Driver, tmp_path: Path) -> Iterator[SqliteConnection]:
    """A connection to a new file with a table of one column."""
    with closing(driver.connect(str(tmp_path / FILE), "")) as connection:
        run(connection, "PRAGMA journal_mode = WAL")
        run(connection, "CREATE TABLE cells (cell)")
        yield connection


def run(connection: SqliteConnection, sql: str, *cells: Cell) -> list[tuple[object, ...]]:
    return connection.execute(sql, cells).fetchall()


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", [0, -1, 2**63 - 1, -(2**63), 0.5, "", "ä\x00z", "\U0001f600", b"", b"\x00\xff", b"x" * 100_000, None]
)
def test_a_cell_comes_back_as_it_went(connection: SqliteConnection, cell: Cell) -> None:
    run(connection, "INSERT INTO cells VALUES (?)", cell)
    ((found,),) = run(connection, "SELECT cell FROM cells")
    assert found == cell
    assert type(found) is type(cell)


def test_rows_come_one_by_one_all_at_once_or_as_an_iterator(connection: SqliteConnection) -> None:
    connection.executemany("INSERT INTO cells VALUES (?)", ((number,) for number in range(3)))
    rows = connection.execute("SELECT cell, -cell FROM cells ORDER BY cell")
    assert rows.fetchone() == (0, 0)
    assert list(rows) == [(1, -1), (2, -2)]
    assert connection.execute("SELECT 1 WHERE 0").fetchone() is None
    assert connection.execute("SELECT 1 WHERE 0").fetchall() == []


def test_a_statement_that_changes_rows_returns_them(connection: SqliteConnection) -> None:
    connection.executemany("INSERT INTO cells VALUES (?)", [(1,), (2,)])
    assert sorted(run(connection, "UPDATE cells SET cell = cell + 10 RETURNING cell")) == [(11,), (12,)]
    assert sorted(run(connection, "DELETE FROM cells RETURNING cell")) == [(11,), (12,)]
    assert run(connection, "SELECT count(*) FROM cells") == [(0,)]


def test_a_cursor_serves_one_statement_after_another(connection: SqliteConnection) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO cells VALUES (?)", [(1,), (2,)])
    assert cursor.execute("SELECT max(cell) FROM cells").fetchall() == [(2,)]
    assert cursor.execute("SELECT min(cell) FROM cells WHERE cell > ?", (1,)).fetchone() == (2,)
    assert cursor.execute("SELECT cell FROM cells ORDER BY cell", ()).fetchall() == [(1,), (2,)]


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "kept"), [("COMMIT", 1), ("ROLLBACK", 0)])
def test_a_transaction_begins_and_ends_with_its_statements_alone(
    driver: Driver, connection: SqliteConnection, tmp_path: Path, end: str, kept: int
) -> None:
    assert not connection.in_transaction
    run(connection, "BEGIN IMMEDIATE")
    run(connection, "INSERT INTO cells VALUES (1)")
    assert connection.in_transaction
    with closing(driver.connect(str(tmp_path / FILE), "")) as other:
        assert run(other, "SELECT count(*) FROM cells") == [(0,)]
        run(connection, end)
        assert not connection.in_transaction
        assert run(other, "SELECT count(*) FROM cells") == [(kept,)]


def test_what_a_connection_holds_open_is_let_go_when_it_closes(
    driver: Driver, connection: SqliteConnection, tmp_path: Path
) -> None:
    with closing(driver.connect(str(tmp_path / FILE), "")) as other:
        run(other, "BEGIN IMMEDIATE")
        run(other, "INSERT INTO cells VALUES (1)")
    run(connection, "BEGIN IMMEDIATE")
    assert run(connection, "SELECT count(*) FROM cells") == [(0,)]


def test_a_thread_may_use_what_another_opened(connection: SqliteConnection) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(run, connection, "INSERT INTO cells VALUES (1)").result(10)
    assert run(connection, "SELECT cell FROM cells") == [(1,)]


def test_a_locked_file_is_waited_for_as_long_as_the_store_says(connection: SqliteConnection) -> None:
    assert run(connection, "PRAGMA busy_timeout") == [(int(BUSY_SECONDS * 1000),)]


def test_a_commit_of_another_connection_changes_the_version(
    driver: Driver, connection: SqliteConnection, tmp_path: Path
) -> None:
    before = driver.version(connection)
    with closing(driver.connect(str(tmp_path / FILE), "")) as other:
        run(other, "INSERT INTO cells VALUES (1)")
    run(connection, "SELECT count(*) FROM cells")
    assert driver.version(connection) != before


def test_the_log_is_as_long_as_the_last_commit_left_it_where_the_library_tells(
    driver: Driver, connection: SqliteConnection, tmp_path: Path
) -> None:
    size = driver.watch(connection)
    page = 4096
    run(connection, "INSERT INTO cells VALUES (?)", b"x" * 10 * page)
    log = (tmp_path / f"{FILE}-wal").stat().st_size
    assert size.pages == (log // page if size.is_reported else 0)
    assert size.is_reported == driver.name.startswith("apsw")


def test_the_log_stays_when_its_last_connection_closes_where_that_is_possible(driver: Driver, tmp_path: Path) -> None:
    connection = driver.connect(str(tmp_path / FILE), "")
    run(connection, "PRAGMA journal_mode = WAL")
    run(connection, "CREATE TABLE cells (cell)")
    stays = driver.leave_log(connection)
    connection.close()
    assert (tmp_path / f"{FILE}-wal").exists() == stays
    with closing(driver.connect(str(tmp_path / FILE), "")) as again:
        assert run(again, "SELECT count(*) FROM cells") == [(0,)]


# -- errors ------------------------------------------------------------------------------------------------------------


def is_full(driver: Driver, path: Path) -> None:
    with closing(driver.connect(str(path), "")) as connection:
        run(connection, "CREATE TABLE cells (cell)")
        run(connection, "PRAGMA max_page_count = 4")
        run(connection, "INSERT INTO cells VALUES (?)", b"x" * 100_000)


def is_read_only(driver: Driver, path: Path) -> None:
    with closing(driver.connect(str(path), "")) as connection:
        run(connection, "PRAGMA query_only = 1")
        run(connection, "CREATE TABLE cells (cell)")


def is_not_there(driver: Driver, path: Path) -> None:
    with closing(driver.connect(str(path / "no folder" / FILE), "")) as connection:
        run(connection, "PRAGMA user_version")


def is_something_else(driver: Driver, path: Path) -> None:
    path.write_bytes(b"precious" * 1000)
    with closing(driver.connect(str(path), "")) as connection:
        run(connection, "SELECT * FROM sqlite_schema")


def is_damaged(driver: Driver, path: Path) -> None:
    with closing(driver.connect(str(path), "")) as connection:
        run(connection, "CREATE TABLE cells (cell)")
        connection.executemany("INSERT INTO cells VALUES (?)", [(b"x" * 1000,)] * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with closing(driver.connect(str(path), "")) as connection:
        run(connection, "SELECT sum(length(cell)) FROM cells")


def is_locked(driver: Driver, path: Path) -> None:
    with (
        closing(driver.connect(str(path), "")) as first,
        closing(driver.connect(str(path), "")) as second,
    ):
        run(first, "BEGIN IMMEDIATE")
        run(second, "PRAGMA busy_timeout = 0")
        run(second, "BEGIN IMMEDIATE")


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (is_full, StoreFullError),
        (is_read_only, StoreReadOnlyError),
        (is_not_there, StoreReadOnlyError),
        (is_something_else, StoreCorruptError),
        (is_damaged, StoreCorruptError),
        (is_locked, StoreUnavailableError),
    ],
)
def test_a_failure_of_the_file_is_raised_by_kind_and_names_the_file(
    driver: Driver, tmp_path: Path, fails: Callable[[Driver, Path], None], kind: type[StoreError]
) -> None:
    with pytest.raises(driver.error) as failure:
        fails(driver, tmp_path / FILE)
    translated = driver.translate(failure.value, "the/file")
    assert type(translated) is kind
    assert "the/file" in str(translated)


def test_a_mistake_in_a_statement_is_an_error_of_the_library(driver: Driver, connection: SqliteConnection) -> None:
    with pytest.raises(driver.error):
        run(connection, "SELECT nothing FROM nowhere")
    assert run(connection, "SELECT count(*) FROM cells") == [(0,)]


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copy_has_all_that_is_committed_and_its_progress_reaches_the_end(
    driver: Driver, connection: SqliteConnection, tmp_path: Path
) -> None:
    connection.executemany("INSERT INTO cells VALUES (?)", [(b"x" * 4000,)] * (PAGES_PER_STEP + 200))
    told: list[tuple[int, int]] = []
    driver.copy(connection, str(tmp_path / "copy.db"), lambda done, pages: told.append((done, pages)))
    assert len(told) >= 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > PAGES_PER_STEP
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT count(*), sum(length(cell)) FROM cells").fetchall() == run(
            connection, "SELECT count(*), sum(length(cell)) FROM cells"
        )
