"""Read how many messages wait in a broker's queues, without taking any and without making a queue."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

import urllib3
from kombu.transport import virtual

from orchestrator.base.json_fields import mapping_of
from orchestrator.sources.celery.connections import as_unavailable, connect, opened, release
from orchestrator.sources.celery.messages import MessageHead, head_of, held_message, restored, sampled_future
from orchestrator.sources.celery.sampling import QueueDepth
from queue_core.config.store_urls import scheme_of

MAX_HEADS: Final = 50
"""Messages of a list that are looked at for their eta, from each end."""
MAX_HEAD_BYTES: Final = 1 << 18
"""Bytes of these, about: where messages are large, fewer are looked at."""
MAX_HELD: Final = 2_000
"""Unacknowledged messages that are looked at."""
API_SECONDS: Final = 2.0
_SCAN_COUNT: Final = 200
_NOT_FOUND: Final = 404

# Take it out of `unacked` and put it back in one step: a crash between the two would lose it.
_RESTORE: Final = """
if redis.call('hdel', KEYS[1], ARGV[1]) == 1 then
  redis.call('zrem', KEYS[2], ARGV[1])
  redis.call('rpush', KEYS[3], ARGV[2])
  return 1
end
return 0
"""


class DepthReader(Protocol):
    """Reads one broker. Belongs to one thread; every verb may raise `SourceUnavailableError`."""

    def read(self, queues: Sequence[str], *, wall_seconds: float) -> Mapping[str, QueueDepth]:
        """Return what is known of each queue; one that does not exist is empty."""

    def restore(self, tasks: Sequence[str], queues: Sequence[str]) -> Sequence[str]:
        """Put the unacknowledged messages of these tasks back into their queues; return those that were."""

    def close(self) -> None:
        """Close its connection."""


def reader_of(url: str, options: Mapping[str, object], *, management: str | None = None) -> DepthReader:
    """Return the reader for a broker's kind."""
    scheme = scheme_of(url).partition("+")[0]
    if scheme in ("redis", "rediss", "sentinel"):
        return RedisReader(url, options)
    return DeclareReader(url, options, management=management)


