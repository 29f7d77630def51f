"""A verb that is committed as it is made: one round trip. If its answer is lost, its mark tells what became of it.

Once a mark is asked for, its connection is closed for good: a call on it that is under way still has failed, or will.
"""

import hashlib
from typing import NoReturn

import psycopg
from psycopg import pq

from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.store import ClientCall
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Row, Statement, spelled

_CLOSE = "SELECT xid::text, ids FROM towline.close_commit_marker(%s, %s)"

MARK = (pack.int8, pack.int8)
"""How the last two parameters of a statement that can be marked are packed: connection and call; None, unmarked."""
UNMARKED = (None, None)


def mark_of(call: ClientCall) -> tuple[int, int]:
    """The mark of a client's call: its session in place of a connection, and its number."""
    digest = hashlib.blake2b(call.session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True), call.number


class VerbAnswerLostError(Exception):
    """The call took effect, and its answer was lost."""

    def __init__(self, link: ConnectionPool, xid: int, ids: list[int] | None, *, is_repeat: bool = False) -> None:
        """Args:
        xid: the transaction's number.
        ids: of the tasks that an add added; less than 0, a refusal.
        is_repeat: the call was made some time ago, and is asked for again.
        """
        self.is_repeat = is_repeat
        super().__init__(xid)
        self._link = link
        self.xid = xid
        self.ids = ids or []
        self.leased = None if ids is None else set(ids)
        """Of a lease beside others in its transaction: the tasks that were its own. None: all of the transaction."""

    def retold(self, query: str, *values: object) -> list[Row]:
        """What the answer was, by a query that is given the values and the transaction's number.

        Raises `OutcomeUnknownError` where that can't be had.
        """
        text = spelled(query, self._link.address.schema).encode()
        return self._link.find_out(lambda wire, _: wire.connection.execute(text, (*values, str(self.xid))).fetchall())


class CommitMarker:
    """The calls of one step that need no transaction around them, on a connection that is lent."""

    __slots__ = ("_link", "_wire")

    def __init__(self, link: ConnectionPool, wire: PostgresConnection) -> None:
        self._link = link
        self._wire = wire

    def rows(self, statement: Statement, values: tuple[object, ...], mark: tuple[int, int] | None = None) -> list[Row]:
        """Run a statement and commit it; it is given the mark after its values: the connection's, or a client's.

        Raises the driver's errors and `StoreUnavailableError`, when nothing took effect; `VerbAnswerLostError`;
        `OutcomeUnknownError` when the server can't be asked in time.
        """
        wire = self._wire
        wire.calls += 1
        try:
            return wire.caller.call(statement, (*values, *(mark or (wire.mark, wire.calls))))
        except psycopg.Error as error:
            if wire.connection.pgconn.status == pq.ConnStatus.OK:
                raise
            if mark is not None:  # the client's mark tells, whoever asks for its call again
                self._link.give_back(wire)
                raise OutcomeUnknownError(f"{self._link.url}: the connection was lost before it answered") from error
            self._find_out(error)

    def _find_out(self, error: psycopg.Error) -> NoReturn:
        link, wire = self._link, self._wire
        link.give_back(wire)  # whoever finds out needs another, and there may be no more
        query = spelled(_CLOSE, link.address.schema).encode()

        def ask(other: PostgresConnection, _waited_seconds: float) -> Row | None:
            return other.connection.execute(query, (wire.mark, wire.calls)).fetchone()

        xid, ids = link.find_out(ask)
        if xid is None:
            raise StoreUnavailableError(f"{link.url}: the connection was lost; nothing was changed") from error
        raise VerbAnswerLostError(link, int(xid), ids) from error
