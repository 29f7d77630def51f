"""The parts of one server put together: the store's service behind a committer, waiting leases, events and tokens."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from queue_core.clock import Clock
from queue_core.errors import InvalidRequestError, StoreError, StoreUnavailableError
from queue_core.events import EventLog
from queue_core.process.descriptors import file_limit, max_connections_for
from queue_core.process.places import Places
from queue_core.server.base.bodies.body_limit import BodyLimit
from queue_core.server.base.event_stream import EventRing
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.callers.access import ACCESS_OF_VERB, QueueAccess, check_scope
from queue_core.server.callers.access import check_queue as check_access_to
from queue_core.server.callers.auth import Authorizer, Principal
from queue_core.server.commit.group_commit import Committer, GroupCommitter
from queue_core.server.commit.thread_pool import ThreadPool
from queue_core.server.commit.threaded import ThreadedCommitter
from queue_core.server.fast_path import FastVerbs
from queue_core.server.leases.rates import LeaseCountRecorder, LeaseCounts, LeaseRate
from queue_core.server.leases.seals import LeaseSeals
from queue_core.server.leases.waiters import Watcher
from queue_core.server.leases.waiting import WaitingLeases
from queue_core.server.schemas import Health
from queue_core.server.watches.clock_watch import ClockWatch
from queue_core.server.watches.erasures import QueueErasures
from queue_core.server.watches.held_snapshots import SnapshotWatch
from queue_core.server.wings import Wing, wing_classes
from queue_core.store import Store
from queue_core.stores import check_can_back_up, check_can_vacuum
from queue_core.task import QueueSpec, TagFilter
from queue_core.unit.outbox import Outbox
from queue_core.unit.service import Operation, QueueService
from queue_core.unit.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from queue_core.stores.sqlite.backup import Backup

PROBE_CACHE_SECONDS = 1.0
"""Seconds for which the result of a probe (and, of a local store, of its write) is used again."""
PROBE_TIMEOUT_SECONDS = 2.0
"""Seconds that a store has for a probe: an orchestrator that probes would itself give up after a few."""
PROBE_LEAD = "readyz"
"""The lead that a probe takes for 0 seconds: a write without an effect."""
MAX_READS_AT_ONCE = 2
"""Threads for reads."""
READ_TIMEOUT_SECONDS = 10.0
"""Seconds that a read may take: a store across a network may never answer."""
MAX_QUEUED_READS = 1000
"""Reads that wait or are under way, at most; further ones fail."""

T = TypeVar("T")
W = TypeVar("W", bound=Wing)


class Readiness:
    """Probes whether the store takes changes, for `/readyz`. Lives in the server's loop."""

    def __init__(
        self, committer: Committer, store: Store, clock: Clock, *, run: str, check: Callable[[], Awaitable[None]]
    ) -> None:
        """Args:
        run: the holder of the probe's lead.
        check: raises any other `StoreError` that keeps the server from being ready.
        """
        self._committer = committer
        self._store = store
        self._clock = clock
        self._run = run
        self._check = check
        self._probing: asyncio.Task[StoreError | None] | None = None
        self._probed_at = 0.0
        self._wrote_at: float | None = None

    async def check(self) -> None:
        """Raise the `StoreError` that keeps the store from taking a change."""
        now = self._clock.monotonic()
        cache_seconds = PROBE_CACHE_SECONDS if self._committer.is_threaded else 0.0
        if self._probing is None or (self._probing.done() and now - self._probed_at >= cache_seconds):
            self._probed_at = now
            self._probing = asyncio.ensure_future(self._probe_store())
        failure = await asyncio.shield(self._probing)
        if failure is not None:
            raise failure

    async def _probe_store(self) -> StoreError | None:
        try:
            self._store.check_room()
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                await self._check()
                await self._committer.run(self._probe)
        except StoreError as error:
            return error
        except TimeoutError:
            return self._committer.failure or StoreUnavailableError(
                f"the store has not answered for {PROBE_TIMEOUT_SECONDS:g} s"
            )
        return None

    def _probe(self, work: UnitOfWork) -> None:
        now = self._clock.monotonic()
        if self._committer.is_threaded or self._wrote_at is None or now - self._wrote_at >= PROBE_CACHE_SECONDS:
            self._wrote_at = now
            work.transaction.lead(PROBE_LEAD, self._run, seconds=0.0, now=work.now)


