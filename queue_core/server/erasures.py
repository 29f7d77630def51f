"""Notice that a store was emptied beneath the server, as by FLUSHALL or a Redis that is back without its data.

It is told at error level, the server is not ready, and the queues of its settings are made again. Idle, this costs a
store one small question every few seconds, however many queues there are.
"""

import contextlib
import threading
from typing import Final

import structlog

from queue_core.errors import StoreError, StoreUnavailableError
from queue_core.server import events
from queue_core.server.options import ServeOptions
from queue_core.service import QueueService
from queue_core.store import Erasable

CHECK_SECONDS: Final = 2.0

log = structlog.get_logger()


class QueueErasures:
    """One thread, where the store can be emptied. For several threads."""

    def __init__(self, service: QueueService, options: ServeOptions) -> None:
        self._service = service
        self._store = service.store if isinstance(service.store, Erasable) else None
        self._queues = options.queues
        self._storage_limit_bytes = options.storage_limit_bytes
        self._looking = threading.Lock()
        self._trouble = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_possible(self) -> bool:
        """Whether `check` may have to ask the store."""
        return self._store is not None

    def start(self) -> None:
        """Look every few seconds from now on."""
        if self._store is not None and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="towline-erasures", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Look no more. A look that the store does not answer ends with the process."""
        self._is_over.set()

    def check(self) -> None:
        """Look now. Raise the `StoreError` that keeps the store from being what it was."""
        if self._store is None:
            return
        with self._looking:
            if self._store.is_erased() and not self._trouble:
                self._trouble = (
                    f"{self._store.url} was emptied: all its tasks are gone, and its queues not made again yet"
                )
                log.error(
                    events.STORE_ERASED, store=self._store.url, lost="all queues and tasks", cure="restore a copy"
                )
            if self._trouble:
                try:
                    self._make_again(self._store)
                except StoreError as error:
                    raise StoreUnavailableError(f"{self._trouble} ({error})") from error

    def _make_again(self, store: Erasable) -> None:
        for spec in self._queues:
            self._service.run(lambda work, spec=spec: work.put_queue(spec))  # type: ignore[misc]
        if self._storage_limit_bytes is not None:
            limit_bytes = self._storage_limit_bytes
            self._service.run(lambda work: work.set_storage_limit(limit_bytes))
        store.mark()
        self._trouble = ""
        log.warning(events.QUEUES_MADE_AGAIN, store=store.url, queues=[spec.name for spec in self._queues])

    def _work(self) -> None:
        while not self._is_over.wait(CHECK_SECONDS):
            with contextlib.suppress(StoreError):  # told by whoever calls the store; the next look finds out
                self.check()
