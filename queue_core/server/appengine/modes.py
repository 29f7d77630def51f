"""Modes of queues: a push queue is known by its name, as App Engine refuses pull calls on it for its mode."""

from typing import Final

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import QueueModeError, UnknownQueueError
from queue_core.queue_files.plan import ALWAYS_THERE
from queue_core.task import QueueSpec
from queue_core.unit_of_work import UnitOfWork

KNOWN_SECONDS = 1.0
"""How long a queue's settings are taken for granted by calls that are made often."""
UNCONFIGURED: Final = QueueSpec(ALWAYS_THERE, mode="push")
"""`default` where nobody made it. Source: App Engine, where it is always there, and a push queue unless configured."""


def pull_queue(turn: UnitOfWork, queue: str) -> QueueSpec:
    """The settings of a pull queue. Raises `UnknownQueueError`, `QueueModeError`."""
    return _checked(_spec(turn, queue))


def _spec(turn: UnitOfWork, queue: str) -> QueueSpec:
    try:
        return turn.transaction.queue(queue)
    except UnknownQueueError:
        if queue == ALWAYS_THERE:
            return UNCONFIGURED
        raise


def _checked(spec: QueueSpec) -> QueueSpec:
    if spec.mode == "push":
        raise QueueModeError(
            f"queue {spec.name} is a push queue, and nothing here calls handlers: give it `mode: pull` in queue.yaml, "
            "apply that, and lease its tasks"
        )
    return spec


class KnownQueues:
    """Settings of queues, looked up once a second. Used in turns, of which several may run at a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Instant, QueueSpec]] = {}

    def pull_queue(self, turn: UnitOfWork, queue: str) -> QueueSpec:
        """The settings of a pull queue as they were within a second. Raises `UnknownQueueError`, `QueueModeError`."""
        known = self._known.get(queue)
        if known is None or not 0 <= turn.now - known[0] < KNOWN_SECONDS * MICROSECONDS:
            known = self._known[queue] = (turn.now, _spec(turn, queue))
        return _checked(known[1])

    def forget(self, queue: str) -> None:
        """The queue was deleted."""
        self._known.pop(queue, None)
