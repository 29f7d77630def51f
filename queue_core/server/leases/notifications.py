"""Notifications between the processes on one store: of changes to queues that callers wait on here, and of tasks
that others may lease. A notification is a hint: leases go on, a little later, without it."""

import asyncio
import math
import threading
from collections.abc import Callable

from queue_core.errors import QueueError
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.commit.thread_pool import ThreadPool
from queue_core.store import Signals, Store, Subscription
from queue_core.task import ANY

IDLE_SECONDS = 5.0
"""Seconds to go on listening after the last caller left: a busy worker is back before that."""
MAX_QUEUES = 64
"""Queues listened to at once; of further queues, new tasks are found at the next eta or add here."""
MAX_REMOTE_QUEUES = 256
"""The same for a store across a network, where further queues are read every few seconds."""
RETRY_SECONDS = 1.0
"""Seconds before subscribing again after a failure."""
CLOSE_SECONDS = 1.0
"""Seconds that a stop waits for the threads, as a call across a network may never return."""
MAX_UNSENT = 10_000
"""Tags that wait to be sent. A notification that is dropped costs the callers that wait elsewhere a few seconds."""

log = get_logger()


class NotificationListener:
    """Listens to each queue that is waited on, in a thread for each."""

    def __init__(self, store: Store, notify: Callable[[str], None], is_wanted: Callable[[str], bool]) -> None:
        """Args:
        notify: called with the queue, in the loop in which `listen` was called.
        is_wanted: whether any caller still waits on a queue; called in a thread of the listener.
        """
        self._store = store
        self._notify = notify
        self._is_wanted = is_wanted
        self._max_queues = MAX_REMOTE_QUEUES if store.is_remote else MAX_QUEUES
        self._threads: dict[str, _ListenerThread] = {}
        self.queues = self._threads.keys()
        """The queues that are listened to: this server receives its own notifications on them."""
        self._lock = threading.Lock()

    def listen(self, queue: str) -> None:
        """Listen to a queue from now on. Call it in the loop, once `is_wanted` is true of the queue."""
        if queue in self._threads:
            return
        with self._lock:
            if queue in self._threads or len(self._threads) >= self._max_queues:
                return
            loop = asyncio.get_running_loop()
            thread = _ListenerThread(
                self._store, queue, lambda: self._notify_in(loop, queue), lambda: self._is_done(queue)
            )
            self._threads[queue] = thread
        thread.start()

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            threads = list(self._threads.values())
            self._threads.clear()
        for thread in threads:
            thread.end()
        clock = self._store.clock
        until = clock.monotonic() + CLOSE_SECONDS if self._store.is_remote else math.inf
        for thread in threads:
            thread.join(seconds=until - clock.monotonic())

    def _notify_in(self, loop: asyncio.AbstractEventLoop, queue: str) -> None:
        try:
            loop.call_soon_threadsafe(self._notify, queue)
        except RuntimeError:
            return  # the loop has ended

    def _is_done(self, queue: str) -> bool:
        """Return whether an idle thread is to end; it is forgotten in the same moment."""
        with self._lock:
            if queue in self._threads and self._is_wanted(queue):
                return False
            self._threads.pop(queue, None)
            return True


class _ListenerThread:
    """One thread on one queue."""

    def __init__(self, store: Store, queue: str, notify: Callable[[], None], is_done: Callable[[], bool]) -> None:
        self._store = store
        self._queue = queue
        self._notify = notify
        self._is_done = is_done
        self._closed = threading.Event()
        self._subscription: Subscription | None = None
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"towline-listener-{queue}", daemon=True)

    def start(self) -> None:
        """Begin to listen; notify once, for what happened before."""
        self._thread.start()

    def end(self) -> None:
        """Stop listening."""
        self._closed.set()
        if self._subscription is not None:
            self._subscription.wake()

    def join(self, *, seconds: float) -> None:
        """Wait until the thread has ended, at most `seconds`."""
        self._thread.join(None if seconds == math.inf else max(0.0, seconds))

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
                return
            except (QueueError, OSError) as error:
                if not self._is_failing:
                    log.warning(events.SIGNALS_UNHEARD, queue=self._queue, error=str(error))
                self._is_failing = True
            self._closed.wait(RETRY_SECONDS)
            if self._is_done():
                return

    def _listen(self) -> None:
        subscription = self._store.signals.subscribe(self._queue, ANY)
        self._subscription = subscription
        self._is_failing = False
        try:
            self._notify()
            while not self._closed.is_set():
                if subscription.wait(timeout_seconds=IDLE_SECONDS):
                    self._notify()
                elif self._closed.is_set() or self._is_done():
                    return
        finally:
            subscription.close()


class NotificationSender:
    """Notifies other processes over a network, in a thread; several notifications of a tag become one meanwhile.

    Used in the loop.
    """

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._thread = ThreadPool(1, name="towline-signals")
        self._unsent: dict[tuple[str, str | None], int] = {}
        self._is_failing = False

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """See `Signals.publish`."""
        key = (queue, tag)
        if key in self._unsent or len(self._unsent) < MAX_UNSENT:
            self._unsent[key] = self._unsent.get(key, 0) + count
        self._send()

    def close(self) -> None:
        """Send the notifications that are on their way."""
        self._thread.close()

    def _send(self) -> None:
        if not self._unsent or not self._thread.idle:
            return
        unsent, self._unsent = self._unsent, {}

        def send() -> None:
            for (queue, tag), count in unsent.items():
                self._signals.publish(queue, tag, count)

        def sent(outcome: Exception | None) -> None:
            self._log_failure(outcome)
            self._send()

        self._thread.submit(send, sent)

    def _log_failure(self, outcome: Exception | None) -> None:
        """Log the first of several failures in a row."""
        if outcome is None:
            self._is_failing = False
            return
        if not self._is_failing:
            known = isinstance(outcome, QueueError | OSError)
            log.warning(events.SIGNALS_UNSENT, error=str(outcome), exc_info=None if known else outcome)
        self._is_failing = True
