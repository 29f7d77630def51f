"""Run and commit a verb in one round trip; if its answer is lost, its commit marker says whether it took effect.

Reading a marker closes its connection for good: a call that is still in progress on it has failed or will fail.
See ADR 19.
"""

import hashlib
from itertools import count
from typing import NoReturn, Protocol, TypeAlias

import psycopg
from psycopg import pq

from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Row, Statement, qualified
from queue_core.verbs import ClientCall, key_reused

_CLOSE = "SELECT xid::text, ids FROM towline.close_commit_marker(%s, %s)"

MARKER_PACKS = (pack.int8, pack.int8, pack.int8)
"""The last parameters of a statement that leaves a commit marker: connection, call and its fingerprint, of which a
client's call alone has one; Nones: no marker."""
NO_MARKER = (None, None, None)
Marker: TypeAlias = tuple[int, int, int | None]


def marker_of(call: ClientCall) -> Marker:
    """Return the marker of a client's call: its session in place of a connection, its number and its fingerprint."""
    digest = hashlib.blake2b(call.session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True), call.number, packed_meaning(call.meaning)


def packed_meaning(meaning: str) -> int | None:
    """Return a fingerprint as a marker has it."""
    return int.from_bytes(bytes.fromhex(meaning[1:]), signed=True) if meaning else None


def check_meaning(call: ClientCall, kept: int | None) -> None:
    """Raise `KeyReusedError` when the marker of a call's number is that of another call."""
    if kept is not None and call.meaning and kept != packed_meaning(call.meaning):
        raise key_reused(call)


class Read(Protocol):
    """Runs a query for a lost answer."""

    def __call__(self, statement: Statement, *values: object) -> list[Row]:
        """Return the rows. Raises `OutcomeUnknownError`."""


def read_committed(pool: ConnectionPool) -> Read:
    """Return a reader of what other transactions have committed."""

    def read(statement: Statement, *values: object) -> list[Row]:
        return pool.find_out(lambda connection, _: connection.runner.call(statement, values))

    return read


class VerbAnswerLostError(Exception):
    """A call took effect and its answer was lost."""

    def __init__(self, xid: int, ids: list[int] | None, read: Read, *, is_repeat: bool = False) -> None:
        """Args:
        xid: the transaction's number.
        ids: the ids of the tasks that an add added (less than 0: a refusal), or of those leased, in order.
        read: runs a query where the transaction's changes can be seen.
        is_repeat: whether a client repeated a call that it made some time ago.
        """
        self.is_repeat = is_repeat
        super().__init__(xid)
        self._read = read
        self.xid = xid
        self.ids = ids or []
        self.leased = None if ids is None else dict(zip(ids, count(), strict=False))
        """The place of each task that the call leased, where others leased in its transaction too, or where its queue
        has an order of its own; None: all leased in it, by eta and id."""

    def read_answer(self, query: Statement, *values: object) -> list[Row]:
        """Return the lost answer, with a query that takes the values and the transaction's number.

        Raises `OutcomeUnknownError` if that fails.
        """
        return self._read(query, *values, str(self.xid))


class AutocommitRunner:
    """Run verbs that commit by themselves, on a borrowed connection."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: ConnectionPool, connection: PostgresConnection) -> None:
        self._pool = pool
        self._connection = connection

    def rows(self, statement: Statement, values: tuple[object, ...], marker: Marker | None = None) -> list[Row]:
        """Run a statement and commit it; the marker follows its values: the connection's, or a client's.

        Raises the driver's errors and `StoreUnavailableError` when nothing took effect; `VerbAnswerLostError`;
        `OutcomeUnknownError` when the server can't be reached in time.
        """
        connection = self._connection
        connection.calls += 1
        try:
            return connection.runner.call(
                statement, (*values, *(marker or (connection.marker, connection.calls, None)))
            )
        except psycopg.Error as error:
            if connection.driver.pgconn.status == pq.ConnStatus.OK:
                raise
            if marker is not None:  # a repeat of the call, on any host, reads the client's marker
                self._pool.give_back(connection)
                raise OutcomeUnknownError(f"{self._pool.url}: the connection was lost before it answered") from error
            self._find_out(error)

    def _find_out(self, error: psycopg.Error) -> NoReturn:
        pool, connection = self._pool, self._connection
        pool.give_back(connection)  # reading the marker needs a connection, and this may be the last
        query = qualified(_CLOSE, pool.address.schema).encode()

        def read(other: PostgresConnection, _waited_seconds: float) -> Row | None:
            return other.driver.execute(query, (connection.marker, connection.calls)).fetchone()

        xid, ids = pool.find_out(read)
        if xid is None:
            raise StoreUnavailableError(f"{pool.url}: the connection was lost; nothing was changed") from error
        raise VerbAnswerLostError(int(xid), ids, read_committed(pool)) from error
