"""Wakes those who wait for tasks that came from elsewhere."""

from collections.abc import Sequence
from typing import Final

from queue_core.service import QueueService
from queue_core.store import Added
from queue_core.task import StoredTask
from queue_core.unit_of_work import UnitOfWork

PAGE: Final = 1000


def record_ready(work: UnitOfWork, queue: str, tasks: Sequence[StoredTask], added: Sequence[Added]) -> None:
    """Have those woken who wait for what was restored in this work."""
    for task, one in zip(tasks, added, strict=True):
        if one.ready and one.status == "added":
            work.wakes[queue, task.tag] = work.wakes.get((queue, task.tag), 0) + 1


def wake_ready(service: QueueService, queue: str) -> None:
    """Wake those who wait for what is ready in a queue that was closed until now."""
    after: str | None = None
    while True:
        start = after
        page = service.read(lambda work, start=start: work.tag_stats(queue, after=start, limit=PAGE))  # type: ignore[misc]
        for one in page:
            if one.stats.ready:
                service.store.signals.publish(queue, one.tag, one.stats.ready)
        if len(page) < PAGE:
            return
        after = page[-1].tag
