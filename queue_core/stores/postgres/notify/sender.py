"""Send to the database, in few calls, which tasks became leasable and which waiters wait again.

One thread; changes during a call go with the next one, and are kept while the database can't be reached.
"""

import atexit
from dataclasses import dataclass, field
from threading import Condition, Thread

from queue_core.errors import StoreError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.notify.waiters import PostgresSubscription, rows

SIGNALS_DROPPED = "signals.dropped"
"""Notifications could not be sent in time and were dropped: waiters poll."""

PACE_SECONDS = 0.005
"""The pause after a call that woke no waiter, which bounds the cost of a busy queue without waiters."""
RETRY_SECONDS = 0.2
"""The pause after a failed call."""
FLUSH_SECONDS = 2.0
"""How long `close` waits for pending changes to be sent."""
MAX_WAKES_PER_CALL = 1000
"""The most pairs of queue and tag in one call."""
MAX_TASKS = 2**31 - 1

_SIGNAL = Statement(
    "towline_signal",
    "SELECT towline.signal($1, $2, $3, $4, $5, $6, $7)",
    (pack.int8, pack.int8s, pack.text, pack.texts, pack.texts, pack.int4s, pack.boolean),
)

log = get_logger()


@dataclass(slots=True)
class _Batch:
    """The changes to send. A closed waiter is never in `ready`."""

    tasks: dict[tuple[str, str | None], int] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    ready: dict[int, PostgresSubscription] = field(default_factory=dict)
    passing: bool = False

    def __bool__(self) -> bool:
        return bool(self.tasks or self.closed or self.ready or self.passing)


class NotifySender:
    """See `WakeUpSender`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.listener_number = 0
        """The number of this process's listener; 0: it has none."""
        self._pool = pool
        self._changed = Condition()
        self._pending = _Batch()
        self._thread: Thread | None = None
        self._is_idle = False
        self._is_closed = False

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """See `WakeUpSender`."""
        with self._changed:
            tasks = self._pending.tasks
            key = (queue, tag)
            tasks[key] = tasks.get(key, 0) + count
            self._wake_thread_locked()

    def ready(self, waiter: PostgresSubscription) -> None:
        """See `WakeUpSender`."""
        with self._changed:
            self._pending.ready[waiter.number] = waiter
            self._wake_thread_locked()

    def unregister(self, number: int) -> None:
        """See `WakeUpSender`."""
        with self._changed:
            self._pending.ready.pop(number, None)
            self._pending.closed.append(number)
            self._wake_thread_locked()

    def pass_on(self) -> None:
        """Pass on the wake-ups that were not taken up."""
        with self._changed:
            self._pending.passing = True
            self._wake_thread_locked()

    def leave_to_parent(self) -> None:
        """In the child of a fork: leave the thread and its pending changes to the parent."""
        atexit.unregister(self.close)

    def close(self) -> None:
        """Send what is pending, if the database can be reached, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(FLUSH_SECONDS)
            atexit.unregister(self.close)

    def _wake_thread_locked(self) -> None:
        if self._is_idle:
            self._changed.notify()
        elif self._thread is None and not self._is_closed:
            self._thread = Thread(target=self._work, name="towline-sender", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a program may add and end at once

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            pause_seconds = RETRY_SECONDS
            try:
                if self._send(batch):
                    continue
                pause_seconds = PACE_SECONDS
            except StoreUnavailableError:
                self._put_back(batch)
                if self._is_closed:
                    return
            except StoreError as error:  # only a hint is lost: waiters poll before long
                log.warning(SIGNALS_DROPPED, store=self._pool.url, error=str(error))
            except Exception:
                log.exception(SIGNALS_DROPPED)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, timeout=pause_seconds)

    def _next(self) -> _Batch | None:
        with self._changed:
            self._is_idle = True
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            self._is_idle = False
            batch, self._pending = self._pending, _Batch()
            if len(batch.tasks) > MAX_WAKES_PER_CALL:
                later = list(batch.tasks)[MAX_WAKES_PER_CALL:]
                self._pending.tasks = {key: batch.tasks.pop(key) for key in later}
            return batch or None

    def _send(self, batch: _Batch) -> int:
        listener_number = self.listener_number
        tasks = sorted(batch.tasks.items(), key=lambda item: item[0][0])
        ready = rows(batch.ready.values()) if batch.ready and listener_number else None
        queues = [queue for (queue, _), _ in tasks]
        tags = [tag for (_, tag), _ in tasks]
        counts = [min(count, MAX_TASKS) for _, count in tasks]
        with self._pool.lend() as connection:
            ((woken,),) = connection.runner.call(
                _SIGNAL, (listener_number, batch.closed, ready, queues, tags, counts, batch.passing)
            )
        return int(woken)

    def _put_back(self, batch: _Batch) -> None:
        with self._changed:
            now = self._pending
            for key, tasks in batch.tasks.items():
                now.tasks[key] = now.tasks.get(key, 0) + tasks
            closed = set(now.closed)
            now.ready = {
                **{number: waiter for number, waiter in batch.ready.items() if number not in closed},
                **now.ready,
            }
            now.closed = [*batch.closed, *now.closed]
            now.passing = now.passing or batch.passing
