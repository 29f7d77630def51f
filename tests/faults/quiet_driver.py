"""The store's driver, for a VFS written in Python whose errors come while a connection closes.

SQLite keeps to itself what fails then (the log stays, and is read at the next opening); apsw alone would raise it.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import apsw

from queue_core.stores.sqlite.driver import Driver, SqliteConnection, apsw_driver

BUSY_MILLISECONDS = 10_000


class QuietlyClosing(apsw.Connection):
    """A connection whose `close` fails no more than it does over SQLite's own VFS."""

    def close(self, force: bool = False) -> None:
        with contextlib.suppress(apsw.FullError, apsw.IOError):
            super().close(force)


@contextmanager
def planned_failures() -> Iterator[None]:
    """Keep silent of planned failures that apsw can raise nowhere: of two in one statement it raises the last."""
    usual = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, apsw.FullError | apsw.IOError):
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def quiet_driver() -> Driver:
    """Apsw, with connections that close quietly."""

    def connect(path: str, vfs: str) -> SqliteConnection:
        connection = QuietlyClosing(path, vfs=vfs or None)
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        opened: SqliteConnection = connection
        return opened

    return replace(apsw_driver(), connect=connect)
