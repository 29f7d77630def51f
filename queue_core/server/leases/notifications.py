"""Hears what other processes on the same store did to the queues that somebody waits on here."""

import asyncio
import math
import threading
from collections.abc import Callable

import structlog

from queue_core.errors import QueueError
from queue_core.server import events
from queue_core.store import Store, Subscription
from queue_core.task import ANY

PATIENCE_SECONDS = 5.0
"""How long to listen on after the last caller left: a busy worker is back before that."""
MAX_EARS = 64
"""Queues listened to at once; a store with more of them in several servers relies on the next eta or add here."""
MAX_REMOTE_EARS = 256
"""The same for a store across a network; with more, the rest is looked at every few seconds."""
DEAF_SECONDS = 1.0
"""How soon to try again when signals can't be had."""
CLOSE_SECONDS = 1.0
"""How long a stop waits for the ears: what they do across a network may never end."""

log = structlog.get_logger()


class Listener:
    """A thread with an ear for each queue that is waited on."""

    def __init__(self, store: Store, heard: Callable[[str], None], is_wanted: Callable[[str], bool]) -> None:
        """Args:
        heard: told the queue, in the loop that asked to listen.
        is_wanted: whether anybody still waits on a queue; asked from the ear's thread.
        """
        self._store = store
        self._heard = heard
        self._is_wanted = is_wanted
        self._max_ears = MAX_REMOTE_EARS if store.is_remote else MAX_EARS
        self._ears: dict[str, _Ear] = {}
        self._lock = threading.Lock()

    def listen(self, queue: str) -> None:
        """Somebody waits on this queue now. Call in the loop, after `is_wanted` says so."""
        if queue in self._ears:
            return
        with self._lock:
            if queue in self._ears or len(self._ears) >= self._max_ears:
                return
            loop = asyncio.get_running_loop()
            ear = _Ear(self._store, queue, lambda: self._tell(loop, queue), lambda: self._is_done(queue))
            self._ears[queue] = ear
        ear.start()

    def is_listening(self, queue: str) -> bool:
        """Whether our own signals on this queue reach ourselves too."""
        return queue in self._ears

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            ears = list(self._ears.values())
            self._ears.clear()
        for ear in ears:
            ear.end()
        clock = self._store.clock
        until = clock.monotonic() + CLOSE_SECONDS if self._store.is_remote else math.inf
        for ear in ears:
            ear.join(seconds=until - clock.monotonic())

    def _tell(self, loop: asyncio.AbstractEventLoop, queue: str) -> None:
        try:
            loop.call_soon_threadsafe(self._heard, queue)
        except RuntimeError:
            return  # the loop has ended: nobody waits any more

    def _is_done(self, queue: str) -> bool:
        """Asked by an ear that heard nothing for a while; one that is done is forgotten in the same step."""
        with self._lock:
            if queue in self._ears and self._is_wanted(queue):
                return False
            self._ears.pop(queue, None)
            return True


class _Ear:
    """One thread on one queue."""

    def __init__(self, store: Store, queue: str, tell: Callable[[], None], is_done: Callable[[], bool]) -> None:
        self._store = store
        self._queue = queue
        self._tell = tell
        self._is_done = is_done
        self._closed = threading.Event()
        self._subscription: Subscription | None = None
        self._is_deaf = False
        self._thread = threading.Thread(target=self._work, name=f"towline-ear-{queue}", daemon=True)

    def start(self) -> None:
        """Begin to listen; and look once, for what happened before."""
        self._thread.start()

    def end(self) -> None:
        """Listen no more."""
        self._closed.set()
        if self._subscription is not None:
            self._subscription.wake()

    def join(self, *, seconds: float) -> None:
        """Wait until the thread has ended, or so long."""
        self._thread.join(None if seconds == math.inf else max(0.0, seconds))

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
                return
            except (QueueError, OSError) as error:  # signals are a hint: leases go on without them
                if not self._is_deaf:
                    log.warning(events.SIGNALS_UNHEARD, queue=self._queue, error=str(error))
                self._is_deaf = True
            self._closed.wait(DEAF_SECONDS)
            if self._is_done():
                return

    def _listen(self) -> None:
        subscription = self._store.signals.subscribe(self._queue, ANY)
        self._subscription = subscription
        self._is_deaf = False
        try:
            self._tell()
            while not self._closed.is_set():
                if subscription.wait(timeout_seconds=PATIENCE_SECONDS):
                    self._tell()
                elif self._closed.is_set() or self._is_done():
                    return
        finally:
            subscription.close()
