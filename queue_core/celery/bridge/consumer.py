"""Messages of any of kombu's brokers, by a consumer that acknowledges them one by one."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import kombu
from kombu.exceptions import ChannelError

from queue_core.celery.bridge.message import BridgedMessage, from_parts
from queue_core.celery.bridge.source import TRY_ONCE, MissingSourceQueueError
from queue_core.clock import Clock
from queue_core.config.store_urls import masked

HEARTBEAT_SECONDS: Final = 30
NOT_FOUND: Final = 404


class BridgeConsumer:
    """A consumer of queues; of those it declares none. See `BridgeSource`.

    Args:
        prefetch: messages that the broker hands over and that are not ended; kept ones come on top.
    """

    def __init__(
        self, url: str, queues: Sequence[str], *, prefetch: int, options: Mapping[str, object], clock: Clock
    ) -> None:
        self.url = masked(url)
        self._queues = tuple(queues)
        self._prefetch = prefetch
        self._clock = clock
        self._kept = 0
        self._arrived: deque[BridgedMessage] = deque()
        self._url, self._options = url, dict(options)
        self._connection = self._made()
        self.errors = (*self._connection.connection_errors, *self._connection.channel_errors, OSError)
        self._consumers: list[Any] = []

    def _made(self) -> kombu.Connection:
        return kombu.Connection(self._url, transport_options=self._options, heartbeat=HEARTBEAT_SECONDS)

    def open(self) -> None:
        """See `BridgeSource`."""
        self.close()
        self._connection = self._made()
        self._connection.ensure_connection(**TRY_ONCE)
        for queue in self._queues:
            self._count(queue)
        channel = self._connection.channel()
        for queue in self._queues:
            consumer = kombu.Consumer(
                channel,
                [kombu.Queue(queue, no_declare=True)],
                auto_declare=False,
                on_message=partial(self._receive, queue),
                prefetch_count=self._prefetch,
            )
            consumer.consume()
            self._consumers.append(consumer)

    def take(self, count: int, *, wait_seconds: float) -> list[BridgedMessage]:
        """See `BridgeSource`."""
        if self._connection.supports_heartbeats:
            self._connection.heartbeat_check()
        ends_at = self._clock.monotonic() + wait_seconds
        with suppress(TimeoutError):
            while not self._arrived and (left := ends_at - self._clock.monotonic()) > 0:
                self._connection.drain_events(timeout=left)
            while len(self._arrived) < count:  # what is here already
                self._connection.drain_events(timeout=0.001)
        return [self._arrived.popleft() for _ in range(min(count, len(self._arrived)))]

    def end(self, taken: Sequence[BridgedMessage]) -> None:
        """See `BridgeSource`."""
        for one in taken:
            one.handle.ack()

    def keep(self, taken: BridgedMessage) -> None:  # noqa: ARG002 - not acknowledged, it stays
        """See `BridgeSource`."""
        self._kept += 1
        for consumer in self._consumers:
            consumer.qos(prefetch_count=self._prefetch + self._kept)

    def waiting(self) -> int:
        """See `BridgeSource`."""
        return sum(self._count(queue) for queue in self._queues)

    def close(self) -> None:
        """See `BridgeSource`."""
        self._arrived.clear()
        self._consumers, self._kept = [], 0
        with suppress(*self.errors):
            self._connection.close()

    def _receive(self, queue: str, message: kombu.Message) -> None:
        info = message.delivery_info or {}
        headers = dict(message.headers)
        if not message.errors:
            headers.pop("compression", None)  # kombu has taken it off the body
        self._arrived.append(
            from_parts(
                queue,
                body=message.body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=headers,
                properties=message.properties,
                delivery_info=info,
                handle=message,
            )
        )

    def _count(self, queue: str) -> int:
        """Ask for a queue's length on a channel of its own: a broker of AMQP closes it when there is no such queue."""
        try:
            with self._connection.channel() as channel:
                return int(channel.queue_declare(queue, passive=True).message_count)
        except ChannelError as error:
            raise MissingSourceQueueError(queue) from error
        except self._connection.channel_errors as error:
            if getattr(error, "reply_code", None) == NOT_FOUND:
                raise MissingSourceQueueError(queue) from error
            raise
