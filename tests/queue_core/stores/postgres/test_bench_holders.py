"""Each holder of `python3 -m tests.bench.held` keeps dead rows of other tables until it ends: else it measures none."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.bench.held.holders import HOLDERS, SETTINGS
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine, EngineUnavailableError, postgresql

ROWS = 100


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    try:
        with postgresql(tmp_path_factory.mktemp("holders"), settings=SETTINGS) as started:
            yield started
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def dead_after_vacuum(connection: "psycopg.Connection[tuple[int]]") -> int:
    connection.execute("VACUUM held_tasks")
    row = connection.execute("SELECT pg_stat_get_dead_tuples('held_tasks'::regclass)").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("name", HOLDERS)
def test_a_holder_keeps_what_dies_until_it_ends(engine: Engine, name: str) -> None:
    with (
        closing(psycopg.connect(engine.socket_url, autocommit=True)) as connection,
        HOLDERS[name](engine, engine.socket_url) as hold,
    ):
        connection.execute("DROP TABLE IF EXISTS held_tasks")
        connection.execute("CREATE TABLE held_tasks AS SELECT n FROM generate_series(1, %s) AS n", [2 * ROWS])
        connection.execute("DELETE FROM held_tasks WHERE n <= %s", [ROWS])
        assert dead_after_vacuum(connection) == 0
        with hold():
            connection.execute("DELETE FROM held_tasks")
            assert dead_after_vacuum(connection) >= ROWS
        eventually(lambda: dead_after_vacuum(connection) == 0)  # a session goes on for a moment after its client
