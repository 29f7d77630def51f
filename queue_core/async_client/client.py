"""`AsyncQueue` and `AsyncQueues`: the verbs of `Queue` and `Queues` as coroutines.

A verb runs in a thread of the client's own (ADR 32). A cancelled verb ends at once for its caller. One that changes
something is done or not, as when a connection is lost; leases that nobody receives are given back uncounted.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, Self, TypeVar

from queue_core.api import Ended, Error, Queue, Queues, Renewable
from queue_core.async_client.calls import ThreadedCalls
from queue_core.async_client.waits import Wait
from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.clock import Clock
from queue_core.limits import check_wait_seconds
from queue_core.stats import FinishedLease, History, QueueStats, TagStats
from queue_core.task import ALL_STATES, ANY, Lease, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import (
    Added,
    Busy,
    Deletion,
    ExchangeResult,
    Observation,
    ObservationQuery,
    Page,
    Renewed,
    Storage,
)

T = TypeVar("T")

MAX_SHORT_CALLS: Final = 16
"""Calls that do not wait and run at a time; others wait for these."""
MAX_WAITS: Final = 512
"""Calls that wait for tasks at a time. One beyond these waits for a thread; its time runs meanwhile."""
CLOSE_SECONDS: Final = 5.0
"""Time that calls under way have to end when their client is closed."""


class AsyncQueues:
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
        self._calls = ThreadedCalls(clock=clock, short_limit=MAX_SHORT_CALLS, waits_limit=MAX_WAITS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def queue(self, name: str) -> "AsyncQueue":
        """See `Queues.queue`."""
        return AsyncQueue(self, name)

    async def put_queue(self, spec: QueueSpec) -> bool:
        """See `Queues.put_queue`."""
        return await self.call(lambda queues: queues.put_queue(spec))

    async def delete_queue(self, name: str) -> int:
        """See `Queues.delete_queue`."""
        return await self.call(lambda queues: queues.delete_queue(name))

    async def queues(self) -> list[QueueSpec]:
        """See `Queues.queues`."""
        return await self.call(lambda queues: queues.queues())

    async def storage(self) -> Storage:
        """See `Queues.storage`."""
        return await self.call(lambda queues: queues.storage())

    async def set_storage_limit(self, limit_bytes: int | None) -> None:
        """See `Queues.set_storage_limit`."""
        await self.call(lambda queues: queues.set_storage_limit(limit_bytes))

    async def observe(
        self,
        queue: str,
        *,
        tags: TagFilter = ANY,
        after: int = 0,
        workers: Sequence[str] = (),
        ahead_seconds: float = 0.0,
    ) -> Observation:
        """See `Queues.observe`."""
        return await self.call(
            lambda queues: queues.observe(queue, tags=tags, after=after, workers=workers, ahead_seconds=ahead_seconds)
        )

    async def observe_many(self, queries: Sequence[ObservationQuery]) -> list[Observation | None]:
        """See `Queues.observe_many`."""
        return await self.call(lambda queues: queues.observe_many(queries))

    async def retire_worker(self, worker: str, *, busy: Busy = "keep") -> bool:
        """See `Queues.retire_worker`."""
        return await self.call(lambda queues: queues.retire_worker(worker, busy=busy))

    async def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED) -> list[FinishedLease]:
        """See `Queues.release_worker`."""
        return await self.call(lambda queues: queues.release_worker(worker, failure=failure))

    async def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        """See `Queues.lead`."""
        return await self.call(lambda queues: queues.lead(name, holder, seconds=seconds))

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

    async def call(self, make: Callable[[Queues], T]) -> T:
        """Make a call that does not wait, in a thread."""
        return await self._calls.run(partial(make, self._queues))

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


class AsyncQueue:
    """One queue: see `Queue`."""

    def __init__(self, queues: AsyncQueues, name: str) -> None:
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

    async def renew(self, leases: Renewable | Iterable[Renewable], *, seconds: float | None = None) -> list[Renewed]:
        """See `Queue.renew`."""
        return await self._call(lambda queue: queue.renew(leases, seconds=seconds))

    async def release(
        self,
        leases: Lease | str | Iterable[Lease | str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
        error: Error | None = None,
    ) -> list[FinishedLease]:
        """See `Queue.release`."""
        return await self._call(
            lambda queue: queue.release(
                leases, delay_seconds=delay_seconds, charge=charge, dead_reason=dead_reason, error=error
            )
        )

    async def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """See `Queue.delete`, and `add` for `connection`."""
        return await self._call(lambda queue: queue.delete(leases, then=then, connection=connection))

    async def delete_by_name(self, names: str | Iterable[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """See `Queue.delete_by_name`."""
        return await self._call(lambda queue: queue.delete_by_name(names))

    async def purge(self, *, tags: TagFilter = ANY, dead: Literal["keep", "only"] = "keep") -> int:
        """See `Queue.purge`."""
        return await self._call(lambda queue: queue.purge(tags=tags, dead=dead))

    async def pause(self) -> None:
        """See `Queue.pause`."""
        await self._call(lambda queue: queue.pause())

    async def resume(self) -> None:
        """See `Queue.resume`."""
        await self._call(lambda queue: queue.resume())

    async def redrive(self, names: str | Iterable[str] | None = None, *, tags: TagFilter = ANY) -> int:
        """See `Queue.redrive`."""
        return await self._call(lambda queue: queue.redrive(names, tags=tags))

    async def stats(self, *, tags: TagFilter = ANY) -> QueueStats:
        """See `Queue.stats`."""
        return await self._call(lambda queue: queue.stats(tags=tags))

    async def tag_stats(self, *, after: str | None = None, limit: int = 100) -> list[TagStats]:
        """See `Queue.tag_stats`."""
        return await self._call(lambda queue: queue.tag_stats(after=after, limit=limit))

    async def peek(
        self,
        *,
        tags: TagFilter = ANY,
        states: frozenset[TaskState] = ALL_STATES,
        names: Sequence[str] | None = None,
        after: int = 0,
        limit: int = 100,
        payload_bytes: int = 0,
    ) -> Page:
        """See `Queue.peek`."""
        return await self._call(
            lambda queue: queue.peek(
                tags=tags, states=states, names=names, after=after, limit=limit, payload_bytes=payload_bytes
            )
        )

    async def history(
        self, *, names: str | Iterable[str] | None = None, before: int | None = None, limit: int = 100
    ) -> History:
        """See `Queue.history`."""
        return await self._call(lambda queue: queue.history(names=names, before=before, limit=limit))

    async def close(self) -> None:
        """Close the client, and with it all queues of the same store or server."""
        await self._queues.close()

    async def _call(self, make: Callable[[Queue], T]) -> T:
        return await self._queues.call(lambda queues: make(queues.queue(self._name)))


def _give_back(queue: Queue, leases: Sequence[Lease]) -> None:
    """Give leases back as if they had not been granted."""
    if leases:
        queue.release(leases, charge="uncounted")
