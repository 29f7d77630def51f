"""Wakes waiting lease calls of every process on the same database, by NOTIFY; see `schema/notify.sql`.

Only a hint: all that can be lost is time.
"""

from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.notify.listener import NotifyListener
from queue_core.stores.postgres.notify.sender import NotifySender
from queue_core.stores.postgres.notify.waiters import PostgresSubscription, PostgresWaiters
from queue_core.task import TagFilter


class NotifySignals:
    """`Signals`. A process that never waits opens no connection for it; publishing is done after it returned."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._sender = NotifySender(pool)
        self._waiters = PostgresWaiters(self._sender)
        self._listener = NotifyListener(pool, self._waiters, self._sender)

    @property
    def trouble(self) -> str:
        """Why waiters of this process can't be woken, and what to do about it; "" when they can, or nobody waited."""
        return self._listener.trouble

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake up to `count` fitting waiters, most recently active first; one that is gone is passed over."""
        self._sender.publish(queue, tag, count)

    def subscribe(self, queue: str, tags: TagFilter) -> PostgresSubscription:
        """Begin to listen. A waiter whose last wait ended in vain counts as active since that wait began.

        Where the store can't be reached, the waiter is woken when it is back.
        """
        self._pool.check_usable()
        waiter = self._waiters.add(queue, tags, now=self._pool.clock.now())
        self._listener.register(waiter)
        return waiter

    def leave_to_parent(self) -> None:
        """In the child of a fork, which waits for nothing and has published nothing yet."""
        self._sender.leave_to_parent()

    def close(self) -> None:
        """Tell what is still to be told, and listen no more."""
        self._sender.close()
        self._listener.close()
