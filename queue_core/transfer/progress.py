"""Progress that is kept in the store it is made in: with each chunk, so that no chunk is lost or put there twice."""

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, Generic, TypeVar

from pydantic_core import from_json, to_json

from queue_core.errors import MoveRefusedError, StoreError
from queue_core.service import QueueService
from queue_core.unit_of_work import UnitOfWork

LEAD_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.1
SLACK_SECONDS: Final = 1.0
"""How far a store's clock, as it is known here, and one slow call may be off."""

T = TypeVar("T")
P = TypeVar("P")
"""A frozen dataclass of plain fields."""


class TransferProgress(Generic[P]):
    """The progress of one move into one store, numbered step by step."""

    def __init__(self, service: QueueService, session: str, kind: Callable[..., P]) -> None:
        self._service = service
        self._session = session
        self._kind = kind
        self._number = 0

    def last(self) -> P | None:
        """What was kept last; None when nothing was, or when it was forgotten after a day or more."""
        kept = self._service.read(lambda work: work.transaction.last_answer(self._session))
        if kept is None:
            return None
        self._number = kept[0]
        return self._kind(**from_json(kept[1]))

    def keep(self, progress: P) -> P:
        """Keep progress by itself."""
        self._service.run(self._keeping(progress))
        self._number += 1
        return progress

    def do(self, step: Callable[[UnitOfWork], T], then: Callable[[T], P]) -> P:
        """Run the step and keep the progress it makes.

        Both or neither, where a transaction holds more than one verb. Elsewhere the step may have been done though its
        progress is not known: whoever goes on must look.
        """
        if self._service.store.unit == "verb":
            return self.keep(then(self._service.run(step)))

        def both(work: UnitOfWork) -> P:
            progress = then(step(work))
            self._keeping(progress)(work)
            return progress

        progress = self._service.run(both)
        self._number += 1
        return progress

    def _keeping(self, progress: P) -> Callable[[UnitOfWork], None]:
        answer = to_json(progress)
        number = self._number + 1
        return lambda work: work.transaction.keep_answer(self._session, number, answer, now=work.now)


class TransferLead:
    """The lead of one move: no second process moves the same queue meanwhile."""

    def __init__(self, service: QueueService, name: str, *, seconds: float) -> None:
        self._service = service
        self._name = name
        self._seconds = seconds
        self._holder = uuid.uuid4().hex
        self._asked_at = 0.0

    def renew(self) -> None:
        """Keep the lead; cheap when it was renewed a moment ago. Raises `MoveRefusedError` when another took it."""
        now = self._service.clock.monotonic()
        if now - self._asked_at > self._seconds / 3 and not self.take(self._seconds):
            raise MoveRefusedError("another `towline` took this move over while this one was stalled: leave it to that")

    def take(self, seconds: float) -> bool:
        """Whether the lead is ours for so long."""
        self._asked_at = self._service.clock.monotonic()
        return self._service.run(
            lambda work: work.transaction.lead(self._name, self._holder, seconds=seconds, now=work.now)
        )


@contextmanager
def holding_lead(service: QueueService, name: str, *, seconds: float) -> Iterator[TransferLead]:
    """Hold the lead called `name` while the block runs; waits out a holder that was killed, for up to `seconds` more.

    Raises `MoveRefusedError` when the holder is alive.
    """
    hold = TransferLead(service, name, seconds=seconds)
    pause = Event()
    give_up_at = service.clock.monotonic() + seconds * 1.2 + SLACK_SECONDS
    while True:
        asked_at = service.clock.monotonic()
        if hold.take(seconds):
            break
        if asked_at > give_up_at:
            raise MoveRefusedError("another `towline` is at this very move: wait for it to end, or stop it")
        pause.wait(RETRY_SECONDS)
    try:
        yield hold
    finally:
        with suppress(StoreError):  # then it lapses by itself
            hold.take(0.0)


def session_of(kind: str, *parts: str) -> str:
    """A short name for what is moved, the same each time."""
    return f"{kind}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"
