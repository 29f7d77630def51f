"""Group commit: steps of many callers share a transaction, and nobody is answered before it is durable."""

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
"""Told of a step's outcome, in the loop, once it is durable: what the step returned, or a `QueueError`."""
Late = Callable[[object], None]
"""Told of the outcome of a step whose caller could not wait for it any longer, and was told of an error instead."""

MAX_OPERATIONS_PER_COMMIT = 256


class Follower(Protocol):
    """One that goes with a turn for what that has done. `back` is called instead of `done` if nothing took effect."""

    def operation(self, work: UnitOfWork) -> object: ...

    def done(self, outcome: object) -> None: ...

    def rolled_back(self) -> None: ...


Follow = Callable[[UnitOfWork], Iterable[Follower]]
"""Asked in the loop at the end of a turn, inside its transaction; a step is run before the next is params for."""

log = structlog.get_logger()


class Committer(Protocol):
    """Runs steps for everybody in one loop. Only `close` may be called from another thread than the loop's."""

    failure: StoreError | None
    """Why the last turn failed; None when it did not."""

    @property
    def is_threaded(self) -> bool:
        """Whether turns run beside the loop: then it goes on meanwhile, and several turns may be under way."""

    @property
    def is_syncing(self) -> bool:
        """Whether a change is on its way to the disk, seen by readers but not durable yet."""

    def submit(
        self,
        operation: Step[object],
        done: Done,
        *,
        late: Late | None = None,
        size_bytes: int = 0,
        unit: Unit = "transaction",
    ) -> None:
        """Run `step` in one of the next turns; its effect is durable when `done` is told.

        Args:
            late: told instead of `done`, which was told of an `OutcomeUnknownError`, when the store answered after all.
            size_bytes: about what the step holds in memory: payloads, most of all.
            unit: `verb` for a step that changes something with one verb only; see `Store.begin`.
        """

    def follow_with(self, follow: Follow) -> None:
        """Have it params who goes with a turn, if turns run in the loop."""

    async def run(self, operation: Step[T]) -> T:
        """Run `step` in one of the next turns; raises its error."""

    def read(self, operation: Step[object], done: Done) -> None:
        """Run a short step that only reads, from a snapshot; `done` is told in the loop, perhaps at once."""

    def close(self) -> None:
        """Wait for what is under way, within bounds, and end the threads."""


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
    """Tell one caller; a mistake in answering it must not keep the others from their answers."""
    try:
        done(outcome)
    except Exception:
        log.exception(events.ANSWER_FAILED)


def sync(service: QueueService, batch: Batch[object]) -> StoreError | None:
    """Make a batch durable; the error when the disk refused."""
    try:
        service.sync(batch)
    except (StoreError, OSError) as error:
        return OutcomeUnknownError(f"the change was made but not confirmed by the disk: {error}; look before repeating")
    return None
