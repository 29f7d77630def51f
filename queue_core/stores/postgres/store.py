"""The PostgreSQL store: several transactions at a time, on connections of a pool; a commit that answered is durable."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock
from types import TracebackType
from typing import Final, Literal

import psycopg
import structlog
from psycopg import pq

from queue_core.clock import Clock
from queue_core.errors import InvalidRequestError, StoreUnavailableError, StoreUnsafeError
from queue_core.process import forking
from queue_core.store import Check, Ticket, Unit
from queue_core.stores.postgres import events, schema
from queue_core.stores.postgres.caller_transaction import CallerTransaction
from queue_core.stores.postgres.check import check
from queue_core.stores.postgres.client.address import parse_address
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import BEGIN, COMMIT, RELAX, ROLLBACK, SNAPSHOT, Call, StatementRunner
from queue_core.stores.postgres.commit_markers import CommitMarker
from queue_core.stores.postgres.maintenance import Maintenance, MaintenanceDue
from queue_core.stores.postgres.notify.signals import NotifySignals
from queue_core.stores.postgres.session import PostgresSession
from queue_core.stores.postgres.transaction import PostgresTransaction
from queue_core.stores.remote_clock import RemoteClock

_BEGIN: Final[Sequence[Call]] = ((BEGIN, ()),)
_BEGIN_RELAXED: Final[Sequence[Call]] = (*_BEGIN, (RELAX, ()))
_ISOLATION = "SELECT current_setting('transaction_isolation')"

log = structlog.get_logger()


class PostgresWrite:
    """A write transaction as a context; a class, as entering a generator costs more."""

    __slots__ = ("_step", "_store", "_unit", "_wire")

    def __init__(self, store: "PostgresStore", unit: Unit) -> None:
        self._store = store
        self._unit = unit

    def __enter__(self) -> PostgresTransaction:
        self._wire, self._step = self._store.enter(self._unit)
        return PostgresTransaction(self._step)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            self._store.commit(self._wire, self._step)
        else:
            self._store.roll_back(self._wire, self._step, error)


class PostgresStore:
    """See `Store`."""

    is_remote = True
    unit: Unit = "transaction"

    def __init__(self, url: str, *, durability: Literal["strict", "relaxed"] = "strict") -> None:
        """Open the store at a `postgresql://` URL, making its schema when there is none; see `parse_address`."""
        self._durability = durability
        self._address = parse_address(url)
        self._settings = {"synchronous_commit": "off" if durability == "relaxed" else "on"}
        self._commits = 0
        self._begin(RemoteClock())
        try:
            self._prepare()
        except BaseException:
            self._link.close()
            raise
        forking.renew_after_forks(self)

    def _begin(self, clock: RemoteClock) -> None:
        """With no connection and no thread."""
        self._link = ConnectionPool(self._address, clock=clock, settings=self._settings)
        self._signals = NotifySignals(self._link)
        self._upkeep = Maintenance(self._link, clock.monotonic)
        self._lock = Lock()
        self._tidying = MaintenanceDue()

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`. Connections and threads are the parent's; a store that was closed stays so."""
        link = self._link
        link.clock.renew_after_fork()
        link.leave_to_parent()
        self._signals.leave_to_parent()
        self._begin(link.clock)
        if link.is_closed:
            self._link.close()

    def _prepare(self) -> None:
        wire = self._link.connect()
        try:
            connection = wire.connection
            row = connection.execute("SELECT current_setting('fsync')").fetchone()
            if self._durability == "strict" and row != ("on",):
                raise StoreUnsafeError(
                    f"{self.url}: fsync is off, a power cut can lose the database: set it on, or durability: relaxed"
                )
            schema.prepare(connection, self._address.schema, self.url)
        except psycopg.Error as error:
            raise self._link.translate(error) from error
        finally:
            wire.connection.close()

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self._address.shown

    @property
    def durability(self) -> Literal["strict", "relaxed"]:
        """See `Store.durability`."""
        return self._durability

    @property
    def signals(self) -> NotifySignals:
        """See `Store.signals`."""
        return self._signals

    @property
    def clock(self) -> Clock:
        """See `Store.clock`."""
        return self._link.clock

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, unit: Unit = "transaction") -> PostgresWrite:
        """See `Store.begin`."""
        return PostgresWrite(self, unit)

    def enter(self, unit: Unit) -> tuple[PostgresConnection, PostgresSession]:
        """A connection, and a transaction on it that begins with its first statement."""
        wire = self._link.take()
        if wire.is_pooled and self._durability == "relaxed":
            return wire, PostgresSession(wire.caller, _BEGIN_RELAXED, link=self._link)
        marking = CommitMarker(self._link, wire) if unit == "verb" else None
        return wire, PostgresSession(wire.caller, _BEGIN, marking, self._link)

    def commit(self, wire: PostgresConnection, step: PostgresSession) -> None:
        """Commit, or find out what became of it."""
        if step.is_committed:
            self._tidy_apart(wire, step)
            self._tell(step)
            return
        if not step.is_open:
            self._link.give_back(wire)
            return
        pgconn = wire.connection.pgconn
        try:
            self._check_sound(pgconn)
            self._tidying.tidy(step)
            xid = step.number()
        except BaseException as error:
            self.roll_back(wire, step, error)
            raise
        try:
            wire.caller.call(COMMIT, ())
        except psycopg.Error as error:
            is_lost = pgconn.status != pq.ConnStatus.OK
            self._link.give_back(wire)
            if not is_lost:
                raise self._link.translate(error) from error
            if xid is not None and self._link.outcome(xid, life=wire.life) == "aborted":
                raise StoreUnavailableError(f"{self.url}: the connection was lost; nothing was changed") from error
        except BaseException:
            self._link.give_back(wire)
            raise
        else:
            self._link.give_back(wire)
        self._tell(step)

    def _tidy_apart(self, wire: PostgresConnection, step: PostgresSession) -> None:
        """After a verb that was committed as it was made: what fails here is done another time, and fails nobody."""
        try:
            self._tidying.tidy(step)
            if step.is_open:
                wire.caller.call(COMMIT, ())
        except psycopg.Error as error:
            log.warning(events.TIDYING_FAILED, store=self.url, error=str(self._link.translate(error)))
        finally:
            self._link.give_back(wire)

    def _tell(self, step: PostgresSession) -> None:
        """Of a commit."""
        with self._lock:
            self._commits += 1
        for (queue, tag), number in step.take_ripe().items():
            self._signals.publish(queue, tag, number)
        if step.is_littered:
            self._upkeep.begin()

    def _check_sound(self, pgconn: pq.abc.PGconn) -> None:
        if pgconn.transaction_status == pq.TransactionStatus.INERROR:
            raise StoreUnavailableError(f"{self.url}: a statement of the transaction failed; nothing was changed")

    def roll_back(self, wire: PostgresConnection, step: PostgresSession, error: BaseException) -> None:
        """Undo what was done, and raise what the driver's error means."""
        try:
            if step.is_open and wire.connection.pgconn.status == pq.ConnStatus.OK:
                with contextlib.suppress(psycopg.Error):
                    wire.caller.call(ROLLBACK, ())
        finally:
            self._link.give_back(wire)
        if isinstance(error, psycopg.Error):
            raise self._link.translate(error) from error

    @contextmanager
    def within(self, connection: object) -> Iterator[PostgresTransaction]:
        """See `Store.within`: a `psycopg.Connection` with an open READ COMMITTED transaction."""
        caller = StatementRunner(self._check_foreign(connection).pgconn, self._address.schema, keeps_statements=False)
        try:
            yield CallerTransaction(PostgresSession(caller, ()))
        except psycopg.Error as error:
            raise self._link.translate(error) from error

    def _check_foreign(self, connection: object) -> "psycopg.Connection[object]":
        if not isinstance(connection, psycopg.Connection):
            raise InvalidRequestError(
                f"connection must be a psycopg.Connection to the store's database: {type(connection).__name__}"
            )
        status = connection.info.transaction_status
        if status == pq.TransactionStatus.IDLE and connection.autocommit:
            raise InvalidRequestError(
                "the connection is in autocommit: open a transaction, `with connection.transaction():`"
            )
        if connection.closed or connection.pgconn.pipeline_status or status == pq.TransactionStatus.INERROR:
            raise InvalidRequestError("the connection is closed, in a pipeline, or its transaction has failed")
        row = connection.cursor(row_factory=psycopg.rows.tuple_row).execute(_ISOLATION).fetchone()
        if row != ("read committed",):
            raise InvalidRequestError(f"the transaction must be READ COMMITTED: {row[0] if row else ''}")
        return connection

    @contextmanager
    def read(self) -> Iterator[PostgresTransaction]:
        """See `Store.read`."""
        wire = self._link.take()
        step = PostgresSession(wire.caller, [(SNAPSHOT, ())])
        try:
            yield PostgresTransaction(step)
        except psycopg.Error as error:
            raise self._link.translate(error) from error
        finally:
            self._leave(wire, step)

    def _leave(self, wire: PostgresConnection, step: PostgresSession) -> None:
        try:
            if step.is_open and wire.connection.pgconn.status == pq.ConnStatus.OK:
                with contextlib.suppress(psycopg.Error):
                    wire.caller.call(COMMIT, ())
        finally:
            self._link.give_back(wire)

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return Ticket(self._commits)

    def sync(self, ticket: Ticket) -> None:
        """The commit was durable when it answered."""

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """See `Store.check_room`: its engine tells of that with each change."""

    def make_room(self) -> bool:
        """See `Store.make_room`."""
        return False

    def check(self) -> Check:
        """See `Store.check`."""
        with self._link.lend(seconds=inf) as wire:
            return check(wire.connection, self._address.schema)

    def close(self) -> None:
        """See `Store.close`."""
        self._upkeep.close()
        self._signals.close()
        self._link.close()
