"""Wake waiting lease calls of every process on the same database with NOTIFY; see `schema/notify.sql`.

A wake-up is only a hint: if one is lost, a waiter finds its task later. See ADR 8.
"""

from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.notify.listener import NotifyListener
from queue_core.stores.postgres.notify.sender import NotifySender
from queue_core.stores.postgres.notify.waiters import PostgresSubscription, PostgresWaiters
from queue_core.task import TagFilter


class NotifySignals:
    """See `Signals`. A process without waiters opens no connection to listen; `publish` returns at once."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sender = NotifySender(pool)
        self._waiters = PostgresWaiters(self._sender)
        self._listener = NotifyListener(pool, self._waiters, self._sender)

    @property
    def trouble(self) -> str:
        """The reason why waiters of this process can't be woken, with its remedy; "" when they can, or none waited."""
        return self._listener.trouble

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake up to `count` fitting waiters, most recently active first; dead processes are passed over."""
        self._sender.publish(queue, tag, count)

    def subscribe(self, queue: str, tags: TagFilter) -> PostgresSubscription:
        """Register a waiter. One whose last wait timed out counts as active since that wait began.

        While the database can't be reached, the waiter is woken once it is back.
        """
        self._pool.check_usable()
        waiter = self._waiters.add(queue, tags, now=self._pool.clock.now())
        self._listener.register(waiter)
        return waiter

    def leave_to_parent(self) -> None:
        """In the child of a fork, which has no waiters and has published nothing yet."""
        self._sender.leave_to_parent()

    def close(self) -> None:
        """Send what is pending, and stop listening."""
        self._sender.close()
        self._listener.close()
