"""Stores by name, for tests that every store must pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.sqlite.driver import stdlib_driver
from queue_core.stores.sqlite.store import SqliteStore

STORES = ("memory", "sqlite", "sqlite-stdlib")


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """A new, empty store; skips, by name, where its engine is absent."""
    store = _open(name, folder)
    try:
        yield store
    finally:
        store.close()


def _open(name: str, folder: Path) -> Store:
    if name == "memory":
        return open_store("memory:")
    if name == "sqlite":
        return open_store(f"sqlite:///{folder / 'queue.db'}")
    if name == "sqlite-stdlib":
        return SqliteStore(folder / "queue.db", driver=stdlib_driver())
    pytest.skip(f"no store is called {name}")
