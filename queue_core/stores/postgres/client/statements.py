"""One connection as its transactions use it: statements by name, binary values, two round trips for a transaction, one
for a verb alone.

This goes below the driver's cursors, to its `pq`: a pipeline of BEGIN and a verb, then a COMMIT, take 30 us there, of
which 12 us are ours, and 190 us with the driver's own pipeline.
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

Row: TypeAlias = tuple[Any, ...]  # what its columns are is known only to the statement

_QUALIFIED = re.compile(r"\btowline\.(?=\w)")
_BINARY = 1
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


@cache
def qualified(text: str, schema: str) -> str:
    """SQL with the store's own schema where `towline.` stands for it. Texts are the program's own, so there are few."""
    return _QUALIFIED.sub(f"{schema}.", text)


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One statement: a name for the server to keep it under, and how its parameters are packed.

    `towline.` in its text stands for the store's schema.
    """

    name: str
    sql: str
    packs: tuple[Pack, ...] = ()


BEGIN = Statement("towline_begin", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
RELAX = Statement("towline_relax", "SET LOCAL synchronous_commit TO off")
SNAPSHOT = Statement("towline_snapshot", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
COMMIT = Statement("towline_commit", "COMMIT")
ROLLBACK = Statement("towline_rollback", "ROLLBACK")

Call: TypeAlias = tuple[Statement, Sequence[object]]


class _Reader:
    """Makes rows of a statement's results; how each column is read is looked up once."""

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
    """Runs statements on one connection; for one thread at a time. Raises the driver's errors."""

    def __init__(self, pgconn: pq.abc.PGconn, schema: str, *, keeps_statements: bool) -> None:
        """Args:
        keeps_statements: whether the next transaction finds what this one prepared; not so behind some proxies.
        """
        self._pgconn = pgconn
        self._schema = schema
        self._keeps_statements = keeps_statements
        self._readers: dict[Statement, _Reader] = {}

    def call(self, statement: Statement, values: Sequence[object]) -> list[Row]:
        """Run a statement; its rows."""
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
            pgconn.finish()  # an interrupt left an answer unread
            raise
        if result.status not in _DONE:
            raise self._error_of(result)
        return reader.rows(result)

    def call_all(self, calls: Sequence[Call]) -> list[Row]:
        """Run statements in one round trip; the rows of the last. After one that fails none is run."""
        pgconn = self._pgconn
        reader = _Reader()
        try:
            pgconn.enter_pipeline_mode()
            expected: list[Statement | None] = []
            for statement, values in calls:
                reader = self._send(statement, values, expected)
            pgconn.pipeline_sync()
            result = self._receive(expected)
            pgconn.exit_pipeline_mode()
        except BaseException:
            if pgconn.pipeline_status:
                pgconn.finish()  # the answers are not all read
            raise
        return reader.rows(result)

    def _send(self, statement: Statement, values: Sequence[object], expected: list[Statement | None]) -> _Reader:
        """Put a call into the pipeline and note what answers will come; what will read its rows."""
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

    def _receive(self, expected: Sequence[Statement | None]) -> pq.abc.PGresult:
        """Read every answer of a pipeline; the last one. Raises for the first that is an error, when all are read."""
        pgconn = self._pgconn
        last: pq.abc.PGresult | None = None
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
                last = result
                prepared = expected[place]
                if prepared is not None:
                    self._readers[prepared] = _Reader()
            elif failed is None and status != pq.ExecStatus.PIPELINE_ABORTED:
                failed = self._error_of(result)
            place += 1
        if failed is not None:
            pgconn.exit_pipeline_mode()
            raise failed
        assert last is not None, "there was at least one call"
        return last

    def _wait(self) -> None:
        """Return when a result can be read at once: the driver's `get_result` waits with the whole process stopped."""
        pgconn = self._pgconn
        try:
            unsent = pgconn.flush()  # what is longer than the socket's buffer goes bit by bit
            while unsent or pgconn.is_busy():
                poller = select.poll()
                poller.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
                poller.poll()
                pgconn.consume_input()
                unsent = pgconn.flush()
        except psycopg.OperationalError:
            return  # `get_result` tells what the server said last

    def _error_of(self, result: pq.abc.PGresult) -> psycopg.Error:
        if self._pgconn.status != pq.ConnStatus.OK and not result.error_field(pq.DiagnosticField.SQLSTATE):
            return psycopg.OperationalError(result.get_error_message().strip() or "the connection is lost")
        return psycopg.errors.error_from_result(result)


def _packed(statement: Statement, values: Sequence[object]) -> list[bytes | None]:
    return [None if value is None else pack(value) for pack, value in zip(statement.packs, values, strict=True)]
