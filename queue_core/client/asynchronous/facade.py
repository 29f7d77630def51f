"""The verbs of `Queue` and `Queues` as coroutines.

Written by `python -m tests.support.async_facade`: edit queue_core/client/queue.py instead, and run it again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.client.asynchronous.calls import ThreadedCalls
from queue_core.client.lazy_module import LazyModule
from queue_core.client.queue import Ended, Error, Queue, Queues, Renewable
from queue_core.clock import Instant
from queue_core.stats import FinishedLease, History, LeasingWorker, QueueStats, TagStats
from queue_core.task import ALL_STATES, ANY, Lease, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import Added, Busy, Observation, ObservationQuery, Page, Renewed, Storage

if TYPE_CHECKING:
    from queue_core.unit import queue_verbs, registration_verbs, search_verbs, store_verbs
    from queue_core.verbs import criteria
    from queue_core.verbs.criteria import MatchedBatch, Search, SearchPage
    from queue_core.verbs.matching import Action
    from queue_core.verbs.registration import Registration
else:
    criteria = LazyModule("queue_core.verbs.criteria")
    queue_verbs = LazyModule("queue_core.unit.queue_verbs")
    search_verbs = LazyModule("queue_core.unit.search_verbs")
    store_verbs = LazyModule("queue_core.unit.store_verbs")
    registration_verbs = LazyModule("queue_core.unit.registration_verbs")
T = TypeVar("T")


class AsyncQueueVerbs:
    """The verbs of one queue that do not wait: see `Queue`."""

    def __init__(self, calls: ThreadedCalls, find: Callable[[], Queue]) -> None:
        self._calls = calls
        self._find = find

    async def _call(self, make: Callable[[Queue], T]) -> T:
        return await self._calls.run(lambda: make(self._find()))

    async def renew(self, leases: Renewable | Iterable[Renewable], *, seconds: float | None = None) -> list[Renewed]:
        """See `Queue.renew`."""
        return await self._call(lambda it: it.renew(leases, seconds=seconds))

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
            lambda it: it.release(
                leases, delay_seconds=delay_seconds, charge=charge, dead_reason=dead_reason, error=error
            )
        )

    async def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """See `Queue.delete`."""
        return await self._call(lambda it: it.delete(leases, then=then, connection=connection))

    async def delete_by_name(self, names: str | Iterable[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """See `Queue.delete_by_name`."""
        return await self._call(lambda it: it.delete_by_name(names))

    async def purge(self, *, tags: TagFilter = ANY, dead: Literal["keep", "only"] = "keep") -> int:
        """See `Queue.purge`."""
        return await self._call(lambda it: it.purge(tags=tags, dead=dead))

    async def pause(self) -> None:
        """See `Queue.pause`."""
        await self._call(lambda it: it.pause())

    async def resume(self) -> None:
        """See `Queue.resume`."""
        await self._call(lambda it: it.resume())

    async def redrive(self, names: str | Iterable[str] | None = None, *, tags: TagFilter = ANY) -> int:
        """See `Queue.redrive`."""
        return await self._call(lambda it: it.redrive(names, tags=tags))

    async def stats(self, *, tags: TagFilter = ANY) -> QueueStats:
        """See `Queue.stats`."""
        return await self._call(lambda it: it.stats(tags=tags))

    async def tag_stats(self, *, after: str | None = None, limit: int = 100) -> list[TagStats]:
        """See `Queue.tag_stats`."""
        return await self._call(lambda it: it.tag_stats(after=after, limit=limit))

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
            lambda it: it.peek(
                tags=tags, states=states, names=names, after=after, limit=limit, payload_bytes=payload_bytes
            )
        )

    async def search(
        self, search: "Search", *, after: int = 0, limit: int = 100, scan: int = 10000, payload_bytes: int = 0
    ) -> "SearchPage":
        """See `Queue.search`."""
        return await self._call(
            lambda it: it.search(search, after=after, limit=limit, scan=scan, payload_bytes=payload_bytes)
        )

    async def change_matching(
        self,
        action: "Action",
        search: "Search",
        *,
        dry_run: bool,
        after: int = 0,
        scan: int = 10000,
        eta: Instant | None = None,
        tag: str | None = None,
    ) -> "MatchedBatch":
        """See `Queue.change_matching`."""
        return await self._call(
            lambda it: it.change_matching(action, search, dry_run=dry_run, after=after, scan=scan, eta=eta, tag=tag)
        )

    async def history(
        self, *, names: str | Iterable[str] | None = None, before: int | None = None, limit: int = 100
    ) -> History:
        """See `Queue.history`."""
        return await self._call(lambda it: it.history(names=names, before=before, limit=limit))


class AsyncQueuesVerbs:
    """The verbs of all queues of a store that do not wait: see `Queues`."""

    def __init__(self, calls: ThreadedCalls, find: Callable[[], Queues]) -> None:
        self._calls = calls
        self._find = find

    async def _call(self, make: Callable[[Queues], T]) -> T:
        return await self._calls.run(lambda: make(self._find()))

    async def put_queue(self, spec: QueueSpec) -> bool:
        """See `Queues.put_queue`."""
        return await self._call(lambda it: it.put_queue(spec))

    async def delete_queue(self, name: str) -> int:
        """See `Queues.delete_queue`."""
        return await self._call(lambda it: it.delete_queue(name))

    async def queues(self) -> list[QueueSpec]:
        """See `Queues.queues`."""
        return await self._call(lambda it: it.queues())

    async def storage(self) -> Storage:
        """See `Queues.storage`."""
        return await self._call(lambda it: it.storage())

    async def set_storage_limit(self, limit_bytes: int | None) -> None:
        """See `Queues.set_storage_limit`."""
        await self._call(lambda it: it.set_storage_limit(limit_bytes))

    async def degradations(self) -> list[str]:
        """See `Queues.degradations`."""
        return await self._call(lambda it: it.degradations())

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
        return await self._call(
            lambda it: it.observe(queue, tags=tags, after=after, workers=workers, ahead_seconds=ahead_seconds)
        )

    async def observe_many(self, queries: Sequence[ObservationQuery]) -> list[Observation | None]:
        """See `Queues.observe_many`."""
        return await self._call(lambda it: it.observe_many(queries))

    async def retire_worker(self, worker: str, *, busy: Busy = "keep") -> bool:
        """See `Queues.retire_worker`."""
        return await self._call(lambda it: it.retire_worker(worker, busy=busy))

    async def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED) -> list[FinishedLease]:
        """See `Queues.release_worker`."""
        return await self._call(lambda it: it.release_worker(worker, failure=failure))

    async def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        """See `Queues.lead`."""
        return await self._call(lambda it: it.lead(name, holder, seconds=seconds))

    async def keep(self, name: str, text: str) -> None:
        """See `Queues.keep`."""
        await self._call(lambda it: it.keep(name, text))

    async def kept(self, name: str) -> str | None:
        """See `Queues.kept`."""
        return await self._call(lambda it: it.kept(name))

    async def register(self, kind: str, name: str, facts: Mapping[str, str], *, seconds: float) -> None:
        """See `Queues.register`."""
        await self._call(lambda it: it.register(kind, name, facts, seconds=seconds))

    async def present_workers(self) -> list[LeasingWorker]:
        """See `Queues.present_workers`."""
        return await self._call(lambda it: it.present_workers())

    async def registrations(self, kind: str) -> list["Registration"]:
        """See `Queues.registrations`."""
        return await self._call(lambda it: it.registrations(kind))
