"""pgmq: its SQL functions in PostgreSQL, called by prepared statements over psycopg.

The functions come from the `pgmq` package, which carries pgmq.sql, or from a file the user names.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

from tests.bench.driver import IN_A_TABLE, Consumer, Producer
from tests.bench.places import new_database
from tests.bench.site import BenchSite
from tests.support.stores.engines import EngineUnavailableError

QUEUE = "bench"
LEASE_SECONDS = 60


class PgmqDriver:
    """send, send_batch; read and delete in two calls."""

    name = "pgmq"
    durable = "yes"
    loads = IN_A_TABLE

    def __init__(self) -> None:
        self._url = ""
        self._stack = ExitStack()

    def start(self, site: BenchSite) -> None:
        sql = sql_of(site.pgmq_sql)
        self._url = self._stack.enter_context(new_database(site))
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(sql.encode())
            connection.execute("SELECT pgmq.create(%s)", [QUEUE])

    def producer(self) -> Producer:
        return PgmqClient(self._url)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(PgmqClient, self._url)

    def stop(self) -> None:
        self._stack.close()


class PgmqClient:
    """One connection, as producer or consumer."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute("SET client_min_messages = warning")

    def add(self, payload: bytes) -> None:
        self._connection.execute("SELECT pgmq.send(%s, %s)", [QUEUE, _message(payload)])

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        messages = [_message(payload) for payload in payloads]
        self._connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", [QUEUE, messages])

    def take(self, tasks: int) -> int:
        read = "SELECT msg_id, message FROM pgmq.read(%s, %s, %s)"
        ids = [row[0] for row in self._connection.execute(read, [QUEUE, LEASE_SECONDS, tasks])]
        if len(ids) == 1:
            self._connection.execute("SELECT pgmq.delete(%s, %s::bigint)", [QUEUE, ids[0]])
        elif ids:
            self._connection.execute("SELECT pgmq.delete(%s, %s::bigint[])", [QUEUE, ids])
        return len(ids)

    def close(self) -> None:
        self._connection.close()


def _message(payload: bytes) -> Jsonb:
    return Jsonb({"body": payload.decode()})


def sql_of(file: Path | None) -> str:
    """Return pgmq's SQL, of the user's file if there is one. Raises `EngineUnavailableError`."""
    if file is not None:
        return file.read_text()
    try:
        return files("pgmq").joinpath("sql", "pgmq.sql").read_text()
    except (ModuleNotFoundError, FileNotFoundError):
        raise EngineUnavailableError(
            "pgmq: its SQL is not here; install the package `pgmq` (uv pip install pgmq) or give --pgmq-sql FILE"
        ) from None
