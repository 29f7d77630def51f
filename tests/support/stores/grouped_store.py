"""An SQLite store that commits several callers' verbs together, as a busy server does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from queue_core.store import Unit
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.transaction import SqliteTransaction
from queue_core.verbs import Check

VERBS = 7
"""Calls of `begin` that one transaction serves at most; a reader has it committed before."""


class GroupedStore(SqliteStore):
    """Each block of `begin` is a part of a transaction that others began or will end. None may fail."""

    _transaction: SqliteTransaction | None = None
    _left = 0

    @property
    def unit(self) -> Unit:
        return "verb"

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator[SqliteTransaction]:  # type: ignore[override]
        if self._transaction is None:
            self._stack = ExitStack()
            self._transaction = self._stack.enter_context(super().begin())
            self._left = VERBS
        yield self._transaction
        self._left -= 1
        if not self._left:
            self.commit()

    def commit(self) -> None:
        if self._transaction is not None:
            self._transaction = None
            self._stack.close()

    @contextmanager
    def read(self) -> Iterator[SqliteTransaction]:
        self.commit()
        with super().read() as transaction:
            yield transaction

    def _flush(self) -> bool:
        """Flush by a transaction of its own: left open, a reader would not see it, and `close` would wait for it."""
        is_flushed = super()._flush()
        self.commit()
        return is_flushed

    def check(self) -> Check:
        self.commit()
        return super().check()
