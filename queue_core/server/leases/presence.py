"""Workers as this server hears of them: who asks for leases now, who did lately, who hung up. Nothing is kept."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from queue_core.server.leases.call import LeaseCall
from queue_core.stats import HeardWorker

MAX_WORKERS = 20_000
"""Remembered at most; who has been silent for longest is forgotten first."""


@dataclass(slots=True)
class Heard:
    """One worker on one queue. `at` is when its last call came or ended; `calls` are under way."""

    worker: str
    queue: str
    at: float
    calls: int = 0
    waits: bool = False
    hung_up: bool = False

    def told(self, *, now: float) -> HeardWorker:
        """As others are told of it."""
        silent_seconds = 0.0 if self.calls else max(0.0, now - self.at)
        return HeardWorker(self.worker, round(silent_seconds, 3), self.waits, self.hung_up)


class Roster:
    """Lives in the server's loop."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], Heard] = {}

    def asked(self, call: LeaseCall, *, now: float) -> None:
        """A call came."""
        if not call.worker:
            return
        key = (call.queue, call.worker)
        heard = self._heard.pop(key, None)
        if heard is None:
            heard = Heard(call.worker, call.queue, now)
            if len(self._heard) >= MAX_WORKERS:
                del self._heard[next(iter(self._heard))]
        self._heard[key] = heard
        heard.at = now
        heard.calls += 1
        heard.waits = heard.waits or call.wait_seconds > 0
        heard.hung_up = False

    def ended(self, call: LeaseCall, *, now: float, hung_up: bool = False) -> None:
        """A call was answered, or its caller hung up."""
        heard = self._heard.get((call.queue, call.worker))
        if heard is not None:
            heard.at = now
            heard.calls = max(0, heard.calls - 1)
            heard.hung_up = hung_up

    def known(self, queue: str, workers: Iterable[str]) -> Iterator[Heard]:
        """Those of these workers that asked for leases of the queue."""
        return (heard for worker in workers if (heard := self._heard.get((queue, worker))) is not None)

    def of(self, queue: str, *, prefix: str) -> Iterator[Heard]:
        """Those of a queue whose names begin so."""
        return (one for one in self._heard.values() if one.queue == queue and one.worker.startswith(prefix))
