"""Hears what other processes on the same store did to the queues that somebody waits on here."""

import asyncio
import threading
from collections.abc import Callable

import structlog

from queue_core.server import events
from queue_core.store import Signals, Subscription
from queue_core.task import ANY

PATIENCE_SECONDS = 5.0
"""How long to listen on after the last caller left: a busy worker is back before that."""
MAX_EARS = 64
"""Queues listened to at once; a store with more of them in several servers relies on the next eta or add here."""

log = structlog.get_logger()


class Listener:
    """A thread with an ear for each queue that is waited on."""

    def __init__(self, signals: Signals, heard: Callable[[str], None], is_wanted: Callable[[str], bool]) -> None:
        """Args:
        heard: told the queue, in the loop that asked to listen.
        is_wanted: whether anybody still waits on a queue; asked from the ear's thread.
        """
        self._signals = signals
        self._heard = heard
        self._is_wanted = is_wanted
        self._ears: dict[str, _Ear] = {}
        self._lock = threading.Lock()

    def listen(self, queue: str) -> None:
        """Somebody waits on this queue now. Call in the loop, after `is_wanted` says so."""
        with self._lock:
            if queue in self._ears or len(self._ears) >= MAX_EARS:
                return
            loop = asyncio.get_running_loop()
            try:
                ear = _Ear(self._signals, queue, lambda: self._tell(loop, queue), lambda: self._is_done(queue))
            except OSError as error:  # signals are a hint: leases go on without them
                log.warning(events.SIGNALS_UNHEARD, queue=queue, error=str(error))
                return
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
            ear.close()

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

    def __init__(self, signals: Signals, queue: str, tell: Callable[[], None], is_done: Callable[[], bool]) -> None:
        self._subscription: Subscription = signals.subscribe(queue, ANY)
        self._tell = tell
        self._is_done = is_done
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"towline-ear-{queue}", daemon=True)

    def start(self) -> None:
        """Begin to listen; and look once, for what happened before."""
        self._thread.start()
        self._tell()

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        self._subscription.wake()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._is_closed:
                if self._subscription.wait(timeout_seconds=PATIENCE_SECONDS):
                    self._tell()
                elif self._is_closed or self._is_done():
                    return
        finally:
            self._subscription.close()
