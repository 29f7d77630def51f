"""Look up pull queues; refuse calls on push queues by their mode, as App Engine does."""

from typing import Final

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import QueueModeError, UnknownQueueError
from queue_core.queue_files.plan import ALWAYS_THERE
from queue_core.task import QueueSpec
from queue_core.unit_of_work import UnitOfWork

CACHE_SECONDS = 1.0
"""Seconds for which the settings of a queue are cached for frequent calls."""
UNCONFIGURED: Final = QueueSpec(ALWAYS_THERE, mode="push")
"""The queue `default` when it was not created. Source: App Engine, where it always exists, first as a push queue."""


def pull_queue(unit: UnitOfWork, queue: str) -> QueueSpec:
    """Return the settings of a pull queue. Raises `UnknownQueueError`, `QueueModeError`."""
    return _checked(_spec(unit, queue))


def _spec(unit: UnitOfWork, queue: str) -> QueueSpec:
    try:
        return unit.transaction.queue(queue)
    except UnknownQueueError:
        if queue == ALWAYS_THERE:
            return UNCONFIGURED
        raise


def _checked(spec: QueueSpec) -> QueueSpec:
    if spec.mode == "push":
        raise QueueModeError(
            f"queue {spec.name} is a push queue, which is not supported: give it `mode: pull` in queue.yaml, "
            "apply the file, and lease its tasks"
        )
    return spec


class QueueSettingsCache:
    """Settings of queues, read once a second. Used in transactions, of which several may run at a time."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[Instant, QueueSpec]] = {}

    def pull_queue(self, unit: UnitOfWork, queue: str) -> QueueSpec:
        """Return the settings of a pull queue, at most a second old. Raises `UnknownQueueError`, `QueueModeError`."""
        cached = self._cached.get(queue)
        if cached is None or not 0 <= unit.now - cached[0] < CACHE_SECONDS * MICROSECONDS:
            cached = self._cached[queue] = (unit.now, _spec(unit, queue))
        return _checked(cached[1])

    def forget(self, queue: str) -> None:
        """Drop the settings of a deleted queue."""
        self._cached.pop(queue, None)
