"""Links to private PostgreSQL servers, and who waits on them: what link and signals promise without a store."""

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
"""Seconds to wait for what must come."""
SCHEMA = "towline"
Operator = psycopg.Connection[tuple[object, ...]]


def make_schema(url: str) -> str:
    """The tables of the link and the signals; the URL again."""
    with operator(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")  # type: ignore[call-overload]
        connection.execute(f"SET search_path TO {SCHEMA}")  # type: ignore[call-overload]
        for subject in ("life", "notify"):
            connection.execute(schema_text(subject).encode())
    return url


@contextmanager
def a_postgres(folder: Path) -> Iterator[Engine]:
    """A server of one's own; skips, by name, where there is none."""
    try:
        with engines.postgresql(folder) as engine:
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def a_connection(url: str, *, max_connections: int = MAX_CONNECTIONS) -> Iterator[ConnectionPool]:
    """A link that is closed in the end."""
    link = ConnectionPool(parse_address(url), max_connections=max_connections)
    try:
        yield link
    finally:
        link.close()


@contextmanager
def signals_on(url: str) -> Iterator[NotifySignals]:
    """Signals of one process, which has a link of its own and knows the time."""
    with a_connection(url) as link:
        with link.lend():
            pass
        signals = NotifySignals(link)
        try:
            yield signals
        finally:
            signals.close()


def operator(url: str) -> Operator:
    """A connection beside all links, in autocommit."""
    return psycopg.connect(url, autocommit=True)


def through(url: str, port: int) -> str:
    """The URL by way of another port of this host."""
    address = psycopg.conninfo.conninfo_to_dict(url)
    return f"postgresql://{address['user']}@127.0.0.1:{port}/{address['dbname']}"


def port_of(url: str) -> int:
    """The port that its server listens on."""
    return int(str(psycopg.conninfo.conninfo_to_dict(url)["port"]))


def query_cell(link: ConnectionPool, query: str) -> object:
    """What a query on a lent connection gives: one cell."""
    with link.lend() as wire:
        row = wire.connection.execute(query).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return row[0]


def backend(link: ConnectionPool) -> object:
    """The number of the server's process behind the connection that is lent."""
    return query_cell(link, "SELECT pg_backend_pid()")


def is_lock_awaited(url: str, *, locktype: str = "%") -> bool:
    """Whether a session of the server waits for a lock; of any type, unless one is named."""
    with operator(url) as connection:
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype LIKE %s)", (locktype,)
        ).fetchone()
    return bool(row and row[0])


def await_notifications(there: NotifySignals, here: NotifySignals) -> None:
    """What `there` published before this has been heard here, as one after the other is told."""
    last = here.subscribe("settled", ANY)
    there.publish("settled", None, 1)
    assert last.wait(timeout_seconds=LONG)
    last.close()


def woken(*subscriptions: Subscription) -> list[bool]:
    """Which of them were woken since they last waited."""
    return [each.wait(timeout_seconds=0) for each in subscriptions]


def closing(*subscriptions: Subscription) -> None:
    """Close them all."""
    for each in subscriptions:
        each.close()


def rows(url: str, table: str) -> int:
    """How many rows a table of the signals has."""
    with operator(url) as connection:
        row = connection.execute(f"SELECT count(*) FROM towline.{table}").fetchone()  # type: ignore[call-overload]
    assert row is not None
    return int(str(row[0]))


class Pooler:
    """Stands for a transaction-pooling proxy: like one, it tells each client a backend number of its own making.

    It carries bytes, but for that number, and gives each client a backend of its own: it only looks like a pooler.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more clients."""
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