class RedisReader:
    """Reads lists of Redis as kombu names them: one per priority, and `unacked` for all queues of a database."""

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        self._url = url
        self._options = options
        self._connection: Any = None

    def read(self, queues: Sequence[str], *, wall_seconds: float) -> Mapping[str, QueueDepth]:
        """See `DepthReader.read`: one pipeline for all lengths, one for the ends of the lists."""
        with as_unavailable("read the queues", self._url):
            try:
                return self._read(queues, wall_seconds)
            except Exception:
                self.close()
                raise

    def _read(self, queues: Sequence[str], wall_seconds: float) -> dict[str, QueueDepth]:
        channel, client = self._open()
        keys = {queue: self._keys(channel, queue) for queue in queues}
        pipe = client.pipeline(transaction=False)
        for queue in queues:
            for key in keys[queue]:
                pipe.llen(key)
        pipe.hlen(self._prefixed(channel, channel.unacked_key))
        lengths = pipe.execute()
        unacked = int(lengths.pop())
        at = iter(lengths)
        lists = {queue: [(key, int(next(at))) for key in keys[queue]] for queue in queues}
        held = self._held_by_queue(channel, client, unacked) if unacked else {}
        return {queue: self._depth(client, lists[queue], held.get(queue, 0), wall_seconds) for queue in queues}

    def _depth(self, client: Any, lists: Sequence[tuple[str, int]], unacked: int, now: float) -> QueueDepth:
        ready = future = 0
        etas: list[float] = []
        head = ""
        for key, length in lists:
            ready += length
            if not length:
                continue
            first, last = self._ends(client, key, length)
            if not head and first and first[0] is not None:
                head = first[0].task
            looked = [*first, *last]
            found = sampled_future(looked, now=now)
            etas += found
            future += round(length * len(found) / len(looked)) if looked else 0
        return QueueDepth(ready, future, tuple(sorted(etas)), head, None, unacked)

    def _ends(
        self,
        client: Any,
        key: str,
        length: int,
    ) -> tuple[list[MessageHead | None], list[MessageHead | None]]:
        """Return headers from the head of a list, which is its right end, and from its tail, without any twice."""
        first = client.lrange(key, -1, -1)
        if not first:
            return [], []
        count = max(1, min(MAX_HEADS, MAX_HEAD_BYTES // max(1, len(first[0]))))
        if length > 1:
            first = client.lrange(key, -min(count, length), -1)[::-1]
        rest = max(0, min(count, length - len(first)))
        last = client.lrange(key, 0, rest - 1) if rest else []
        return [head_of(raw) for raw in first], [head_of(raw) for raw in last]

    def _held_by_queue(self, channel: Any, client: Any, unacked: int) -> dict[str, int]:
        """Return the unacknowledged messages of each queue; where there are many, by a sample of them."""
        counts: dict[str, int] = {}
        looked = cursor = 0
        key = self._prefixed(channel, channel.unacked_key)
        while looked < MAX_HELD:
            cursor, found = client.hscan(key, cursor=cursor, count=_SCAN_COUNT)
            for tag, raw in found.items():
                looked += 1
                message = held_message(tag, raw)
                if message is not None:
                    counts[message.queue] = counts.get(message.queue, 0) + 1
            if not cursor:
                break
        share = unacked / looked if looked and cursor else 1.0
        return {queue: round(count * share) for queue, count in counts.items()}

    def restore(self, tasks: Sequence[str], queues: Sequence[str]) -> Sequence[str]:
        """See `DepthReader.restore`: as kombu does when the visibility of a message times out."""
        with as_unavailable("put back the tasks of a dead worker", self._url):
            channel, client = self._open()
            wanted, known = set(tasks), set(queues)
            done: list[str] = []
            cursor = 0
            unacked = self._prefixed(channel, channel.unacked_key)
            index = self._prefixed(channel, channel.unacked_index_key)
            while wanted:
                cursor, found = client.hscan(unacked, cursor=cursor, count=_SCAN_COUNT)
                for tag, raw in found.items():
                    message, text = held_message(tag, raw), restored(raw)
                    if message is None or text is None or message.task not in wanted or message.queue not in known:
                        continue
                    keys = (unacked, index, self._prefixed(channel, message.queue))
                    if client.eval(_RESTORE, len(keys), *keys, tag, text):
                        wanted.discard(message.task)
                        done.append(message.task)
                if not cursor:
                    break
            return done

    def _open(self) -> tuple[Any, Any]:
        """Return kombu's channel, which knows the names of keys, and a plain client: it prefixes none."""
        if self._connection is None:
            self._connection = opened(connect(self._url, self._options))
        import redis

        channel = self._connection.default_channel
        return channel, redis.Redis(connection_pool=channel.pool)

    def _keys(self, channel: Any, queue: str) -> list[str]:
        """Return the keys of a queue's lists, in the order in which they are served."""
        return [self._prefixed(channel, channel._q_for_pri(queue, step)) for step in channel.priority_steps]  # noqa: SLF001

    @staticmethod
    def _prefixed(channel: Any, key: str) -> str:
        return f"{getattr(channel, 'global_keyprefix', '') or ''}{key}"

    def close(self) -> None:
        """See `DepthReader.close`."""
        if self._connection is not None:
            release(self._connection)
            self._connection = None


class DeclareReader:
    """Asks a broker by passive declares, a channel each: an absent queue closes it. And RabbitMQ's API, where given."""

    def __init__(self, url: str, options: Mapping[str, object], *, management: str | None = None) -> None:
        self._url = url
        self._options = options
        self._connection: Any = None
        self._api = ManagementApi(management, virtual_host_of(url)) if management else None

    def read(self, queues: Sequence[str], *, wall_seconds: float) -> Mapping[str, QueueDepth]:  # noqa: ARG002
        """See `DepthReader.read`; the API's answers, which are seconds old, add what a declare does not tell."""
        with as_unavailable("read the queues", self._url):
            try:
                if self._connection is None:
                    self._connection = opened(connect(self._url, self._options))
                ready = {queue: self._ready(queue) for queue in queues}
            except Exception:
                self.close()
                raise
        depths = {queue: QueueDepth(count) for queue, count in ready.items()}
        if self._api is not None:
            # The API only adds to these counts: while it is away, ages are estimated.
            with suppress(OSError, ValueError, urllib3.exceptions.HTTPError):
                return {queue: self._api.completed(queue, depth) for queue, depth in depths.items()}
        return depths

    def _ready(self, queue: str) -> int:
        connection = self._connection
        channel = connection.channel()
        try:
            if isinstance(channel, virtual.Channel):  # a passive declare of these may make the queue
                return max(0, int(channel._size(queue)))  # noqa: SLF001
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors as error:
            if getattr(error, "reply_code", getattr(error, "code", None)) == _NOT_FOUND:
                return 0
            raise
        finally:
            with suppress(Exception):  # an absent queue has closed it
                channel.close()

    def restore(self, tasks: Sequence[str], queues: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """See `DepthReader.restore`: this broker gives them to other workers by itself."""
        return ()

    def close(self) -> None:
        """See `DepthReader.close`."""
        if self._connection is not None:
            release(self._connection)
            self._connection = None


class ManagementApi:
    """RabbitMQ's management API: messages that workers hold, and the time that publishers wrote on the first one."""

    def __init__(self, url: str, virtual_host: str) -> None:
        parts = urlsplit(url)
        login = f"{parts.username or 'guest'}:{parts.password or 'guest'}"
        host = parts.hostname or "127.0.0.1"
        port = f":{parts.port}" if parts.port else ""
        self.url = url
        self._base = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}/api/queues/{quote(virtual_host, safe='')}"
        self._headers = urllib3.make_headers(basic_auth=login)
        self._pool = urllib3.PoolManager(timeout=urllib3.Timeout(API_SECONDS), retries=False)

    def completed(self, queue: str, depth: QueueDepth) -> QueueDepth:
        """Return the depth with what the API tells of the queue; unchanged where it has no such queue."""
        answer = self._pool.request("GET", f"{self._base}/{quote(queue, safe='')}", headers=self._headers)
        if answer.status == _NOT_FOUND:
            return depth
        if answer.status != 200:
            raise OSError(f"it answered with status {answer.status}")
        found = mapping_of(json.loads(answer.data))
        unacked, head_at = found.get("messages_unacknowledged"), found.get("head_message_timestamp")
        return QueueDepth(
            depth.ready,
            unacked=unacked if isinstance(unacked, int) else None,
            head_at=float(head_at) if isinstance(head_at, int | float) and depth.ready else None,
        )


def virtual_host_of(url: str) -> str:
    """Return the virtual host of an AMQP URL; without one it is `/`, as kombu reads it."""
    import kombu

    return str(kombu.Connection(url).virtual_host or "/")
