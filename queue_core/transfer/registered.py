"""The progress of moves for people elsewhere: a registration in both stores, for as long as somebody moves queues."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from queue_core.clock import Clock, SystemClock
from queue_core.config.store_urls import masked
from queue_core.errors import QueueError
from queue_core.store import Store
from queue_core.unit import registration_verbs as verbs
from queue_core.unit.service import QueueService

KIND: Final = "moves"
RENEW_SECONDS: Final = 2.0
LASTING_SECONDS: Final = 60.0
"""How long the last progress of a move is seen after it ended, or after its process was killed."""

Progress = Callable[[str, int, int], None]


class RegisteredProgress:
    """Passes progress on, and registers it at most every two seconds. A store that refuses that stops no move."""

    def __init__(self, old: Store, new: Store, shown: Progress, *, clock: Clock | None = None) -> None:
        """`shown`: shows the same progress to whoever started the move."""
        self._services: Sequence[QueueService] = (QueueService(old), QueueService(new))
        self._facts = {"from": masked(old.url), "to": masked(new.url)}
        self._shown = shown
        self._clock = clock or SystemClock()
        self._registered: dict[str, float] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def __call__(self, queue: str, done: int, total: int) -> None:
        """Take the progress of a queue."""
        self._shown(queue, done, total)
        self._last[queue] = done, total
        now = self._clock.monotonic()
        before = self._registered.get(queue)
        if before is None or now - before >= RENEW_SECONDS:
            self._registered[queue] = now
            self._register(queue, "moving")

    def end(self, queue: str) -> None:
        """Register that a queue has been moved."""
        self._register(queue, "done")

    def _register(self, queue: str, state: str) -> None:
        done, total = self._last.get(queue, (0, 0))
        facts = {**self._facts, "state": state, "done": str(done), "total": str(total)}
        for service in self._services:
            with suppress(QueueError):
                service.run(lambda work: verbs.register(work, KIND, queue, facts, seconds=LASTING_SECONDS))
