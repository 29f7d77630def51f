"""Find when the tasks of a dead worker were begun again, for the line that tells of its death."""

from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.cli.fleet_events import HeldTask
from queue_core.api import Queues
from queue_core.clock import MICROSECONDS
from queue_core.errors import QueueError
from queue_core.task import TaskState

MAX_TASKS: Final = 3
"""Tasks of one worker that are looked up."""
SLACK_SECONDS: Final = 0.05
"""By how much a lease may seem to begin before the death: the release comes before its log entry."""


class TaskLookup:
    """Looks tasks up in their queues, by a client that is opened when it is first needed."""

    def __init__(self, connect: Callable[[], Queues]) -> None:
        self._connect = connect
        self._queues: Queues | None = None

    def begun_after(self, tasks: Sequence[HeldTask], *, died_at: float) -> float | None:
        """Return the seconds from `died_at`, since the epoch, until the last of these tasks was leased again.

        None while one of them waits, and where the queue does not say.
        """
        latest = 0.0
        try:
            self._queues = self._queues or self._connect()
            for task in tasks[:MAX_TASKS]:
                leased_at = self._leased_at(self._queues, task, after=died_at - SLACK_SECONDS)
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

    def _leased_at(self, queues: Queues, task: HeldTask, *, after: float) -> float | None:
        """Return when a task was leased for the first time after an instant; None when it was not yet."""
        queue = queues.queue(task.queue)
        begun = [one.leased_at / MICROSECONDS for one in queue.history(names=[task.task], limit=10).leases]
        begun += [
            one.leased_at / MICROSECONDS
            for one in queue.peek(names=[task.task], limit=1).tasks
            if one.state is TaskState.LEASED
        ]
        return min((at for at in begun if at >= after), default=None)
