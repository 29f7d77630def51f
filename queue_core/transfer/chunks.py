"""Reads the tasks and held names of a queue in chunks of bounded size, tasks in id order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from queue_core.clock import Instant
from queue_core.limits import LARGEST_PAYLOAD_BYTES
from queue_core.store import Transaction
from queue_core.task import ALL_STATES, ANY, StoredTask
from queue_core.verbs import HeldName

CHUNK_TASKS: Final = 500
CHUNK_BYTES: Final = 4 << 20
"""Payload bytes of a chunk; a chunk ends with the task that reaches this size."""
CHUNK_NAMES: Final = 1000
SHORT_BYTES: Final = 4096
"""Payload bytes read with a page; longer payloads are then read one by one."""

T = TypeVar("T")


class SnapshotReader(Protocol):
    """Runs a read-only operation on a snapshot of a store."""

    def __call__(self, operation: Callable[[Transaction], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class TransferChunk:
    """Some tasks with complete payloads; the next chunk begins after the id `after`."""

    tasks: tuple[StoredTask, ...]
    after: int


def task_chunks(read: SnapshotReader, queue: str, *, after: int, now: Instant) -> Iterator[TransferChunk]:
    """Yield all tasks of the queue with ids beyond `after`, as of `now`."""
    while True:
        start = after
        page = read(
            lambda transaction, start=start: transaction.peek(  # type: ignore[misc]
                queue, ANY, ALL_STATES, after=start, limit=CHUNK_TASKS, payload_bytes=SHORT_BYTES, now=now
            )
        )
        chunk: list[StoredTask] = []
        size = 0
        for task in page.tasks:
            whole = _complete_task(read, task, now=now) if len(task.payload) == SHORT_BYTES else task
            after = task.id
            if whole is None:  # deleted since
                continue
            chunk.append(whole)
            size += len(whole.payload)
            if size >= CHUNK_BYTES:
                yield TransferChunk(tuple(chunk), after)
                chunk, size = [], 0
        if chunk:
            yield TransferChunk(tuple(chunk), after)
        if page.next_after is None:
            return
        after = page.next_after


def _complete_task(read: SnapshotReader, task: StoredTask, *, now: Instant) -> StoredTask | None:
    """Return the task, as it was first read, with its complete payload; None if it was deleted since."""
    page = read(
        lambda transaction: transaction.peek(
            task.queue,
            ANY,
            ALL_STATES,
            names=[task.shown_name],
            limit=1,
            payload_bytes=LARGEST_PAYLOAD_BYTES,
            now=now,
        )
    )
    return next((replace(task, payload=found.payload) for found in page.tasks if found.id == task.id), None)


def name_chunks(read: SnapshotReader, queue: str, *, after: str | None, now: Instant) -> Iterator[list[HeldName]]:
    """Yield all held names of the queue beyond `after`."""
    while True:
        start = after
        held: list[HeldName] = read(
            lambda transaction, start=start: transaction.held_names(queue, after=start, limit=CHUNK_NAMES, now=now)  # type: ignore[misc]
        )
        if held:
            yield held
        if len(held) < CHUNK_NAMES:
            return
        after = held[-1].name
