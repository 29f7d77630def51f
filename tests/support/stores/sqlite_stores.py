"""SQLite stores for tests of their internals, with a syncer that counts, blocks and fails on demand."""

from pathlib import Path
from threading import Event

from queue_core.stores.sqlite.store import SqliteStore
from tests.support.stores.task_builders import a_queue


class BlockingSyncer:
    """A syncer that counts, can be made to block, and can be made to fail."""

    def __init__(self) -> None:
        self.syncs = 0
        self.let_through = Event()
        self.let_through.set()
        self.failure: OSError | None = None

    def sync(self) -> None:
        self.syncs += 1
        assert self.let_through.wait(10)
        if self.failure is not None:
            raise self.failure

    def grow(self, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


def a_store(path: Path, syncer: BlockingSyncer | None = None) -> SqliteStore:
    """Open a store and make its queue."""
    store = SqliteStore(path) if syncer is None else SqliteStore(path, open_syncer=lambda _path: syncer)
    a_queue(store)
    return store
