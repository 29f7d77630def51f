"""Messages of a `Producer.batch()` of kombu's (from 5.7), which are added by one call for many: see ADR 116.

A message is there when the batch was flushed: at its end, or when it is full.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from queue_core.celery.transport.envelope import KombuMessage
from queue_core.errors import StoreUnavailableError
from queue_core.limits import MAX_TASKS_PER_ADD
from queue_core.task import NewTask

MAX_BATCH_BYTES: Final = 4 << 20
"""Payloads of one call, beside the last one."""


class PublishingChannel(Protocol):
    """A channel as a batch uses it."""

    def has_task_queue(self, queue: str) -> bool:
        """Return whether a queue is one of the store."""

    def basic_publish(self, message: KombuMessage, exchange: str, routing_key: str, **_: Any) -> None:
        """Publish a message now."""

    def prepared_task(self, message: KombuMessage, queue: str) -> NewTask:
        """Return the task of a message that a batch adds to a queue."""

    def add_tasks(self, queue: str, tasks: Sequence[NewTask]) -> None:
        """Add tasks to a queue, all of them or none."""


class PublishBatch:
    """One batch, with the members that kombu uses. Only messages that are named a task queue wait for its end."""

    def __init__(self, channel: PublishingChannel, max_size: int) -> None:
        self.channel = channel
        self._most = min(max_size, MAX_TASKS_PER_ADD)
        self._tasks: dict[str, list[NewTask]] = {}
        self._count = 0
        self._bytes = 0

    def publish(self, message: KombuMessage, *, exchange: str, routing_key: str, **options: Any) -> None:
        """Keep a message for the next flush, or publish it after those before it."""
        if exchange or not self.channel.has_task_queue(routing_key):
            self.flush()
            self.channel.basic_publish(message, exchange, routing_key, **options)
            return
        task = self.channel.prepared_task(message, routing_key)
        self._tasks.setdefault(routing_key, []).append(task)
        self._count += 1
        self._bytes += len(task.payload)
        if self._count >= self._most or self._bytes >= MAX_BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Add the messages, those of each queue together. Raises kombu's `BatchPublishError`."""
        kept = self._tasks
        self.discard()
        try:
            for queue, tasks in kept.items():
                self.channel.add_tasks(queue, tasks)
        except StoreUnavailableError as error:  # as it is, kombu would publish the last message of the batch again
            from kombu.exceptions import BatchPublishError

            raise BatchPublishError(f"a batch of messages may be there, in part or as a whole: {error}") from error

    def discard(self) -> None:
        """Forget the messages that were not flushed."""
        self._tasks = {}
        self._count = self._bytes = 0

    def close(self) -> None:
        """Do nothing more: a batch has no connection of its own."""
