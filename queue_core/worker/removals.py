"""Finds out whether a lease ended because somebody deleted its task, as nothing else tells its worker."""

from collections.abc import Sequence
from typing import Final

from queue_core.client.queue import Queue
from queue_core.errors import QueueError
from queue_core.worker.context import Task
from queue_core.worker.events import DELETED

MAX_ASKED: Final = 100
"""Tasks that are looked up at most where many leases ended at once; of the others it is not known."""


def removals_of(queue: Queue, tasks: Sequence[Task], *, worker: str) -> dict[str, str]:
    """Return, by the tokens of leases that ended, why: for those whose tasks were deleted by somebody else."""
    by_name = {task.name: task for task in tasks[:MAX_ASKED]}
    if not by_name:
        return {}
    try:
        leases = queue.history(names=list(by_name), limit=len(by_name)).leases
    except QueueError:  # it is not told, or was dropped
        return {}
    return {
        by_name[one.name].lease.token: f"{DELETED}: {one.reason}" if one.reason else DELETED
        for one in leases
        if one.outcome == "removed" and (one.worker, one.lease_number) == (worker, by_name[one.name].lease_number)
    }
