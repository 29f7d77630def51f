"""Who asks for leases, as the servers of a queue have heard of them: each knows its own callers only."""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.samples import PresentWorker
from queue_core.errors import QueueError
from queue_core.stats import WorkerActivity


class PresenceSource(Protocol):
    """One server."""

    def worker_activity(self, queue: str, *, prefix: str = "") -> list[WorkerActivity]:
        """Workers whose names begin so, as this server has heard of them."""


class ServersPresence:
    """Asks every server, as a worker may be at any of them."""

    def __init__(self, servers: Sequence[PresenceSource]) -> None:
        self._servers = servers

    def __call__(self, queue: str, prefix: str) -> Sequence[PresentWorker]:
        """Each worker as the server knows it that heard of it last.

        Raises `QueueError` when no server answers; one that is away has nobody waiting at it.
        """
        found, failure, answers = self._ask(queue, prefix)
        if failure is not None and not answers:
            raise failure
        return found

    def all(self, queue: str, prefix: str) -> Sequence[PresentWorker]:
        """The same. Raises `QueueError` unless every server answers: one out of our reach may be in a worker's."""
        found, failure, _ = self._ask(queue, prefix)
        if failure is not None:
            raise failure
        return found

    @property
    def several(self) -> bool:
        """Whether there is more than one server."""
        return len(self._servers) > 1

    def _ask(self, queue: str, prefix: str) -> tuple[list[PresentWorker], QueueError | None, int]:
        """What the servers tell, one error of those that do not answer, and how many do."""
        found: dict[str, WorkerActivity] = {}
        failure: QueueError | None = None
        answers = 0
        for server in self._servers:
            try:
                heard = server.worker_activity(queue, prefix=prefix)
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
