"""Enforces the store's limit on payload bytes; costs next to nothing where there is none."""

from collections.abc import Callable, Sequence

from queue_core.clock import MICROSECONDS, Instant
from queue_core.store import Transaction
from queue_core.task import NewTask
from queue_core.validation import check_storage

UNLIMITED_SECONDS = 1.0
"""How long a store is assumed to have no limit after it had none. Longer: fewer reads, and a new limit acts later."""


class StorageGuard:
    """Checks adds against the limit, and caches for a second that there is none. Thread-safe."""

    def __init__(self, check_room: Callable[[], None]) -> None:
        """Args:
        check_room: see `Store.check_room`.
        """
        self._check_room = check_room
        self._unlimited_at: Instant | None = None

    def check(self, transaction: Transaction, tasks: Sequence[NewTask], *, now: Instant) -> None:
        """Raise `StorageLimitError` where these tasks would pass the limit, `StoreFullError` while the disk is full."""
        self._check_room()
        known_at = self._unlimited_at
        if known_at is not None and 0 <= now - known_at < UNLIMITED_SECONDS * MICROSECONDS:
            return
        storage = transaction.storage()
        if storage.limit_bytes is None:
            self._unlimited_at = now
        else:
            self._unlimited_at = None
            check_storage(tasks, used_bytes=storage.used_bytes, limit_bytes=storage.limit_bytes)

    def forget(self) -> None:
        """Read the limit again with the next add, as it has changed."""
        self._unlimited_at = None
