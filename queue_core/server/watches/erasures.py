"""Detect that a store was emptied beneath the server, by FLUSHALL or by a Redis that restarted without its data.

Then an error is logged, the server is not ready, and the queues of its settings are created again. A check costs one
small query, however many queues there are.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from queue_core.errors import StoreError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.base.options import ServeOptions
from queue_core.store import Erasable
from queue_core.unit.service import QueueService

CHECK_SECONDS: Final = 2.0
"""Seconds between two checks."""

log = get_logger()


class QueueErasures:
    """Checks in a thread of its own, if the store can be emptied. Any thread may call it."""

    def __init__(
        self, service: QueueService, options: ServeOptions, *, emptied: Callable[[], None] = lambda: None
    ) -> None:
        """`emptied`: called when the store was emptied."""
        self._emptied = emptied
        self._service = service
        self._store = service.store if isinstance(service.store, Erasable) else None
        self._queues = options.queues
        self._storage_limit_bytes = options.storage_limit_bytes
        self._lock = threading.Lock()
        self._problem = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_possible(self) -> bool:
        """Return whether the store can be emptied, so that `check` may call it."""
        return self._store is not None

    def start(self) -> None:
        """Check every few seconds from now on."""
        if self._store is not None and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="towline-erasures", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop checking. A check that the store does not answer ends with the process."""
        self._is_over.set()

    def check(self) -> None:
        """Check now. Raises `StoreError` while the queues of an emptied store are missing."""
        if self._store is None:
            return
        with self._lock:
            if self._store.is_erased() and not self._problem:
                self._problem = (
                    f"{self._store.url} was emptied: all its tasks are gone, and its queues are not created again yet"
                )
                log.error(
                    events.STORE_ERASED, store=self._store.url, lost="all queues and tasks", cure="restore a copy"
                )
                self._emptied()
            if self._problem:
                try:
                    self._recreate_queues(self._store)
                except StoreError as error:
                    raise StoreUnavailableError(f"{self._problem} ({error})") from error

    def _recreate_queues(self, store: Erasable) -> None:
        for spec in self._queues:
            self._service.run(lambda work, spec=spec: work.put_queue(spec))  # type: ignore[misc]
        if self._storage_limit_bytes is not None:
            limit_bytes = self._storage_limit_bytes
            self._service.run(lambda work: work.set_storage_limit(limit_bytes))
        store.mark()
        self._problem = ""
        log.warning(events.QUEUES_MADE_AGAIN, store=store.url, queues=[spec.name for spec in self._queues])

    def _work(self) -> None:
        while not self._is_over.wait(CHECK_SECONDS):
            with contextlib.suppress(StoreError):  # the next check tries again
                self.check()