class ServerState:
    """All state of a server; used in its loop. Closing it leaves the store open."""

    def __init__(
        self, store: Store, options: ServeOptions, *, clock: Clock | None = None, log: EventLog | None = None
    ) -> None:
        self.options = options
        self.run = secrets.token_hex(6)
        self.ring = EventRing(log, size=options.recent_events, lifecycle=options.lifecycle)
        self.service = QueueService(store, clock=clock, log=self.ring, wake=self._wake)
        self.committer: Committer = (
            ThreadedCommitter(self.service, after_commit=self._after_commit)
            if store.is_remote
            else GroupCommitter(self.service, after_commit=self._after_commit)
        )
        connections = max_connections_for(file_limit())
        max_waiting = min(options.max_waiting, connections - connections // 8)  # the others are for short calls
        self.waiting = WaitingLeases(self.service, self.committer, max_waiting=max_waiting)
        self.long_waits = Places(connections // 2)
        """The places of calls that wait for a task without leasing it, or for a message."""
        self.clock_watch = ClockWatch(self.committer, self.service.clock, look_for_etas=self.waiting.look_for_etas)
        self.authorizer = Authorizer(options)
        self.seals = LeaseSeals(self.service, has_callers=bool(self.authorizer.in_force))
        self.erasures = QueueErasures(self.service, options, emptied=self.seals.forget)
        self.snapshots = SnapshotWatch(self.service.store)
        self.readiness = Readiness(
            self.committer, self.service.store, self.service.clock, run=self.run, check=self._check_erasures
        )
        self.body_limit = BodyLimit(
            options.max_body_bytes, monotonic=self.service.clock.monotonic, read=self._read_body_limit
        )
        self.body_limit.learn(options.queues)
        self.access = QueueAccess()
        self.fast_verbs = FastVerbs(
            self.authorizer, self.committer, self.waiting, self.body_limit, self.access, self.seals
        )
        self.lease_counts = LeaseCounts()
        self.lease_rate = LeaseRate()
        self._reading_limits: asyncio.Future[None] | None = None
        self._readers = ThreadPool(MAX_READS_AT_ONCE, name="towline-read")
        self._maintenance = ThreadPool(1, name="towline-maintenance")
        self._lease_recorder = LeaseCountRecorder(self.lease_counts, self.service, self._readers)
        self.wings: tuple[Wing, ...] = tuple(kind(self) for kind in wing_classes())
        self.fast_endpoints = {path: endpoint for wing in self.wings for path, endpoint in wing.fast.items()}
        """The wings' endpoints on the fast path, by their paths."""

    def wing(self, kind: type[W]) -> W:
        """Return the wing of this class."""
        return next(one for one in self.wings if isinstance(one, kind))

    def renew_tokens(self, tokens: Sequence[AccessToken]) -> None:
        """Accept these tokens in place of the present ones. Any thread may call this."""
        self.authorizer.renew(tokens)
        self.seals.has_callers = bool(self.authorizer.in_force)

    def health(self) -> Health:
        """Return the answer to a health probe."""
        health: Health = {"status": "ok", "run": self.run}
        return {**health, "serves": self.options.serves} if self.options.serves else health

    async def check_queue(self, caller: Principal, queue: str, verb: str) -> None:
        """Raise `PermissionDeniedError` unless the caller's scope and the queue's acl allow a verb.

        A queue that does not exist is the verb's own matter.
        """
        check_scope(caller, queue)
        if not caller.is_admin and verb != "declare-queue":
            access = ACCESS_OF_VERB[verb]
            spec = self.access.cached(queue, now=self.service.clock.now())
            if spec is not None:
                check_access_to(caller, spec, access)
            else:
                await self.read(lambda work: self.access.check_each(work, caller, [queue], access))

    async def read(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, in a thread, so that no other call waits for it."""
        if self.committer.is_syncing:
            await self.committer.run(lambda _work: None)  # readers see nothing before it is durable
        return await self.in_thread(lambda: self.service.read(operation))

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Make a call in a reading thread. Raises `StoreUnavailableError` when it takes too long."""
        if self._readers.under_way >= MAX_QUEUED_READS:
            raise StoreUnavailableError(
                f"{MAX_QUEUED_READS} reads wait for the store, which is this server's limit; try again"
            )
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(outcome: T | Exception) -> None:
            if answer.done():
                return
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._readers.submit(call, done)
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                return await answer
        except TimeoutError:
            raise StoreUnavailableError(
                f"the store has not answered for {READ_TIMEOUT_SECONDS:g} s; try again"
            ) from None

    def _read_body_limit(self) -> bool:
        """Have the limit on bodies follow the settings of all queues: at once, or soon for a store over a network."""

        def specs(work: UnitOfWork) -> list[QueueSpec]:
            return work.transaction.queues()

        async def read() -> None:
            with contextlib.suppress(StoreError):  # the next body over the limit has them read again
                self.body_limit.learn(await self.in_thread(lambda: self.service.read(specs)))

        if self.service.store.is_remote:
            self._reading_limits = asyncio.ensure_future(read())
            return False
        with contextlib.suppress(StoreError):
            self.body_limit.learn(self.service.read(specs))
        return True

    async def _check_erasures(self) -> None:
        if self.erasures.is_possible:
            await self.in_thread(self.erasures.check)

    async def back_up(self) -> "Backup":
        """Copy the store beside its file. Raises `InvalidRequestError` if it has no file."""
        store = self.service.store
        check_can_back_up(store.url)
        from queue_core.stores.sqlite.backup import back_up_beside
        from queue_core.stores.sqlite.store import SqliteStore

        if not isinstance(store, SqliteStore):
            raise InvalidRequestError(f"{store.url} is not a file that can be copied")
        return await self._maintain(store.path, lambda: back_up_beside(store))

    async def vacuum(self) -> tuple[int, int]:
        """See `SqliteStore.vacuum`. Raises `InvalidRequestError` if the store has no file."""
        store = self.service.store
        check_can_vacuum(store.url)
        from queue_core.stores.sqlite.store import SqliteStore

        if not isinstance(store, SqliteStore):
            raise InvalidRequestError(f"{store.url} is not a file that can be vacuumed")
        return await self._maintain(store.path, store.vacuum)

    async def _maintain(self, path: Path, work: Callable[[], T]) -> T:
        """Work on the store's file in a thread, one after the other."""
        finished: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(outcome: T | Exception) -> None:
            if finished.done():
                return
            if isinstance(outcome, OSError):
                finished.set_exception(StoreUnavailableError(f"can't write beside {path}: {outcome.strerror}"))
            elif isinstance(outcome, Exception):
                finished.set_exception(outcome)
            else:
                finished.set_result(outcome)

        self._maintenance.submit(work, done)
        return await finished

    def watch(self, wanted: Sequence[tuple[str, TagFilter]]) -> "ReadyWatch":
        """Begin to watch for ready tasks."""
        return ReadyWatch(self.waiting, wanted)

    def _wake(self, outbox: Outbox) -> None:
        self.waiting.wake(outbox.all_wakes())

    def _after_commit(self) -> None:
        self.waiting.after_commit()
        if not self._lease_recorder.is_scheduled:
            self._lease_recorder.schedule()

    def start(self) -> None:
        """Begin to record; called in the loop before the first request."""
        self.seals.try_load()
        self._lease_recorder.start()
        self.erasures.start()
        self.clock_watch.start()
        self.snapshots.start()

    def stop(self) -> None:
        """Answer all waiting calls, so that a graceful stop is quick."""
        self.waiting.stop()
        for wing in self.wings:
            wing.stop()
        self.ring.stop()
        self.clock_watch.stop()
        self._lease_recorder.stop()

    def close(self) -> None:
        """End the threads."""
        self.erasures.close()
        self.snapshots.close()
        self.waiting.close()
        self._readers.close()
        self._maintenance.close()
        for wing in self.wings:
            wing.close()
        self.committer.close()


class ReadyWatch:
    """A caller that waits for ready tasks, once."""

    def __init__(self, waiting: WaitingLeases, wanted: Sequence[tuple[str, TagFilter]]) -> None:
        self._waiting = waiting
        self._ready = asyncio.Event()
        self._watcher = Watcher(wanted, lambda _queue: self._ready.set())
        waiting.watch(self._watcher)

    async def wait(self, seconds: float) -> None:
        """Wait until a task may be ready, or the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Stop watching."""
        self._waiting.unwatch(self._watcher)
