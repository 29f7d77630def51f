"""Which workers ask for leases, as the queue's servers know; each server knows its own callers only."""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.samples import PresentWorker
from queue_core.errors import QueueError
from queue_core.stats import HeardWorker


class PresenceSource(Protocol):
    """A server that knows its callers."""

    def heard_workers(self, queue: str, *, prefix: str = "") -> list[HeardWorker]:
        """Return the workers whose names begin with `prefix`, as this server knows them."""


class ServersPresence:
    """Asks every server, as a worker may be connected to any of them."""

    def __init__(self, servers: Sequence[PresenceSource]) -> None:
        self._servers = servers

    def __call__(self, queue: str, prefix: str) -> Sequence[PresentWorker]:
        """Return each worker as known to the server that it called last.

        Raises `QueueError` when no server answers; a server that is down has no waiting worker.
        """
        found, failure, answers = self._ask(queue, prefix)
        if failure is not None and not answers:
            raise failure
        return found

    def all(self, queue: str, prefix: str) -> Sequence[PresentWorker]:
        """The same, but raises `QueueError` unless every server answers: a worker may reach one that we can't."""
        found, failure, _ = self._ask(queue, prefix)
        if failure is not None:
            raise failure
        return found

    @property
    def several(self) -> bool:
        """Whether there is more than one server."""
        return len(self._servers) > 1

    def _ask(self, queue: str, prefix: str) -> tuple[list[PresentWorker], QueueError | None, int]:
        """Return the workers, an error of a server that did not answer, and how many servers answered."""
        found: dict[str, HeardWorker] = {}
        failure: QueueError | None = None
        answers = 0
        for server in self._servers:
            try:
                heard = server.heard_workers(queue, prefix=prefix)
            except QueueError as error:
                failure = error
                continue
            answers += 1
            for one in heard:
                known = found.get(one.worker)
                if known is None or one.silent_seconds < known.silent_seconds:
                    found[one.worker] = one
        present = [PresentWorker(one.worker, one.silent_seconds, one.waits, one.hung_up) for one in found.values()]
        return present, failure, answers
