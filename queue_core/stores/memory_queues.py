"""The queues of the reference store: made, set, found, dropped; and what their payloads may come to."""

from dataclasses import replace
from typing import Literal

from queue_core.admission import check_not_moved
from queue_core.clock import Instant
from queue_core.errors import UnknownQueueError
from queue_core.store import Storage
from queue_core.stores.memory_queue import MemoryQueue
from queue_core.task import QueueSpec


class MemoryQueues:
    """The verbs over queues themselves: see `Transaction`."""

    def __init__(self) -> None:
        self._queues: dict[str, MemoryQueue] = {}
        self._storage_limit: int | None = None

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:  # noqa: ARG002 - the protocol's
        known = self._queues.get(spec.name)
        if known is None:
            self._queues[spec.name] = MemoryQueue(replace(spec, paused=False, moved_to=""))
            return True
        known.spec = replace(spec, paused=known.spec.paused, moved_to=known.spec.moved_to)
        return False

    def queue(self, name: str) -> QueueSpec:
        return self._of(name).spec

    def queues(self) -> list[QueueSpec]:
        return [self._queues[name].spec for name in sorted(self._queues)]

    def delete_queue(self, name: str) -> int:
        count = len(self._of(name).tasks)
        del self._queues[name]
        return count

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        held = self._of(queue)
        changed = held.spec.paused != (paused == "paused")
        held.spec = replace(held.spec, paused=paused == "paused")
        return changed

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        self._storage_limit = limit_bytes

    def storage(self) -> Storage:
        if self._storage_limit is None:
            return Storage()
        payloads = (task.payload for held in self._queues.values() for task in held.tasks.values())
        return Storage(self._storage_limit, sum(map(len, payloads)))

    def set_moved(self, queue: str, to: str) -> None:
        held = self._of(queue)
        held.spec = replace(held.spec, moved_to=to)

    def _of(self, name: str) -> MemoryQueue:
        held = self._queues.get(name)
        if held is None:
            raise UnknownQueueError.among(name, sorted(self._queues)[:5])
        return held

    def _open(self, name: str) -> MemoryQueue:
        held = self._of(name)
        check_not_moved(held.spec)
        return held
