"""What turns have committed, and a thread that waits for a slow disk to keep it."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queue_core.errors import StoreError
from queue_core.fast_values import fast_constructor
from queue_core.server.commit.committer import Done, sync
from queue_core.service import Batch, Operation, QueueService


@dataclass(frozen=True, slots=True)
class Entry:
    """A step, and who is told of its outcome."""

    step: Operation[object]
    done: Done


new_entry = fast_constructor(Entry)


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction on its way to the disk."""

    entries: Sequence[Entry]
    batch: Batch[object]


class Disk:
    """A thread that waits for slow syncs while the loop goes on; one sync covers all that was committed before it."""

    def __init__(
        self, service: QueueService, synced: Callable[[Sequence[Committed], StoreError | None, float], None]
    ) -> None:
        self._service = service
        self._synced = synced
        self._committed: queue.SimpleQueue[tuple[Sequence[Committed], asyncio.AbstractEventLoop] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._under_way = 0

    @property
    def is_busy(self) -> bool:
        """Whether a batch has not been told of yet: a later one must not overtake it."""
        return self._under_way > 0

    def submit(self, committed: Sequence[Committed]) -> None:
        """Sync them, then tell the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="towline-sync", daemon=True)
            self._thread.start()
        self._under_way += len(committed)
        self._committed.put((committed, asyncio.get_running_loop()))

    def close(self) -> None:
        """Finish what is under way."""
        if self._thread is not None:
            self._committed.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (first := self._committed.get()) is not None:
            committed, loop = first
            batches = list(committed)
            stop = False
            while not self._committed.empty():
                more = self._committed.get()
                if more is None:
                    stop = True
                    break
                batches += more[0]
            began_at = self._service.clock.monotonic()
            failure = sync(self._service, batches[-1].batch)
            seconds = self._service.clock.monotonic() - began_at
            try:
                loop.call_soon_threadsafe(self._told, batches, failure, seconds)
            except RuntimeError:
                return  # the loop was closed over our head: nobody is left to be told
            if stop:
                return

    def _told(self, batches: Sequence[Committed], failure: StoreError | None, seconds: float) -> None:
        self._under_way -= len(batches)
        self._synced(batches, failure, seconds)
