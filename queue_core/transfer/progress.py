"""Progress of a transfer, saved in the target store with each chunk, so that no chunk is lost or added twice."""

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, Generic, TypeVar

from pydantic_core import from_json, to_json

from queue_core.errors import MoveRefusedError, StoreError
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork

LEAD_SECONDS: Final = 5.0
"""How long a killed transfer keeps its lead; must exceed the longest pause of a living one."""
RETRY_SECONDS: Final = 0.1
"""Pause between tries to take the lead."""
SLACK_SECONDS: Final = 1.0
"""Tolerance for an error of the store's clock and for one slow call."""

T = TypeVar("T")
P = TypeVar("P")
"""A frozen dataclass of plain fields."""


class TransferProgress(Generic[P]):
    """The progress of one transfer into one store, numbered consecutively."""

    def __init__(self, service: QueueService, session: str, kind: Callable[..., P]) -> None:
        self._service = service
        self._session = session
        self._kind = kind
        self._number = 0

    def last(self) -> P | None:
        """Return the last saved progress; None if there is none or it has expired (after a day or more)."""
        kept = self._service.read(lambda work: work.transaction.last_answer(self._session))
        if kept is None:
            return None
        self._number = kept[0]
        return self._kind(**from_json(kept[1]))

    def save(self, progress: P) -> P:
        """Save progress."""
        self._service.run(self._saving(progress))
        self._number += 1
        return progress

    def run(self, operation: Callable[[UnitOfWork], T], then: Callable[[T], P]) -> P:
        """Run an operation and save the progress it makes.

        Atomic if the store's unit is a transaction. Otherwise the operation may have been done without its progress
        being saved, and the next run must check.
        """
        if self._service.store.unit == "verb":
            return self.save(then(self._service.run(operation)))

        def both(work: UnitOfWork) -> P:
            progress = then(operation(work))
            self._saving(progress)(work)
            return progress

        progress = self._service.run(both)
        self._number += 1
        return progress

    def _saving(self, progress: P) -> Callable[[UnitOfWork], None]:
        answer = to_json(progress)
        number = self._number + 1
        return lambda work: work.transaction.keep_answer(self._session, number, answer, now=work.now)


class TransferLead:
    """The lead of one transfer: keeps a second process from transferring the same queue."""

    def __init__(self, service: QueueService, name: str, *, seconds: float) -> None:
        self._service = service
        self._name = name
        self._seconds = seconds
        self._holder = uuid.uuid4().hex
        self._taken_at = 0.0

    def renew(self) -> None:
        """Renew the lead if it is due. Raises `MoveRefusedError` when another process has taken it."""
        now = self._service.clock.monotonic()
        if now - self._taken_at > self._seconds / 3 and not self.take(self._seconds):
            raise MoveRefusedError(
                "another `towline` took over this transfer while this one was stalled: let that one finish"
            )

    def take(self, seconds: float) -> bool:
        """Try to take the lead for `seconds`; return whether that succeeded."""
        self._taken_at = self._service.clock.monotonic()
        return self._service.run(
            lambda work: work.transaction.lead(self._name, self._holder, seconds=seconds, now=work.now)
        )


@contextmanager
def holding_lead(service: QueueService, name: str, *, seconds: float) -> Iterator[TransferLead]:
    """Hold the lead called `name` while the block runs; first wait until that of a killed holder expires.

    Raises `MoveRefusedError` when the other holder is alive.
    """
    lead = TransferLead(service, name, seconds=seconds)
    pause = Event()
    give_up_at = service.clock.monotonic() + seconds * 1.2 + SLACK_SECONDS
    while True:
        tried_at = service.clock.monotonic()
        if lead.take(seconds):
            break
        if tried_at > give_up_at:
            raise MoveRefusedError("another `towline` is running this transfer: wait for it to end, or stop it")
        pause.wait(RETRY_SECONDS)
    try:
        yield lead
    finally:
        with suppress(StoreError):  # it expires by itself
            lead.take(0.0)


def session_of(kind: str, *parts: str) -> str:
    """Return a short, reproducible name for a transfer."""
    return f"{kind}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"
