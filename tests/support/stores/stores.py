"""Stores by name, for tests that every store must pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.store import Store
from queue_core.stores import open_store
from tests.support.stores.engines import EngineUnavailableError
from tests.support.stores.shared_engines import EngineName, engines_of_process

STORES = ("memory", "sqlite", "postgresql", "redis")


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """Open a new, empty store; skip, by name, where its engine is absent."""
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
    if name in ("postgresql", "redis"):
        return open_store(new_store_url(name))
    pytest.skip(f"no store is called {name}")


def new_url(name: EngineName) -> str:
    """Return the URL of an empty database of a shared engine; skip, by name, where it is absent."""
    try:
        return engines_of_process().new_url(name)
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def new_store_url(name: EngineName) -> str:
    """Return the same with the schema already made, which is faster."""
    try:
        return engines_of_process().new_store_url(name)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
