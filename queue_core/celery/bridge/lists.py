"""Messages of Celery's queues on Redis: lists, whose messages are moved to a list of the bridge's in one step.

kombu's own consumer pops a message before it is noted as taken: killed in between, it has lost it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import Any, Final

import kombu

from queue_core.celery.bridge.message import BridgedMessage, from_list
from queue_core.celery.bridge.source import TRY_ONCE
from queue_core.config.store_urls import masked

TAKEN_SUFFIX: Final = ".towline-bridge"
"""The list of what a bridge has taken and not ended, behind the queue's name."""
SCHEMES: Final = ("redis", "rediss", "redis+socket", "sentinel")
POLL_SECONDS: Final = 0.1
_CUT: Final = 50


class BridgeLists:
    """The lists of queues on Redis. See `BridgeSource`. Several bridges may share them, and then move some twice."""

    def __init__(self, url: str, queues: Sequence[str], *, options: Mapping[str, object], stop: Event) -> None:
        self.url = masked(url)
        self._queues = tuple(queues)
        self._stop = stop
        self._prefix = str(options.get("global_keyprefix", ""))
        self._kept: set[bytes] = set()
        self._options = {name: value for name, value in options.items() if name != "global_keyprefix"}
        self._url = url
        self._turn = 0
        self._connection = self._made()
        self.errors = (*self._connection.connection_errors, *self._connection.channel_errors, OSError)
        self._channel: Any = None

    def _made(self) -> kombu.Connection:
        return kombu.Connection(self._url, transport_options=self._options)

    def open(self) -> None:
        """See `BridgeSource`."""
        self._disconnect()
        self._connection = self._made()
        self._connection.ensure_connection(**TRY_ONCE)
        self._channel = self._connection.channel()

    def take(self, count: int, *, wait_seconds: float) -> list[BridgedMessage]:
        """See `BridgeSource`."""
        left = wait_seconds
        while not (found := self._take(count)) and left > 0 and not self._stop.wait(min(POLL_SECONDS, left)):
            left -= POLL_SECONDS
        return found

    def end(self, taken: Sequence[BridgedMessage]) -> None:
        """See `BridgeSource`."""
        with self._channel.client.pipeline(transaction=False) as pipe:
            for one in taken:
                pipe.lrem(self._taken_key(one.queue), -1, one.handle)
            pipe.execute()

    def keep(self, taken: BridgedMessage) -> None:
        """See `BridgeSource`."""
        self._kept.add(taken.handle)

    def waiting(self) -> int:
        """See `BridgeSource`."""
        with self._channel.client.pipeline(transaction=False) as pipe:
            for queue in self._queues:
                for key in (*self._keys(queue), self._taken_key(queue)):
                    pipe.llen(key)
            lengths: list[int] = pipe.execute()
        return max(0, sum(lengths) - len(self._kept))

    def held_by_workers(self) -> int:
        """Return how many messages the workers of the source have taken, of all queues of the database."""
        return int(self._channel.client.hlen(f"{self._prefix}{self._channel.unacked_key}"))

    def close(self) -> None:
        """See `BridgeSource`."""
        with suppress(*self.errors):
            if self._channel is not None:
                for queue in self._queues:
                    self._give_back(queue)
        self._disconnect()

    def _disconnect(self) -> None:
        self._channel = None
        with suppress(*self.errors):
            self._connection.close()

    def _take(self, count: int) -> list[BridgedMessage]:
        """Move messages to the bridge's lists, the oldest first, and return what is there."""
        found: list[BridgedMessage] = []
        self._turn = (self._turn + 1) % len(self._queues)
        for queue in (*self._queues[self._turn :], *self._queues[: self._turn]):
            taken_key = self._taken_key(queue)
            room = count - len(found)
            there = self._there(taken_key)
            for key in self._keys(queue):
                wanted = room - len(there)
                while wanted > 0:
                    with self._channel.client.pipeline(transaction=False) as pipe:
                        for _ in range(min(wanted, _CUT)):
                            pipe.rpoplpush(key, taken_key)
                        moved = [raw for raw in pipe.execute() if raw is not None]
                    there += moved
                    wanted -= len(moved)
                    if len(moved) < _CUT:
                        break
            found += [from_list(queue, raw) for raw in there[:room]]
        return found

    def _there(self, taken_key: str) -> list[bytes]:
        """Return what was taken before and is to be moved still, the oldest first."""
        raws: list[bytes] = self._channel.client.lrange(taken_key, 0, -1)
        return [raw for raw in reversed(raws) if raw not in self._kept]

    def _give_back(self, queue: str) -> None:
        """Put what was taken back to the end that workers take from, the oldest next."""
        taken_key, client = self._taken_key(queue), self._channel.client
        for raw in client.lrange(taken_key, 0, -1):
            with client.pipeline(transaction=True) as pipe:
                pipe.lrem(taken_key, 1, raw)
                pipe.rpush(self._key_of(queue, raw), raw)
                pipe.execute()

    def _keys(self, queue: str) -> list[str]:
        """Return the keys of a queue's lists, the first to be taken from first."""
        steps = self._channel.priority_steps
        return [f"{self._prefix}{self._channel._q_for_pri(queue, step)}" for step in steps]  # noqa: SLF001

    def _key_of(self, queue: str, raw: bytes) -> str:
        """Return the key of the list that a message of this priority belongs to."""
        channel, message = self._channel, from_list(queue, raw).message
        priority = channel._get_message_priority(message, reverse=False) if message else 0  # noqa: SLF001
        return f"{self._prefix}{channel._q_for_pri(queue, priority)}"  # noqa: SLF001

    def _taken_key(self, queue: str) -> str:
        return f"{self._prefix}{queue}{TAKEN_SUFFIX}"
