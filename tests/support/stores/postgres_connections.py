"""Connections to private PostgreSQL servers and their signals, without a store."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from queue_core.store import Subscription
from queue_core.stores.postgres.client.address import parse_address
from queue_core.stores.postgres.client.pool import MAX_CONNECTIONS, ConnectionPool
from queue_core.stores.postgres.notify.signals import NotifySignals
from queue_core.stores.postgres.schema import schema_text
from queue_core.task import ANY
from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError

LONG = 20.0
"""Seconds to wait for an event that must come."""
SCHEMA = "towline"
Operator = psycopg.Connection[tuple[object, ...]]


def make_schema(url: str) -> str:
    """Make the tables of connection and signals; return the URL."""
    with operator(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")  # type: ignore[call-overload]
        connection.execute(f"SET search_path TO {SCHEMA}")  # type: ignore[call-overload]
        for subject in ("life", "notify"):
            connection.execute(schema_text(subject).encode())
    return url


@contextmanager
def a_postgres(folder: Path) -> Iterator[Engine]:
    """Run a private server; skip, by name, where there is none."""
    try:
        with engines.postgresql(folder) as engine:
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def a_pool(url: str, *, max_connections: int = MAX_CONNECTIONS) -> Iterator[ConnectionPool]:
    """A link that is closed in the end."""
    pool = ConnectionPool(parse_address(url), max_connections=max_connections)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def signals_on(url: str) -> Iterator[NotifySignals]:
    """Signals of one process, which has a link of its own and knows the time."""
    with a_pool(url) as pool:
        with pool.lend():
            pass
        signals = NotifySignals(pool)
        try:
            yield signals
        finally:
            signals.close()


def operator(url: str) -> Operator:
    """Open a separate connection, in autocommit."""
    return psycopg.connect(url, autocommit=True)


def through(url: str, port: int) -> str:
    """Return the URL with another port of this host."""
    address = psycopg.conninfo.conninfo_to_dict(url)
    return f"postgresql://{address['user']}@127.0.0.1:{port}/{address['dbname']}"


def port_of(url: str) -> int:
    """Return the server's port."""
    return int(str(psycopg.conninfo.conninfo_to_dict(url)["port"]))


def query_cell(pool: ConnectionPool, query: str) -> object:
    """Return the single cell that a query yields on a borrowed connection."""
    with pool.lend() as connection:
        row = connection.driver.execute(query).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return row[0]


def backend(pool: ConnectionPool) -> object:
    """Return the pid of the server process behind the borrowed connection."""
    return query_cell(pool, "SELECT pg_backend_pid()")


def is_lock_awaited(url: str, *, locktype: str = "%") -> bool:
    """Return whether a session of the server waits for a lock, of this type if given."""
    with operator(url) as connection:
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype LIKE %s)", (locktype,)
        ).fetchone()
    return bool(row and row[0])


def await_notifications(there: NotifySignals, here: NotifySignals) -> None:
    """Wait until `here` has received all that `there` published before: notifications arrive in order."""
    last = here.subscribe("settled", ANY)
    there.publish("settled", None, 1)
    assert last.wait(timeout_seconds=LONG)
    last.close()


def woken(*subscriptions: Subscription) -> list[bool]:
    """Return the waiters that were woken since they last waited."""
    return [each.wait(timeout_seconds=0) for each in subscriptions]


def closing(*subscriptions: Subscription) -> None:
    """Close them all."""
    for each in subscriptions:
        each.close()


def rows(url: str, table: str) -> int:
    """Return the number of rows in a table of the signals."""
    with operator(url) as connection:
        row = connection.execute(f"SELECT count(*) FROM towline.{table}").fetchone()  # type: ignore[call-overload]
    assert row is not None
    return int(str(row[0]))


class Pooler:
    """A stand-in for a transaction-pooling proxy: it reports an invented backend pid to each client.

    Otherwise it only forwards bytes, with a backend for each client.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more clients."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=_carry, args=(client, server, False), daemon=True).start()
            threading.Thread(target=_carry, args=(server, client, True), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket, is_answer: bool) -> None:
    is_greeting = is_answer
    with target:
        while True:
            try:
                data = source.recv(65536)
                if not data:
                    return
                key = data.find(b"K\0\0\0\x0c") if is_greeting else -1
                if key >= 0:
                    data = data[: key + 5] + (1 << 30).to_bytes(4) + data[key + 9 :]
                    is_greeting = False
                target.sendall(data)
            except OSError:
                return
