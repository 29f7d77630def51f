"""Group commit: many callers share a transaction, and no caller is answered before it is durable (ADR 1).

For a store in this process: what arrives in one round of the loop shares a transaction and a sync (ADR 16).
ADR 25 and 27 tell what else was tried, and removed.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from queue_core.errors import OutcomeUnknownError, QueueError, StoreError, StoreFullError
from queue_core.fast_values import value
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.commit.thread_pool import ThreadPool
from queue_core.store import Unit
from queue_core.unit.service import Batch, Operation, QueueService
from queue_core.unit.unit_of_work import UnitOfWork

T = TypeVar("T")

MAX_OPERATIONS_PER_COMMIT = 256
"""Operations that share a transaction, at most; bounds how long the first of them waits for its answer."""
SLOW_SYNC_SECONDS = 0.002
"""Syncs that take longer run in a thread. For a faster disk, switching threads twice would cost more than it gains."""
INSTANT_SYNC_SECONDS = 0.000_04
"""Syncs that take less (a relaxed store, or memory) are not shared."""
MAX_COMMITS_PER_SYNC = 4
"""Commits that share a sync: callers that return meanwhile join it, but must not delay it for ever."""
LARGE_COMMIT_BYTES = 2 << 20
"""An operation that holds more is committed alone, in a thread: the loop would stand still for some 5 ms a mebibyte.
Others share a transaction up to this size."""
MANY_TASKS_BYTES = LARGE_COMMIT_BYTES + 1
"""What an operation over any number of tasks is taken to hold: their payloads are read, or their room is freed."""
MAX_WAIT_ROUNDS = 4
"""Rounds of the loop that a commit waits for expected callers: about 25 us, less than a transaction of their own
costs. Eight and sixteen gained nothing more."""

log = get_logger()

Done = Callable[[object], None]
"""Called in the loop with the outcome of an operation, once that is durable: its result, or a `QueueError`."""
Late = Callable[[object], None]
"""Called with the outcome of an operation whose caller had to be answered with an error before."""


class Follower(Protocol):
    """An operation that joins a transaction because of its changes. `rolled_back` is called if that took no effect."""

    def operation(self, work: UnitOfWork) -> object: ...

    def done(self, outcome: object) -> None: ...

    def rolled_back(self) -> None: ...


Follow = Callable[[UnitOfWork], Iterable[Follower]]
"""Returns the followers of a transaction, at its end, in the loop; each has run before the next is asked for."""


class Counted(Protocol):
    """A number of things that changes."""

    count: int


class Committer(Protocol):
    """Commits the operations of all callers of one loop. Only `close` may be called from another thread."""

    failure: StoreError | None
    """Why the last commit failed; None when it did not."""

    @property
    def is_threaded(self) -> bool:
        """Return whether commits run in threads: then the loop goes on meanwhile, and several may be under way."""

    @property
    def is_syncing(self) -> bool:
        """Return whether a change is on its way to the disk: visible to readers, but not durable yet."""

    def submit(
        self,
        operation: Operation[object],
        done: Done,
        *,
        late: Late | None = None,
        size_bytes: int = 0,
        unit: Unit = "transaction",
    ) -> None:
        """Run `operation` in one of the next transactions; its effect is durable when `done` is called.

        Args:
            late: called instead of `done`, which has got an `OutcomeUnknownError`, when the store answers after all.
            size_bytes: about what the operation holds in memory: payloads, most of all.
            unit: `verb` for an operation that changes something with one verb only; see `Store.begin`.
        """

    def follow_with(self, follow: Follow, *, waiting: Counted) -> None:
        """Call `follow` for the followers of each transaction, where commits run in the loop and somebody waits."""

    async def run(self, operation: Operation[T], *, size_bytes: int = 0) -> T:
        """Run `operation` in one of the next transactions; raises its error. `size_bytes`: see `submit`."""

    def read(self, operation: Operation[object], done: Done) -> None:
        """Run a short operation that only reads, from a snapshot; `done` is called in the loop, perhaps at once."""

    def close(self) -> None:
        """Wait for the commits under way, within bounds, and end the threads."""


async def run_operation(committer: Committer, operation: Operation[T], *, size_bytes: int = 0) -> T:
    """See `Committer.run`."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: object) -> None:
        if outcome.cancelled():
            return
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    committer.submit(operation, done, size_bytes=size_bytes)
    return await outcome


def deliver(done: Callable[[object], None], outcome: object) -> None:
    """Call `done` with an outcome; an exception in it is logged, so that the other callers get their answers."""
    try:
        done(outcome)
    except Exception:
        log.exception(events.ANSWER_FAILED)


def sync(service: QueueService, batch: Batch[object]) -> StoreError | None:
    """Make a batch durable; returns the error when the disk refused."""
    try:
        service.sync(batch)
    except (StoreError, OSError) as error:
        return OutcomeUnknownError(f"the change was made but not confirmed by the disk: {error}; look before repeating")
    return None


