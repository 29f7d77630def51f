"""The tasks of a queue, in id order and in chunks of bounded size, however many there are and however long."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from queue_core.api import ALL_STATES
from queue_core.clock import Instant
from queue_core.limits import MAX_PAYLOAD_BYTES
from queue_core.store import HeldName, Transaction
from queue_core.task import ANY, StoredTask

CHUNK_TASKS: Final = 500
CHUNK_BYTES: Final = 4 << 20
"""Payload bytes of a chunk: it ends with the task that brings it there."""
CHUNK_NAMES: Final = 1000
SHORT_BYTES: Final = 4096
"""Payloads are asked for up to here; the longer ones are then fetched one by one."""

T = TypeVar("T")


class SnapshotReader(Protocol):
    """Runs something that only reads on a snapshot of a store."""

    def __call__(self, step: Callable[[Transaction], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class TransferChunk:
    """Some tasks with their whole payloads, and the id after which the next chunk begins."""

    tasks: tuple[StoredTask, ...]
    after: int


def task_chunks(look: SnapshotReader, queue: str, *, after: int, now: Instant) -> Iterator[TransferChunk]:
    """All tasks of the queue beyond an id, as they are at `now`."""
    while True:
        start = after
        page = look(
            lambda transaction, start=start: transaction.peek(  # type: ignore[misc]
                queue, ANY, ALL_STATES, after=start, limit=CHUNK_TASKS, payload_bytes=SHORT_BYTES, now=now
            )
        )
        chunk: list[StoredTask] = []
        size = 0
        for task in page.tasks:
            whole = _whole(look, task, now=now) if len(task.payload) == SHORT_BYTES else task
            after = task.id
            if whole is None:  # deleted since: nothing to carry
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


def _whole(look: SnapshotReader, task: StoredTask, *, now: Instant) -> StoredTask | None:
    """The task with all of its payload, as it was when it was first seen."""
    page = look(
        lambda transaction: transaction.peek(
            task.queue,
            ANY,
            ALL_STATES,
            names=[task.shown_name],
            limit=1,
            payload_bytes=MAX_PAYLOAD_BYTES,
            now=now,
        )
    )
    return next((replace(task, payload=found.payload) for found in page.tasks if found.id == task.id), None)


def name_chunks(look: SnapshotReader, queue: str, *, after: str | None, now: Instant) -> Iterator[list[HeldName]]:
    """All held names of the queue beyond one of them."""
    while True:
        start = after
        held: list[HeldName] = look(
            lambda transaction, start=start: transaction.held_names(queue, after=start, limit=CHUNK_NAMES, now=now)  # type: ignore[misc]
        )
        if held:
            yield held
        if len(held) < CHUNK_NAMES:
            return
        after = held[-1].name
