"""Look for a snapshot of the store that somebody holds open, and say once whose it is."""

import threading
from typing import Final

from queue_core.errors import StoreError
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.store import Store
from queue_core.verbs import HELD_SECONDS, HeldSnapshot

LOOK_SECONDS: Final = 15.0

log = get_logger()


class SnapshotWatch:
    """Looks every few seconds in a thread of its own. Any thread may read what it found."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = 0
        self._key: tuple[str, str] | None = None
        self.held: HeldSnapshot | None = None
        """The one that was told, while it is held."""

    def start(self) -> None:
        """Look from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="towline-snapshots", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._is_over.set()

    def look(self) -> None:
        """Look now. One without a known age is old when so many looks have found it. Raises `StoreError`."""
        found = self._store.held_snapshot(min_seconds=HELD_SECONDS)
        key = None if found is None else found.key
        self._seen = self._seen + 1 if key == self._key else 1
        self._key = key
        is_old = found is not None and (found.seconds is not None or self._seen * LOOK_SECONDS >= HELD_SECONDS)
        before, self.held = self.held, found if is_old else None
        if self.held is not None and (before is None or before.key != self.held.key):
            log.warning(
                events.SNAPSHOT_HELD,
                store=self._store.url,
                sentence=self.held.sentence,
                kind=self.held.kind,
                holder=self.held.name,
                pid=self.held.pid,
                application=self.held.application,
                user=self.held.user,
                host=self.held.host,
                seconds=self.held.seconds,
                dead_rows=self.held.dead_rows,
                log_bytes=self.held.log_bytes,
                cure=self.held.remedy,
            )
        elif before is not None and self.held is None:
            log.info(events.SNAPSHOT_ENDED, store=self._store.url, holder=before.name)

    def _work(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            try:
                self.look()
            except StoreError:  # it is told by others
                self.held = None
