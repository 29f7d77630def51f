"""`AsyncQueue` and `AsyncQueues`: the verbs of `Queue` and `Queues` as coroutines.

A verb runs in a thread of the client's own (ADR 32). A cancelled verb ends at once for its caller. One that changes
something is done or not, as when a connection is lost; leases that nobody receives are given back uncounted.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar

from queue_core.client.asynchronous.calls import ThreadedCalls
from queue_core.client.asynchronous.facade import AsyncQueuesVerbs, AsyncQueueVerbs
from queue_core.client.asynchronous.waits import Wait
from queue_core.client.queue import Queue, Queues
from queue_core.clock import Clock
from queue_core.limits import check_wait_seconds
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.verbs import (
    Added,
    Deletion,
    ExchangeResult,
)

if TYPE_CHECKING:
    from queue_core.client.asynchronous.schedules import AsyncSchedulesVerbs

T = TypeVar("T")

MAX_SHORT_CALLS: Final = 16
"""Calls that do not wait and run at a time; others wait for these."""
MAX_WAITS: Final = 512
"""Calls that wait for tasks at a time. One beyond these waits for a thread; its time runs meanwhile."""
CLOSE_SECONDS: Final = 5.0
"""Time that calls under way have to end when their client is closed."""


class AsyncQueues(AsyncQueuesVerbs):
    """All queues of a store or of a server, for one event loop: see `Queues`."""

    def __init__(
        self, queues: Queues, new_wait: Callable[[], Wait], *, clock: Clock, close: Callable[[], None]
    ) -> None:
        """For `open_queues_async`.

        Args:
            new_wait: makes the wait of one call.
            close: closes `queues` and what waits use.
        """
        self._queues = queues
        self._new_wait = new_wait
        self._close = close
        calls = ThreadedCalls(clock=clock, short_limit=MAX_SHORT_CALLS, waits_limit=MAX_WAITS)
        super().__init__(calls, lambda: queues)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def queue(self, name: str) -> "AsyncQueue":
        """See `Queues.queue`."""
        return AsyncQueue(self, name, self._calls, lambda: self._queues.queue(name))

    @property
    def schedules(self) -> "AsyncSchedulesVerbs":
        """See `Queues.schedules`."""
        from queue_core.client.asynchronous.schedules import AsyncSchedulesVerbs  # most programs have no schedule

        return AsyncSchedulesVerbs(self._calls, lambda: self._queues.schedules)

    async def wait_ready(self, queues: Sequence[tuple[str, TagFilter]], *, wait_seconds: float) -> str | None:
        """See `Queues.wait_ready`."""
        check_wait_seconds(wait_seconds)
        wait = self._new_wait()
        left = self._time_left(wait_seconds)
        return await self._calls.wait(
            lambda: wait.ready(queues, left()), interrupt=wait.interrupt, discard=lambda _found: None
        )

    async def close(self) -> None:
        """End the waits, let the other calls end, and close the connections; nothing is lost."""
        self._calls.end_waits()
        await self._calls.last(self._close_now)

    # -- for the queues of this client ---------------------------------------------------------------------------------

    async def call_waiting(
        self, name: str, make: Callable[[Queue, float], T], *, wait_seconds: float, discard: Callable[[Queue, T], None]
    ) -> T:
        """Make a call on a queue that waits for up to `wait_seconds`; `discard` undoes it if nobody receives it."""
        wait = self._new_wait()
        left = self._time_left(wait_seconds)
        return await self._calls.wait(
            lambda: wait.on_queue(name, lambda queue: make(queue, left())),
            interrupt=wait.interrupt,
            discard=lambda result: discard(self._queues.queue(name), result),
        )

    def _time_left(self, wait_seconds: float) -> Callable[[], float]:
        """Return a function for the rest of a wait that begins now: its thread may begin later."""
        clock = self._calls.clock
        ends_at = clock.monotonic() + wait_seconds
        return lambda: max(0.0, ends_at - clock.monotonic())

    def _close_now(self) -> None:
        self._calls.join(timeout_seconds=CLOSE_SECONDS)
        self._close()


class AsyncQueue(AsyncQueueVerbs):
    """One queue: see `Queue`."""

    def __init__(self, queues: AsyncQueues, name: str, calls: ThreadedCalls, find: Callable[[], Queue]) -> None:
        super().__init__(calls, find)
        self._queues = queues
        self._name = name

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def add(self, tasks: bytes | NewTask | Iterable[NewTask], *, connection: object | None = None) -> list[Added]:
        """See `Queue.add`. A `connection` is a plain `psycopg.Connection`, used by nobody else meanwhile."""
        return await self._call(lambda queue: queue.add(tasks, connection=connection))

    async def lease(
        self,
        count: int = 1,
        *,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> list[Lease]:
        """See `Queue.lease`. Leases granted to a caller that was cancelled meanwhile are given back uncounted."""
        check_wait_seconds(wait_seconds)
        return await self._queues.call_waiting(
            self._name,
            lambda queue, left: queue.lease(count, seconds=seconds, tags=tags, worker=worker, wait_seconds=left),
            wait_seconds=wait_seconds,
            discard=_give_back,
        )

    async def exchange(
        self,
        deletions: Sequence[Deletion],
        *,
        count: int = 1,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> ExchangeResult:
        """See `Queue.exchange`. When its caller is cancelled, tasks are deleted or not; leases are as for `lease`."""
        check_wait_seconds(wait_seconds)
        return await self._queues.call_waiting(
            self._name,
            lambda queue, left: queue.exchange(
                deletions, count=count, seconds=seconds, tags=tags, worker=worker, wait_seconds=left
            ),
            wait_seconds=wait_seconds,
            discard=lambda queue, exchanged: _give_back(queue, exchanged[0]),
        )

    async def close(self) -> None:
        """Close the client, and with it all queues of the same store or server."""
        await self._queues.close()


def _give_back(queue: Queue, leases: Sequence[Lease]) -> None:
    """Give leases back as if they had not been granted."""
    if leases:
        queue.release(leases, charge="uncounted")
