"""Ways in which somebody holds a snapshot of PostgreSQL open, so that no row that died since can be removed."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from threading import Thread
from typing import Final, Protocol

import psycopg

from tests.bench.measure import MeasurementFailedError
from tests.support.stores.engines import Engine, postgresql_program, postgresql_standby

ROWS = 100_000
"""Rows of the dumped table: more than pipes and sockets keep, so that the dump waits for its reader."""
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.1
SETTINGS: Final = {"max_prepared_transactions": "4"}
"""Of the engine, for holders."""
PREPARED = "bench_held"
SLOT = "bench_held"

Hold = Callable[[], AbstractContextManager[None]]


class Holder(Protocol):
    """Prepares on an idle engine what it needs to hold a snapshot later; its end leaves nothing behind."""

    def __call__(self, engine: Engine, url: str) -> AbstractContextManager[Hold]: ...


@contextmanager
def _transaction(engine: Engine, url: str) -> Iterator[Hold]:
    @contextmanager
    def hold() -> Iterator[None]:
        with closing(psycopg.connect(url)) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT pg_current_xact_id()")
            yield
            connection.rollback()

    yield hold


@contextmanager
def _dump(engine: Engine, url: str) -> Iterator[Hold]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(
            "CREATE TABLE another AS SELECT n, repeat('x', 200) AS line FROM generate_series(1, %s) AS n", [ROWS]
        )

    @contextmanager
    def hold() -> Iterator[None]:
        command = [str(postgresql_program("pg_dump")), "--table", "another", "--data-only", "--dbname", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as dump, ExitStack() as stack:
            stack.callback(dump.kill)
            assert dump.stdout is not None
            dump.stdout.read(1 << 16)  # it has its snapshot, and is in the middle of the table
            yield
            rest = Thread(target=dump.stdout.read)
            rest.start()
            rest.join(WAIT_SECONDS)
            if dump.wait(WAIT_SECONDS):
                raise MeasurementFailedError(f"pg_dump ended with {dump.returncode}; what it said is above")

    yield hold


@contextmanager
def _prepared(engine: Engine, url: str) -> Iterator[Hold]:
    @contextmanager
    def hold() -> Iterator[None]:
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT pg_current_xact_id()")
            connection.execute(f"PREPARE TRANSACTION '{PREPARED}'")
        try:
            yield
        finally:
            with closing(psycopg.connect(url, autocommit=True)) as connection:
                connection.execute(f"ROLLBACK PREPARED '{PREPARED}'")

    yield hold


@contextmanager
def _slot(engine: Engine, url: str) -> Iterator[Hold]:
    """Let a standby with `hot_standby_feedback` write its snapshot into its physical slot, and stop it.

    A logical slot's `catalog_xmin` would keep dead rows of the catalog only, none of a queue's.
    """
    with postgresql_standby(engine, engine.home.parent, slot=SLOT, settings=SETTINGS, state="stopped") as standby:

        @contextmanager
        def hold() -> Iterator[None]:
            standby.start()
            _await(url, "SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s")
            standby.stop()
            _await(url, "SELECT NOT active AND xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s")
            yield
            _drop_slot(url)

        try:
            yield hold
        finally:
            standby.stop()
            _drop_slot(url)


def _drop_slot(url: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
        )


def _await(url: str, query: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        while connection.execute(query.encode(), [SLOT]).fetchone() != (True,):
            if time.monotonic() > until:
                raise MeasurementFailedError(f"the slot holds no snapshot after {WAIT_SECONDS:.0f} s: {query}")
            time.sleep(POLL_SECONDS)


HOLDERS: Final[Mapping[str, Holder]] = {
    "transaction": _transaction,
    "dump": _dump,
    "prepared": _prepared,
    "slot": _slot,
}
TITLES: Final[Mapping[str, str]] = {
    "transaction": "held by a REPEATABLE READ transaction with an id",
    "dump": "held by pg_dump of another table, which nobody reads from",
    "prepared": "held by a prepared transaction",
    "slot": "held by the slot (its xmin) of a stopped standby with hot_standby_feedback",
}
