"""Find when the tasks of a dead worker were begun again, for the line that tells of its death."""

from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.cli.fleet_events import OrphanedTask
from queue_core.client.queue import Queues
from queue_core.clock import MICROSECONDS
from queue_core.errors import QueueError
from queue_core.task import TaskState

MAX_TASKS: Final = 3
"""Tasks of one worker that are looked up."""
MAX_LEASES: Final = 10
"""Leases of a task that are looked at, the newest."""
SLACK_SECONDS: Final = 0.5
"""By how much a lease may seem to begin before the death, as the clocks of the two hosts differ."""


class TaskLookup:
    """Looks tasks up in their queues, by a client that is opened when it is first needed."""

    def __init__(self, connect: Callable[[], Queues]) -> None:
        self._connect = connect
        self._queues: Queues | None = None

    def restarted_after(self, tasks: Sequence[OrphanedTask], *, worker: str, died_at: float) -> float | None:
        """Return the seconds from the death of a worker until the last of its tasks was leased again by another.

        `died_at` is in seconds since the epoch. None while one of them waits, and where the queue does not say.
        """
        latest = 0.0
        try:
            self._queues = self._queues or self._connect()
            for task in tasks[:MAX_TASKS]:
                leased_at = self._leased_at(self._queues, task, worker=worker, after=died_at - SLACK_SECONDS)
                if leased_at is None:
                    return None
                latest = max(latest, leased_at - died_at)
        except QueueError:
            return None
        return latest

    def close(self) -> None:
        """Close the connections."""
        if self._queues is not None:
            self._queues.close()

    def _leased_at(self, queues: Queues, task: OrphanedTask, *, worker: str, after: float) -> float | None:
        """Return when another worker leased a task for the first time after an instant; None when none did yet."""
        queue = queues.queue(task.queue)
        begun = [
            one.leased_at / MICROSECONDS
            for one in queue.history(names=[task.task], limit=MAX_LEASES).leases
            if one.worker != worker
        ]
        begun += [
            one.leased_at / MICROSECONDS
            for one in queue.peek(names=[task.task], limit=1).tasks
            if one.state is TaskState.LEASED and one.worker != worker
        ]
        return min((at for at in begun if at >= after), default=None)
