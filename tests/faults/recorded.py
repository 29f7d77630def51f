"""A Queue's verbs with every call recorded before it is made and after it is answered."""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from queue_core.attempts.attempt import Failure
from queue_core.client.queue import Queue, Queues
from queue_core.errors import (
    LeaseLostError,
    OutcomeUnknownError,
    QueueError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from queue_core.stats import FinishedLease
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.verbs import Added, Deletion, Renewed
from tests.faults.history import (
    Answer,
    Answered,
    History,
    Invoked,
    Outcome,
    RequestedCall,
    RequestedEnd,
    ReturnedAdd,
    read_clocks,
    requested_adds,
    returned_lease,
)

T = TypeVar("T")
OutcomeOf = Callable[[QueueError, RequestedCall], Outcome]


def exact_outcome_of(error: QueueError, request: RequestedCall) -> Outcome:
    """Return the outcome by the error's class: only `OutcomeUnknownError` leaves it open."""
    if isinstance(error, OutcomeUnknownError):
        return "unknown"
    nothing_changed = isinstance(error, StoreUnavailableError | StoreReadOnlyError) or not isinstance(error, StoreError)
    return "fail" if nothing_changed else "unknown"


def forgiving_outcome_of(error: QueueError, request: RequestedCall) -> Outcome:
    """Return the outcome by the error's class: refusals and unavailable or full stores changed nothing.

    An exchange is left open: a retired worker's lease is refused after its deletions took effect, and one that met
    expired leases takes several transactions.
    """
    if isinstance(error, StoreReadOnlyError):
        return "fail"
    if isinstance(error, OutcomeUnknownError) or (request.verb == "lease" and request.ends):
        return "unknown"
    nothing_changed = isinstance(error, StoreUnavailableError) or not isinstance(error, StoreError)
    return "fail" if nothing_changed else "unknown"


class RecordedQueue:
    """The verbs of one queue as the workloads call them; errors are recorded, then raised."""

    def __init__(
        self,
        queue: Queue,
        history: History,
        numbers: "itertools.count[int]",
        *,
        outcome_of: OutcomeOf = forgiving_outcome_of,
    ) -> None:
        """Args:
        outcome_of: maps an error to an outcome; the default leaves an exchange's open.
        """
        self._queue = queue
        self._outcome_of = outcome_of
        self._history = history
        self._numbers = numbers
        self.name = queue.name

    def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        """See `Queue.add`."""
        request = RequestedCall("add", self.name, adds=requested_adds(tasks, self.name))
        return self._call(request, lambda: self._queue.add(tasks), lambda added: Answer(added=_seen_adds(added)))

    def lease(
        self,
        count: int = 1,
        *,
        seconds: float,
        tags: TagFilter = ANY,
        worker: str = "",
        deletions: Sequence[Deletion] = (),
        wait_seconds: float = 0.0,
    ) -> list[Lease]:
        """Lease, or exchange when there are `deletions`; see `Queue.exchange`."""
        request = RequestedCall(
            "lease",
            self.name,
            ends=_asked_ends(deletions, self.name),
            count=count,
            seconds=seconds,
            filter_kind=tags.kind,
            tags=tags.tags,
            worker=worker,
        )
        leases, _ = self._call(
            request,
            lambda: self._queue.exchange(
                deletions, count=count, seconds=seconds, tags=tags, worker=worker, wait_seconds=wait_seconds
            ),
            lambda answer: Answer(leases=tuple(returned_lease(lease) for lease in answer[0]), lost=answer[1]),
        )
        return leases

    def renew(self, tokens: Sequence[str], *, seconds: float) -> list[Renewed]:
        """See `Queue.renew`."""
        request = RequestedCall(
            "renew", self.name, ends=tuple(RequestedEnd(token) for token in tokens), seconds=seconds
        )
        return self._call(
            request,
            lambda: self._queue.renew(tokens, seconds=seconds),
            lambda renewed: Answer(ends={lease.token: lease.expires_at for lease in renewed}),
        )

    def release(
        self,
        tokens: Sequence[str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
        error: Failure | None = None,
    ) -> list[FinishedLease]:
        """See `Queue.release`."""
        request = RequestedCall(
            "release",
            self.name,
            ends=tuple(RequestedEnd(token) for token in tokens),
            delay_seconds=None if dead_reason else delay_seconds,
            charge=charge,
            failure="" if error is None else error.message,
        )
        return self._call(
            request,
            lambda: self._queue.release(
                tokens, delay_seconds=delay_seconds, charge=charge, dead_reason=dead_reason, error=error
            ),
            lambda _: Answer(),
        )

    def delete(self, deletions: Sequence[Deletion]) -> list[Added]:
        """See `Queue.delete`."""
        request = RequestedCall("delete", self.name, ends=_asked_ends(deletions, self.name))
        return self._call(request, lambda: self._queue.delete(deletions), lambda added: Answer(added=_seen_adds(added)))

    def delete_by_name(self, names: Sequence[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """See `Queue.delete_by_name`."""
        request = RequestedCall("delete_by_name", self.name, names=tuple(names))
        return self._call(
            request, lambda: self._queue.delete_by_name(names), lambda outcomes: Answer(names=tuple(outcomes))
        )

    def _call(self, request: RequestedCall, call: Callable[[], T], told: Callable[[T], Answer]) -> T:
        return recorded(
            self._history,
            next(self._numbers),
            request,
            call,
            told,
            outcome_of=self._outcome_of,
        )


def release_worker(
    queues: Queues, worker: str, *, history: History, numbers: "itertools.count[int]"
) -> list[FinishedLease]:
    """Release a dead worker's leases, recorded. See `Queues.release_worker`."""
    request = RequestedCall("release_worker", worker=worker)
    return recorded(history, next(numbers), request, lambda: queues.release_worker(worker), lambda _: Answer())


def recorded(
    history: History,
    number: int,
    request: RequestedCall,
    call: Callable[[], T],
    told: Callable[[T], Answer],
    *,
    outcome_of: OutcomeOf = forgiving_outcome_of,
) -> T:
    """Make one call between its two lines of history."""
    history.write(Invoked(number, read_clocks(), request))
    try:
        result = call()
    except LeaseLostError as error:
        # Tokens that the error doesn't name took effect, even when the call was repeated.
        history.write(Answered(number, read_clocks(), "ok", type(error).__name__, Answer(lost=error.tokens)))
        raise
    except QueueError as error:
        history.write(Answered(number, read_clocks(), outcome_of(error, request), type(error).__name__))
        raise
    history.write(Answered(number, read_clocks(), "ok", answer=told(result)))
    return result


def _seen_adds(added: Sequence[Added]) -> tuple[ReturnedAdd, ...]:
    return tuple(ReturnedAdd(one.name, one.status) for one in added)


def _asked_ends(deletions: Sequence[Deletion], queue: str) -> tuple[RequestedEnd, ...]:
    return tuple(RequestedEnd(deletion.token, requested_adds(deletion.then, queue)) for deletion in deletions)