@value
class Entry:
    """An operation, and the callback for its outcome."""

    operation: Operation[object]
    done: Done
    size_bytes: int = 0


_OPERATION = attrgetter("operation")


@value
class Committed:
    """A transaction on its way to the disk."""

    entries: Sequence[Entry]
    batch: Batch[object]


class SyncThread:
    """A thread that waits for slow syncs while the loop goes on; one sync covers all that was committed before it."""

    def __init__(
        self, service: QueueService, synced: Callable[[Sequence[Committed], StoreError | None, float], None]
    ) -> None:
        self._service = service
        self._synced = synced
        self._committed: queue.SimpleQueue[tuple[Sequence[Committed], asyncio.AbstractEventLoop] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._under_way = 0

    @property
    def is_busy(self) -> bool:
        """Return whether a batch has not been answered yet: a later one must not overtake it."""
        return self._under_way > 0

    def submit(self, committed: Sequence[Committed]) -> None:
        """Sync these transactions, then call `synced` in the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="towline-sync", daemon=True)
            self._thread.start()
        self._under_way += len(committed)
        self._committed.put((committed, asyncio.get_running_loop()))

    def close(self) -> None:
        """Finish the syncs under way, and end the thread."""
        if self._thread is not None:
            self._committed.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (first := self._committed.get()) is not None:
            committed, loop = first
            batches = list(committed)
            stop = False
            while not self._committed.empty():
                more = self._committed.get()
                if more is None:
                    stop = True
                    break
                batches += more[0]
            began_at = self._service.clock.monotonic()
            failure = sync(self._service, batches[-1].batch)
            seconds = self._service.clock.monotonic() - began_at
            try:
                loop.call_soon_threadsafe(self._finish, batches, failure, seconds)
            except RuntimeError:
                return  # the loop was closed meanwhile
            if stop:
                return

    def _finish(self, batches: Sequence[Committed], failure: StoreError | None, seconds: float) -> None:
        self._under_way -= len(batches)
        self._synced(batches, failure, seconds)


class GroupCommitter:
    """A `Committer` that commits in the loop itself: nothing is faster for a file or for memory."""

    is_threaded = False

    def __init__(self, service: QueueService, *, after_commit: Callable[[], None] = lambda: None) -> None:
        """Args:
        after_commit: called in the loop after the answers of each sync.
        """
        self._service = service
        self._after_commit = after_commit
        self._follow: Follow | None = None
        self._waiting: Counted | None = None
        self._entries: list[Entry] = []
        self._is_scheduled = False
        self._rounds = 0
        self._expected = 1
        """Callers that shared each of the last two syncs: answered together, they return together, so the next
        commit waits for them. One sync is not enough, as callers that meet by chance are not to be waited for."""
        self._shared = 1
        self._sync_seconds = 0.0
        self._unsynced: list[Committed] = []
        self._unsynced_callers = 0
        self._sync_thread = SyncThread(service, self._synced)
        self._large = ThreadPool(1, name="towline-large")
        self.failure: StoreError | None = None

    @property
    def is_syncing(self) -> bool:
        """See `Committer.is_syncing`."""
        return bool(self._unsynced) or self._sync_thread.is_busy or self._large.under_way > 0

    def submit(
        self,
        operation: Operation[object],
        done: Done,
        *,
        late: Late | None = None,  # noqa: ARG002 - the protocol's
        size_bytes: int = 0,
        unit: Unit = "transaction",  # noqa: ARG002
    ) -> None:
        """See `Committer.submit`; `late` and `unit` have no effect here."""
        self._entries.append(Entry(operation, done, size_bytes))
        self._schedule()

    def follow_with(self, follow: Follow, *, waiting: Counted) -> None:
        """See `Committer.follow_with`."""
        self._follow, self._waiting = follow, waiting

    async def run(self, operation: Operation[T], *, size_bytes: int = 0) -> T:
        """See `Committer.run`."""
        return await run_operation(self, operation, size_bytes=size_bytes)

    def read(self, operation: Operation[object], done: Done) -> None:
        """See `Committer.read`."""
        try:
            outcome = self._service.read(operation)
        except QueueError as error:
            outcome = error
        deliver(done, outcome)

    def close(self) -> None:
        """Wait for the disk and end its threads."""
        self._large.close()
        self._sync_thread.close()

    # -- committing --------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._large.under_way:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit_queued)

    def _commit_queued(self) -> None:
        self._is_scheduled = False
        if self._large.under_way:
            return  # its end schedules the next
        if self._rounds < MAX_WAIT_ROUNDS and self._outstanding() > 0:
            self._rounds += 1
            self._schedule()
            return
        self._rounds = 0
        if len(self._entries) == 1:
            entries, self._entries = self._entries, []
        else:
            entries = self._take()
        if entries[0].size_bytes > LARGE_COMMIT_BYTES:
            self._sync()
            self._large.submit(partial(self._commit_large, entries[0]), partial(self._committed_large, entries))
            return
        self._commit(entries)
        if self._entries:
            self._schedule()
        is_full = len(self._unsynced) >= MAX_COMMITS_PER_SYNC or (self._expected > 1 and self._outstanding() <= 0)
        if is_full or self._sync_seconds < INSTANT_SYNC_SECONDS:
            self._sync()
        elif self._unsynced:
            # Two rounds of the loop: it reads the sockets after running what was scheduled before.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._sync_unless_more)

    def _take(self) -> list[Entry]:
        """Take the entries of the next transaction: the first, and those behind it that are not too large with it."""
        count = size_bytes = 0
        for entry in self._entries[:MAX_OPERATIONS_PER_COMMIT]:
            size_bytes += entry.size_bytes
            if count and size_bytes > LARGE_COMMIT_BYTES:
                break
            count += 1
        taken = self._entries[:count]
        del self._entries[:count]
        return taken

    def _commit_large(self, entry: Entry) -> tuple[Batch[object], StoreError | None]:
        """Commit one operation and sync it, in a thread; the loop goes on, and its commits wait."""
        batch = self._service.commit([entry.operation])
        return batch, sync(self._service, batch)

    def _committed_large(
        self, entries: Sequence[Entry], outcome: tuple[Batch[object], StoreError | None] | Exception
    ) -> None:
        if isinstance(outcome, StoreError):
            self._fail(entries, outcome)
        elif isinstance(outcome, Exception):
            log.error(events.COMMIT_FAILED, exc_info=outcome)
            deliver(entries[0].done, outcome)
        else:
            batch, failure = outcome
            self._synced([Committed(entries, batch)], failure, self._sync_seconds)
        if self._entries:
            self._schedule()

    def _outstanding(self) -> int:
        """Return how many expected callers of the next sync are not here yet; negative if more came than expected."""
        return self._expected - len(self._entries) - self._unsynced_callers

    def _commit(self, entries: Sequence[Entry]) -> None:
        """Commit these operations, without a sync; if one breaks the transaction, each gets its own."""
        followers: list[Follower] = []
        follow = None
        if self._follow is not None and self._waiting is not None and self._waiting.count:
            follow = partial(_follower_operations, self._follow, followers)
        try:
            batch = self._service.commit(list(map(_OPERATION, entries)), follow=follow)
        except Exception as error:
            for follower in followers:
                follower.rolled_back()
            if isinstance(error, StoreFullError) and self._service.store.make_room():
                self._commit(entries)
            elif isinstance(error, StoreError):
                self._fail(entries, error)
            elif len(entries) > 1:
                for entry in entries:
                    self._commit([entry])
            else:
                log.exception(events.COMMIT_FAILED)
                deliver(entries[0].done, error)
            return
        self._unsynced_callers += len(entries)
        if followers:
            entries = [*entries, *[Entry(follower.operation, follower.done) for follower in followers]]
        self._unsynced.append(Committed(entries, batch))

    # -- syncing -----------------------------------------------------------------------------------------------------

    def _sync_unless_more(self) -> None:
        if not self._entries:
            self._sync()

    def _sync(self) -> None:
        committed, self._unsynced = self._unsynced, []
        if not committed:
            return
        before, self._shared, self._unsynced_callers = self._shared, self._unsynced_callers, 0
        self._expected = min(before, self._shared)
        if self._sync_seconds > SLOW_SYNC_SECONDS or self._sync_thread.is_busy:
            self._sync_thread.submit(committed)
            return
        began_at = self._service.clock.monotonic()
        failure = sync(self._service, committed[-1].batch)
        self._synced(committed, failure, self._service.clock.monotonic() - began_at)

    def _synced(self, committed: Sequence[Committed], failure: StoreError | None, seconds: float) -> None:
        self._sync_seconds += (seconds - self._sync_seconds) / 8
        for one in committed:
            if failure is not None:
                self._fail(one.entries, failure)
                continue
            self.failure = None
            for entry, outcome in zip(one.entries, one.batch.outcomes, strict=True):
                deliver(entry.done, outcome)
        if failure is None:
            # After the answers: their callers work meanwhile, and a lease that found nothing waits by now, so that a
            # wake-up of its own transaction finds it.
            for one in committed:
                self._service.publish(one.batch.outbox)
        self._after_commit()

    def _fail(self, entries: Sequence[Entry], error: StoreError) -> None:
        if self.failure is None:
            log.error(events.STORE_FAILED, error=str(error))
        self.failure = error
        for entry in entries:
            deliver(entry.done, error)


def _follower_operations(follow: Follow, followers: list[Follower], work: UnitOfWork) -> Iterator[Operation[object]]:
    """Yield the operations of a transaction's followers; each follower is added to `followers` before."""
    for follower in follow(work):
        followers.append(follower)
        yield follower.operation
