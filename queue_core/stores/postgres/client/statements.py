"""Run prepared statements with binary values: two round trips for a transaction, one for a verb alone.

It uses the driver's `pq` instead of its cursors: a pipeline of BEGIN and a verb, then a COMMIT, take 30 us, and 190 us
with the driver's own pipeline.
"""

import re
import select
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from queue_core.stores.postgres.client.binary import Pack

Row: TypeAlias = tuple[Any, ...]  # the statement decides the types of the columns

_QUALIFIED = re.compile(r"\btowline\.(?=\w)")
_BINARY = 1
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


@cache
def qualified(text: str, schema: str) -> str:
    """Return SQL with the store's schema in place of `towline.`; the program has few texts to cache."""
    return _QUALIFIED.sub(f"{schema}.", text)


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement: the name under which it is prepared, and the packing of its parameters.

    `towline.` in its text stands for the store's schema.
    """

    name: str
    sql: str
    packs: tuple[Pack, ...] = ()


BEGIN = Statement("towline_begin", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
RELAX = Statement("towline_relax", "SET LOCAL synchronous_commit TO off")
SNAPSHOT = Statement("towline_snapshot", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
CALLERS = Statement("towline_callers", "SELECT set_config('towline_lanes.is_callers', 'on', true)")
"""Mark a caller's own transaction: it may last, so it must not hold the lanes of a queue."""
COMMIT = Statement("towline_commit", "COMMIT")
ROLLBACK = Statement("towline_rollback", "ROLLBACK")

Call: TypeAlias = tuple[Statement, Sequence[object]]


class _Reader:
    """Read the rows of a statement's results; the loaders of its columns are looked up once."""

    __slots__ = ("_is_set", "_transformer")

    def __init__(self) -> None:
        self._transformer = Transformer()
        self._is_set = False

    def rows(self, result: pq.abc.PGresult) -> list[Row]:
        number = result.ntuples
        if not number:
            return []
        self._transformer.set_pgresult(result, set_loaders=not self._is_set)
        self._is_set = True
        return self._transformer.load_rows(0, number, tuple)


class StatementRunner:
    """Run statements on a connection, for one thread at a time. Raises the driver's errors."""

    def __init__(self, pgconn: pq.abc.PGconn, schema: str, *, keeps_statements: bool) -> None:
        """Args:
        keeps_statements: whether prepared statements survive a transaction, which they don't behind some proxies.
        """
        self._pgconn = pgconn
        self._schema = schema
        self._keeps_statements = keeps_statements
        self._readers: dict[Statement, _Reader] = {}
        self.news: list[str] = []
        """The JSON texts that the schema's `tell` sent with the answers, for a session to take."""
        self.limited: set[str] = set()
        """Queues that had limits or priorities at their last lease: their calls take no fast path."""

    def call(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Run a statement and return its rows."""
        reader = self._readers.get(statement)
        if reader is None:
            return self.call_all([(statement, values)])
        pgconn = self._pgconn
        try:
            result = pgconn.exec_prepared(
                statement.name.encode(),
                _packed(statement, values),  # type: ignore[arg-type]  # None is NULL
                [_BINARY] * len(values),
                _BINARY,
            )
        except psycopg.Error:
            raise
        except BaseException:
            pgconn.finish()  # an interrupt left an unread answer
            raise
        if result.status not in _DONE:
            raise self._error_of(result)
        return reader.rows(result)

    def call_all(self, calls: Sequence[Call]) -> list[Row]:
        """Run statements in one round trip and return the rows of the last; none runs after one that fails."""
        return self.call_each(calls, last=1)[0]

    def call_each(self, calls: Sequence[Call], *, last: int) -> list[list[Row]]:
        """Run statements in one round trip and return the rows of the `last` ones, each; see `call_all`."""
        pgconn = self._pgconn
        try:
            pgconn.enter_pipeline_mode()
            expected: list[Statement | None] = []
            readers = [self._send(statement, values, expected) for statement, values in calls]
            pgconn.pipeline_sync()
            found = self._receive(expected)
            pgconn.exit_pipeline_mode()
        except BaseException:
            if pgconn.pipeline_status:
                pgconn.finish()  # some answers are unread
            raise
        return [reader.rows(result) for reader, result in zip(readers[-last:], found[-last:], strict=True)]

    def _send(self, statement: Statement, values: Sequence[object], expected: list[Statement | None]) -> _Reader:
        """Send a call into the pipeline, note the expected results, and return the reader of its rows."""
        pgconn = self._pgconn
        packed = _packed(statement, values)
        formats = [_BINARY] * len(packed)
        if not self._keeps_statements:
            pgconn.send_query_params(qualified(statement.sql, self._schema).encode(), packed, None, formats, _BINARY)
            expected.append(None)
            return _Reader()
        name = statement.name.encode()
        reader = self._readers.get(statement)
        if reader is None:
            pgconn.send_prepare(name, qualified(statement.sql, self._schema).encode())
            expected.append(statement)
            reader = _Reader()
        pgconn.send_query_prepared(name, packed, formats, _BINARY)
        expected.append(None)
        return reader

    def _receive(self, expected: Sequence[Statement | None]) -> list[pq.abc.PGresult]:
        """Read all results of a pipeline and return those of calls; raise the first error after all are read."""
        pgconn = self._pgconn
        found: list[pq.abc.PGresult] = []
        failed: psycopg.Error | None = None
        place = 0
        while True:
            self._wait()
            result = pgconn.get_result()
            if result is None:
                if pgconn.status != pq.ConnStatus.OK:
                    raise failed or psycopg.OperationalError("the connection is lost")
                continue
            status = result.status
            if status == pq.ExecStatus.PIPELINE_SYNC:
                break
            if status in _DONE:
                prepared = expected[place]
                if prepared is None:
                    found.append(result)
                else:
                    self._readers[prepared] = _Reader()
            elif failed is None and status != pq.ExecStatus.PIPELINE_ABORTED:
                failed = self._error_of(result)
            place += 1
        if failed is not None:
            pgconn.exit_pipeline_mode()
            raise failed
        return found

    def _wait(self) -> None:
        """Wait until a result can be read: the driver's `get_result` would wait with the GIL held."""
        pgconn = self._pgconn
        try:
            unsent = pgconn.flush()  # more than the socket's buffer is sent in pieces
            while unsent or pgconn.is_busy():
                poller = select.poll()
                poller.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
                poller.poll()
                pgconn.consume_input()
                unsent = pgconn.flush()
        except psycopg.OperationalError:
            return  # `get_result` returns the server's last message

    def _error_of(self, result: pq.abc.PGresult) -> psycopg.Error:
        if self._pgconn.status != pq.ConnStatus.OK and not result.error_field(pq.DiagnosticField.SQLSTATE):
            return psycopg.OperationalError(result.get_error_message().strip() or "the connection is lost")
        return psycopg.errors.error_from_result(result)


def _packed(statement: Statement, values: Sequence[object]) -> list[bytes | None]:
    return [None if value is None else pack(value) for pack, value in zip(statement.packs, values, strict=True)]
