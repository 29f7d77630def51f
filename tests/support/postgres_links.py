"""Links to private PostgreSQL servers: what the link and the signals promise without a store."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import psycopg

from queue_core.stores.postgres.address import parse_address
from queue_core.stores.postgres.link import MAX_CONNECTIONS, Link
from queue_core.stores.postgres.signals import NotifySignals

SCHEMA = "towline"
Operator = psycopg.Connection[tuple[object, ...]]


def make_schema(url: str) -> str:
    """The tables of the link and the signals; the URL again."""
    steps = files("queue_core.stores.postgres").joinpath("migrations")
    with operator(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")  # type: ignore[call-overload]
        connection.execute(f"SET search_path TO {SCHEMA}")  # type: ignore[call-overload]
        connection.execute(steps.joinpath("0002_ears.sql").read_bytes())
    return url


@contextmanager
def a_link(url: str, *, max_connections: int = MAX_CONNECTIONS) -> Iterator[Link]:
    """A link that is closed in the end."""
    link = Link(parse_address(url), max_connections=max_connections)
    try:
        yield link
    finally:
        link.close()


@contextmanager
def signals_on(url: str) -> Iterator[NotifySignals]:
    """Signals of one process, which has a link of its own and knows the time."""
    with a_link(url) as link:
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
