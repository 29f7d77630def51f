"""Keeps adds within the store's limit of all payloads, at next to no cost where there is none."""

from collections.abc import Callable, Sequence

from queue_core.clock import MICROSECONDS, Instant
from queue_core.store import Transaction
from queue_core.task import NewTask
from queue_core.validation import check_storage

UNLIMITED_SECONDS = 1.0


class StorageGuard:
    """That there is no limit is taken for granted for a second, so that a store without one is not asked with every
    add. From any thread."""

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
        """Ask with the next add: the limit has changed."""
        self._unlimited_at = None
