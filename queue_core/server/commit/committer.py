"""Group commit: operations of many callers share a transaction, and no caller is answered before it is durable."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import structlog

from queue_core.errors import OutcomeUnknownError, StoreError
from queue_core.server import events
from queue_core.service import Batch, QueueService, Step
from queue_core.store import Unit
from queue_core.unit_of_work import UnitOfWork

T = TypeVar("T")

Done = Callable[[object], None]
"""Called in the loop with the outcome of an operation, once that is durable: its result, or a `QueueError`."""
Late = Callable[[object], None]
"""Called with the outcome of an operation whose caller had to be answered with an error before."""

MAX_OPERATIONS_PER_COMMIT = 256
"""Operations that share a transaction, at most; bounds how long the first of them waits for its answer."""


class Follower(Protocol):
    """An operation that joins a transaction because of its changes. `rolled_back` replaces `done` if nothing took
    effect."""

    def operation(self, work: UnitOfWork) -> object: ...

    def done(self, outcome: object) -> None: ...

    def rolled_back(self) -> None: ...


Follow = Callable[[UnitOfWork], Iterable[Follower]]
"""Returns the followers of a transaction, at its end, in the loop; each has run before the next is asked for."""

log = structlog.get_logger()


class Committer(Protocol):
    """Commits the operations of all callers of one loop. Only `close` may be called from another thread."""

    failure: StoreError | None
    """Why the last commit failed; None when it did not."""

    @property
    def is_threaded(self) -> bool:
        """Whether commits run in threads: then the loop goes on meanwhile, and several may be under way."""

    @property
    def is_syncing(self) -> bool:
        """Whether a change is on its way to the disk: visible to readers, but not durable yet."""

    def submit(
        self,
        operation: Step[object],
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

    def follow_with(self, follow: Follow) -> None:
        """Call `follow` for the followers of each transaction, where commits run in the loop."""

    async def run(self, operation: Step[T]) -> T:
        """Run `operation` in one of the next transactions; raises its error."""

    def read(self, operation: Step[object], done: Done) -> None:
        """Run a short operation that only reads, from a snapshot; `done` is called in the loop, perhaps at once."""

    def close(self) -> None:
        """Wait for the commits under way, within bounds, and end the threads."""


async def run_operation(committer: Committer, operation: Step[T]) -> T:
    """See `Committer.run`."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: object) -> None:
        if outcome.cancelled():
            return
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    committer.submit(operation, done)
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
