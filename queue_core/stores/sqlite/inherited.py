"""Connections that the child of a fork inherited: closed before this process opens another one. See ADR 29.

SQLite remembers, for the whole process and per file, which locks it holds. A fork copies that memory and not the locks:
a connection opened beside an inherited one would believe that it holds them, and another process, believing that it is
alone, would delete the log under it. Locks are a process's own: closing here lets go of none of the parent's.
"""

import contextlib
from collections.abc import Iterable
from threading import Lock

from queue_core import forking
from queue_core.errors import StoreUnavailableError
from queue_core.stores.sqlite.driver import Connection, Driver


class Inherited:
    """Of all files, by library."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, tuple[Driver, list[Connection]]] = {}
        self._lost: set[str] = set()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """A fork in the middle of closing leaves what nobody can close."""
        if self._lock.locked():
            self._lost.update(self._kept)
        self._lock = Lock()

    def add(self, driver: Driver, connections: Iterable[Connection], *, is_whole: bool) -> None:
        """In the child, before it does anything else.

        Args:
            is_whole: no thread of the parent was in the library. Otherwise the library's locks may be held by threads
                that are not here, and no call to it may return.
        """
        _, kept = self._kept.setdefault(driver.name, (driver, []))
        for connection in connections:
            # Never deallocated, which would close it: at the end of this process too.
            _keep_for_ever(connection)
            kept.append(connection)
            if not is_whole or not driver.leave_log(connection):
                self._lost.add(driver.name)
        if not is_whole:
            self._lost.add(driver.name)

    def let_go(self, driver: Driver, path: object) -> None:
        """Close all. Raises `StoreUnavailableError` where that can't be done; nothing can be opened then."""
        if not self._kept:
            return
        with self._lock:
            if driver.name in self._lost:
                raise StoreUnavailableError(
                    f"{path} can't be opened in this process: it was forked from one that had a store open, with a "
                    f"call under way that did not end for {forking.PAUSE_SECONDS:.0f} s, or by a library that can't "
                    f"let go of it ({driver.name}); fork before the store is opened, or start a new program"
                )
            for connection in self._kept.pop(driver.name, (driver, []))[1]:
                with contextlib.suppress(driver.error):
                    connection.close()


INHERITED = Inherited()


def _keep_for_ever(connection: Connection) -> None:
    """Raise its count of references by one that is never let go."""
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
