"""Commits of a store across a network, in threads, while the loop gathers the next ones and answers (ADR 9).

The loop never waits here. A store that stalls costs memory and time within bounds: calls over them fail.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from queue_core.errors import OutcomeUnknownError, QueueError, StoreError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.commit.group_commit import (
    MAX_OPERATIONS_PER_COMMIT,
    Counted,
    Done,
    Follow,
    Late,
    deliver,
    run_operation,
    sync,
)
from queue_core.server.commit.thread_pool import ThreadPool
from queue_core.store import Unit
from queue_core.unit.service import Batch, Operation, QueueService

T = TypeVar("T")

MAX_COMMITS_AT_ONCE = 4
"""Commits under way at once, each in its thread and with a connection of its own."""
MAX_READS_AT_ONCE = 2
"""The same for reads."""
MAX_QUEUED_OPERATIONS = 10_000
"""Operations that wait for a commit, at most; further ones fail at once."""
MAX_PENDING_BYTES = 256 << 20
"""Bytes of operations that wait or are under way, at most: a store that stalls must not fill the memory."""
MAX_QUEUED_SECONDS = 5.0
"""Seconds after which a waiting operation fails: it was not begun."""
MAX_COMMIT_SECONDS = 10.0
"""Seconds after which the callers of a commit are answered that its outcome is unknown."""
STALLED_SECONDS = 3.0
"""With all threads busy for so many seconds, the store has stalled: further operations fail at once."""
CHECK_SECONDS = 0.5
"""Seconds between checks of these times."""

log = get_logger()


@dataclass(slots=True, eq=False)
class _Entry:
    """An operation, and the callbacks of its caller. `is_answered`: the caller was answered with an error before."""

    operation: Operation[object]
    done: Done
    late: Late | None
    size_bytes: int
    unit: Unit
    submitted_at: float
    is_answered: bool = False


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit under way."""

    entries: Sequence[_Entry]
    began_at: float


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of some operations: their batch, or the error that they share."""

    entries: Sequence[_Entry]
    batch: Batch[object] | Exception


class ThreadedCommitter:
    """A `Committer` whose commits run in threads. Answers come in the order in which the store gave them;
    `ReadyChecks` says what that means for waiting calls."""

    is_threaded = True
    is_syncing = False  # the store shows durable changes only

    def __init__(self, service: QueueService, *, after_commit: Callable[[], None] = lambda: None) -> None:
        """Args:
        after_commit: called in the loop after the answers of each commit.
        """
        self._service = service
        self._after_commit = after_commit
        self._clock = service.clock
        # Where the store commits each verb by itself (Redis) nothing is shared: spread them over the threads.
        self._spreads_operations = service.store.unit == "verb"
        self._threads = ThreadPool(MAX_COMMITS_AT_ONCE, name="towline-commit")
        self._readers = ThreadPool(MAX_READS_AT_ONCE, name="towline-read")
        self._queued: deque[_Entry] = deque()
        self._pending_bytes = 0
        self._commits: dict[_Commit, None] = {}
        self._is_scheduled = False
        self._check_timer: asyncio.TimerHandle | None = None
        self.failure: StoreError | None = None

    def submit(
        self,
        operation: Operation[object],
        done: Done,
        *,
        late: Late | None = None,
        size_bytes: int = 0,
        unit: Unit = "transaction",
    ) -> None:
        """See `Committer.submit`."""
        loop = asyncio.get_running_loop()
        refusal = self._refusal(size_bytes)
        if refusal is not None:
            loop.call_soon(deliver, done, refusal)
            return
        self._queued.append(_Entry(operation, done, late, size_bytes, unit, self._clock.monotonic()))
        self._pending_bytes += size_bytes
        self._schedule()
        if self._check_timer is None:
            self._check_timer = loop.call_later(CHECK_SECONDS, self._expire_overdue)

    def follow_with(self, follow: Follow, *, waiting: Counted) -> None:
        """See `Committer.follow_with`: commits run in threads here, without followers."""

    async def run(self, operation: Operation[T], *, size_bytes: int = 0) -> T:
        """See `Committer.run`."""
        return await run_operation(self, operation, size_bytes=size_bytes)

    def read(self, operation: Operation[object], done: Done) -> None:
        """See `Committer.read`."""
        if self._readers.under_way >= MAX_QUEUED_OPERATIONS:
            deliver(done, self._too_many())
            return
        self._readers.submit(lambda: self._service.read(operation), lambda outcome: deliver(done, outcome))

    def close(self) -> None:
        """See `Committer.close`."""
        self._threads.close()
        self._readers.close()

    # -- committing --------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Begin a commit at the end of this round of the loop: what arrives until then shares its transaction."""
        if self._queued and not self._is_scheduled and self._threads.idle:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_commits)

    def _begin_commits(self) -> None:
        self._is_scheduled = False
        while self._queued and (idle := self._threads.idle):
            commit = _Commit(self._take(idle), self._clock.monotonic())
            self._commits[commit] = None
            self._threads.submit(lambda commit=commit: self._commit(commit.entries), self._on_commit(commit))  # type: ignore[misc]

    def _take(self, idle: int) -> Sequence[_Entry]:
        count = min(len(self._queued), MAX_OPERATIONS_PER_COMMIT)
        if self._spreads_operations:
            count = min(count, -(-len(self._queued) // idle))
        return [self._queued.popleft() for _ in range(count)]

    def _commit(self, entries: Sequence[_Entry]) -> list[_Outcome]:
        """Commit in a thread: one transaction, durable when this returns; or one each, if an operation broke it."""
        try:
            unit = entries[0].unit if len(entries) == 1 else "transaction"
            batch = self._service.commit([entry.operation for entry in entries], unit=unit)
            failure = sync(self._service, batch)
        except StoreError as error:
            return [_Outcome(entries, error)]
        except Exception as error:
            if len(entries) > 1:  # one broken operation must not fail the others
                return [outcome for entry in entries for outcome in self._commit([entry])]
            log.exception(events.COMMIT_FAILED)
            return [_Outcome(entries, error)]
        return [_Outcome(entries, failure or batch)]

    def _on_commit(self, commit: _Commit) -> Callable[[list[_Outcome] | Exception], None]:
        def committed(result: list[_Outcome] | Exception) -> None:
            del self._commits[commit]
            self._pending_bytes -= sum(entry.size_bytes for entry in commit.entries)
            for one in result if isinstance(result, list) else [_Outcome(commit.entries, result)]:
                self._deliver(one)
            self._after_commit()
            self._schedule()

        return committed

    def _deliver(self, outcome: _Outcome) -> None:
        batch = outcome.batch
        if isinstance(batch, Exception):
            self._record_failure(batch)
            for entry in outcome.entries:
                _deliver_to(entry, batch)
            return
        failed = [one for one in batch.outcomes if isinstance(one, StoreError)]
        self._record_failure(failed[-1] if failed else None)
        for entry, one in zip(outcome.entries, batch.outcomes, strict=True):
            _deliver_to(entry, one)
        self._service.publish(batch.outbox)

    def _record_failure(self, outcome: Exception | None) -> None:
        if outcome is None:
            self.failure = None
        elif isinstance(outcome, StoreError):
            if self.failure is None:
                log.error(events.STORE_FAILED, error=str(outcome))
            self.failure = outcome

    # -- a store that stalls -----------------------------------------------------------------------------------------

    def _refusal(self, size_bytes: int) -> QueueError | None:
        if len(self._queued) >= MAX_QUEUED_OPERATIONS or self._pending_bytes + size_bytes > MAX_PENDING_BYTES:
            return self._too_many()
        if self._threads.idle or not self._commits:
            return None
        latest_at = max(commit.began_at for commit in self._commits)
        if self._clock.monotonic() - latest_at > STALLED_SECONDS:
            return StoreUnavailableError(
                f"the store has not answered for {STALLED_SECONDS:g} s; nothing was done: try again"
            )
        return None

    def _too_many(self) -> QueueError:
        return StoreUnavailableError(
            f"{len(self._queued)} calls wait for the store, {self._pending_bytes >> 20} MiB in all; this server keeps "
            f"at most {MAX_QUEUED_OPERATIONS} or {MAX_PENDING_BYTES >> 20} MiB; nothing was done: try again"
        )

    def _expire_overdue(self) -> None:
        """Answer the callers that have waited too long with an error."""
        now = self._clock.monotonic()
        while self._queued and now - self._queued[0].submitted_at > MAX_QUEUED_SECONDS:
            entry = self._queued.popleft()
            self._pending_bytes -= entry.size_bytes
            detail = f"the store has kept this call waiting for {MAX_QUEUED_SECONDS:g} s; nothing was done: try again"
            deliver(entry.done, StoreUnavailableError(detail))
        for commit in list(self._commits):
            if now - commit.began_at > MAX_COMMIT_SECONDS:
                self._give_up(commit)
        loop = asyncio.get_running_loop()
        self._check_timer = (
            loop.call_later(CHECK_SECONDS, self._expire_overdue) if self._queued or self._commits else None
        )

    def _give_up(self, commit: _Commit) -> None:
        for entry in commit.entries:
            if not entry.is_answered:
                detail = f"the store has not answered for {MAX_COMMIT_SECONDS:g} s: it may have taken effect"
                error = OutcomeUnknownError(f"{detail}; look before repeating")
                entry.is_answered = True
                self._record_failure(error)
                deliver(entry.done, error)


def _deliver_to(entry: _Entry, outcome: object) -> None:
    if not entry.is_answered:
        deliver(entry.done, outcome)
    elif entry.late is not None:
        deliver(entry.late, outcome)
