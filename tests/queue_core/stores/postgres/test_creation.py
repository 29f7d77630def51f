"""Programs that open a new store at once: one creates its schema, the others wait for it, in short attempts."""

from contextlib import closing
from itertools import count
from threading import Thread

import psycopg
import pytest
from structlog.testing import capture_logs

from queue_core.errors import StoreUnavailableError
from queue_core.stores.postgres import schema
from queue_core.stores.postgres.store import PostgresStore
from tests.support.eventually import eventually
from tests.support.stores.stores import new_url


@pytest.fixture
def url() -> str:
    return new_url("postgresql")


def hold_creation(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    """Hold the lock under which a schema is created; return the session's pid."""
    connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext('towline'))", (schema.LOCK,))
    return connection.info.backend_pid


def is_there(url: str) -> bool:
    with psycopg.connect(url) as connection:
        (found,) = connection.execute("SELECT to_regclass('towline.migrations') IS NOT NULL").fetchone() or (False,)
    return bool(found)


def test_a_store_is_opened_when_the_session_that_creates_it_ends(url: str) -> None:
    opened: list[PostgresStore] = []
    opening = Thread(target=lambda: opened.append(PostgresStore(url)))
    with capture_logs() as logs, psycopg.connect(url, application_name="another") as creator:
        pid = hold_creation(creator)
        opening.start()
        eventually(lambda: logs)
        assert not is_there(url)
    opening.join()
    (entry,) = [one for one in logs if one["event"] == schema.SCHEMA_WAITING]
    assert entry["holder"].startswith(f"pid {pid} of another as ")
    assert f"SELECT pg_terminate_backend({pid})" in entry["holder"]
    with closing(opened[0]) as store:
        assert store.check().problems == ()


def test_a_session_that_creates_it_for_too_long_is_named_and_nothing_is_changed(url: str) -> None:
    seconds = count(step=schema.CREATION_SECONDS / 2)
    with (
        psycopg.connect(url, application_name="another") as creator,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        pid = hold_creation(creator)
        with pytest.raises(StoreUnavailableError, match=f"locked by pid {pid} of another as "):
            schema.prepare(
                connection, "towline", "the store", monotonic=lambda: float(next(seconds)), pause=lambda _: None
            )
    assert not is_there(url)


def test_a_store_that_is_there_is_opened_while_others_lock_its_tables(url: str) -> None:
    PostgresStore(url).close()
    with psycopg.connect(url) as dump:
        dump.execute("LOCK TABLE towline.queues, towline.tasks, towline.counts IN ACCESS SHARE MODE")
        with closing(PostgresStore(url)) as store:
            assert store.check().problems == ()
