"""The PostgreSQL schema: made once, recognised, refused if of another version, and never laid over anybody else's."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from queue_core.errors import (
    InvalidSettingError,
    StoreCorruptError,
    StoreUnsafeError,
    StoreVersionError,
)
from queue_core.stores import open_store
from queue_core.stores.postgres.client.statements import qualified
from queue_core.stores.postgres.schema import SUBJECTS, schema_text
from queue_core.task import NewTask
from tests.support.stores.engines import EngineUnavailableError, postgresql
from tests.support.stores.stores import new_url
from tests.support.stores.task_builders import a_queue, add, lease, stats


@pytest.fixture
def url() -> str:
    return new_url("postgresql")


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_every_file_of_the_schema_is_run() -> None:
    folder = files("queue_core.stores.postgres").joinpath("schema")
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(f"{subject}.sql" for subject in SUBJECTS)


def test_the_schema_creates_each_thing_once_and_says_what_it_is() -> None:
    text = "\n".join(map(schema_text, SUBJECTS))
    created = re.findall(r"^(.*)\nCREATE (?:UNLOGGED )?(\w+ \w+)", text, re.MULTILINE)
    assert [name for _, name in created] == list(Counter(name for _, name in created))
    assert [name for line, name in created if not line.startswith("-- ")] == []
    assert len(created) == text.count("\nCREATE ")


def test_a_store_is_found_again_as_it_was_left(url: str) -> None:
    with closing(open_store(url)) as store:
        a_queue(store)
        add(store, NewTask(b"kept"))
    with closing(open_store(url)) as store:
        assert [held.payload for held in lease(store)] == [b"kept"]
        assert store.check().problems == ()


def test_several_that_open_at_once_make_the_schema_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(lambda _: open_store(url), range(4)):
            with closing(store):
                assert store.check().problems == ()


def test_two_stores_share_a_database_in_schemas_of_their_own(url: str) -> None:
    with closing(open_store(url)) as first, closing(open_store(f"{url}?schema=second")) as second:
        a_queue(first)
        a_queue(second)
        add(first, NewTask(b"first"))
        add(second, NewTask(b"second"), NewTask(tag="a"))
        assert (stats(first).ready, stats(second).ready) == (1, 2)
        assert [held.payload for held in lease(second)] == [b"second"]
        assert second.url.endswith("?schema=second")


def test_a_schema_of_a_pre_release_is_refused_with_what_to_do(url: str) -> None:
    run(
        url,
        "CREATE SCHEMA towline;"
        " CREATE TABLE towline.migrations (number int4 PRIMARY KEY, name text NOT NULL, checksum text NOT NULL);"
        " INSERT INTO towline.migrations SELECT n, 'step', 'x' FROM generate_series(1, 21) AS n",
    )
    with pytest.raises(StoreVersionError, match=r"towline export.* DROP SCHEMA towline CASCADE"):
        open_store(url)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("UPDATE towline.migrations SET checksum = 'x'", id="a pre-release's"),
        pytest.param("INSERT INTO towline.migrations VALUES (2, 'later', 'x')", id="a later version's"),
        pytest.param("DELETE FROM towline.migrations", id="of no version"),
    ],
)
def test_a_schema_of_another_version_is_refused_and_left_alone(url: str, statement: str) -> None:
    with closing(open_store(url)) as store:
        a_queue(store)
        add(store, NewTask(b"kept"))
        run(url, statement)
        with pytest.raises(StoreVersionError, match="another version of towline"):
            open_store(url)
        assert [held.payload for held in lease(store)] == [b"kept"]


@pytest.fixture
def app(url: str) -> Iterator[str]:
    """The URL of a role that may not make schemas in the database; the role goes with the test."""
    name = conninfo_to_dict(url)["dbname"]
    run(url, f"REVOKE CREATE ON DATABASE {name} FROM PUBLIC")
    run(url, f"CREATE ROLE app_{name} LOGIN")
    yield urlsplit(url)._replace(netloc=f"app_{name}@{urlsplit(url).netloc.rpartition('@')[2]}").geturl()
    run(url, f"DROP OWNED BY app_{name} CASCADE; DROP ROLE app_{name}")


def test_a_schema_that_was_made_for_the_application_is_used(url: str, app: str) -> None:
    run(url, f"CREATE SCHEMA towline AUTHORIZATION {urlsplit(app).username}")
    with closing(open_store(app)) as store:
        a_queue(store)
        add(store, NewTask(b"kept"))
        assert [held.payload for held in lease(store)] == [b"kept"]
        assert store.check().problems == ()


def test_a_role_that_may_not_make_the_schema_is_told_how_to_have_it_made(url: str, app: str) -> None:
    with pytest.raises(StoreUnsafeError, match=f"CREATE SCHEMA towline AUTHORIZATION {urlsplit(app).username}"):
        open_store(app)


def test_a_schema_of_another_program_is_left_alone(url: str) -> None:
    run(url, "CREATE SCHEMA towline; CREATE TABLE towline.tasks (theirs int)")
    with pytest.raises(StoreCorruptError):
        open_store(url)


def test_an_empty_schema_made_by_an_administrator_is_used(url: str) -> None:
    run(url, "CREATE SCHEMA towline")
    with closing(open_store(url)) as store:
        assert store.check().problems == ()


def test_a_lost_table_is_told(url: str) -> None:
    with closing(open_store(url)) as store:
        a_queue(store)
        run(url, "DROP TABLE towline.samples")
        with pytest.raises(StoreCorruptError):
            store.check()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE towline.counts SET ready = ready + 1 WHERE kind = 1", "counters of queue"),
        ("UPDATE towline.counts SET delayed = 1 WHERE kind = 2", "kind 2, tag 'a'"),
        ("DELETE FROM towline.tasks WHERE tag = 'a'", "counters"),
        ("UPDATE towline.names SET task = 77", "does not have its name"),
        ("UPDATE towline.tasks SET queue = 77", "is of no queue"),
        ("UPDATE towline.tasks SET state = 2 WHERE tag = 'a'", "was never granted"),
    ],
)
def test_the_check_finds_what_does_not_agree(url: str, statement: str, told: str) -> None:
    with closing(open_store(url)) as store:
        a_queue(store)
        add(store, NewTask(name="named"), NewTask(tag="a"))
        assert store.check().problems == ()
        run(url, statement)
        found = store.check()
    assert any(told in problem for problem in found.problems), found.problems


def test_the_check_looks_into_indexes_where_it_can(url: str) -> None:
    with closing(open_store(url)) as store:
        a_queue(store)
        run(url, "CREATE EXTENSION amcheck")
        assert store.check().problems == ()


@pytest.mark.parametrize("bad", ["?schema=", "?schema=Upper", "?schema=a-b", "?schema=x%27y", "?listn=1"])
def test_a_url_that_can_not_be_right_is_refused(url: str, bad: str) -> None:
    with pytest.raises(InvalidSettingError):
        open_store(url + bad)


def test_the_stores_name_stands_for_its_schema_and_for_nothing_else() -> None:
    text = "SELECT towline.add(), 'towline_' || x FROM towline.tasks -- a towline. full stop"
    assert qualified(text, "mine") == "SELECT mine.add(), 'towline_' || x FROM mine.tasks -- a towline. full stop"


def test_a_server_that_does_not_sync_is_refused_unless_that_was_requested_for(tmp_path: Path) -> None:
    try:
        with postgresql(tmp_path, settings={"fsync": "off"}) as engine:
            with pytest.raises(StoreUnsafeError):
                open_store(engine.url)
            with closing(open_store(engine.url, durability="relaxed")) as store:
                assert store.durability == "relaxed"
    except EngineUnavailableError as error:
        pytest.skip(str(error))
