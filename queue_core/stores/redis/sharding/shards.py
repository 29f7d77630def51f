"""A hot queue spread over several queues of its own, its shards, so that the nodes of a cluster share its load.

A shard is a queue called `queue:0`, `queue:1` and so on, which no queue of a caller can be called. Outside there is one
queue: ids, and so tokens and chosen names, carry the shard. How many shards a queue has is fixed when it is created.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar
from zlib import crc32

from queue_core.errors import InvalidSettingError
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.keys import SHARDS, key_of
from queue_core.task import chosen_name, parse_token

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardedQueue:
    """A queue and the number of its shards."""

    queue: str
    size: int

    def shard(self, index: int) -> str:
        """The name of a shard."""
        return f"{self.queue}:{index}"

    @property
    def shards(self) -> list[str]:
        """The names of all shards."""
        return [self.shard(index) for index in range(self.size)]

    def index_of_name(self, name: str) -> int:
        """Where the task of a name is, given or chosen."""
        digits = _digits_of(name)
        return int(digits) % self.size if digits else crc32(name.encode()) % self.size

    def index_of_token(self, token: str) -> int:
        """Where the task of a token is. Raises `InvalidTokenError`."""
        return parse_token(token)[0] % self.size

    def inner_token(self, token: str) -> str:
        """A token as its shard knows it."""
        task_id, leased_at = parse_token(token)
        return f"{task_id // self.size}.{leased_at}"

    def outer_token(self, token: str, index: int) -> str:
        """A shard's token as the world knows it."""
        task_id, _, leased_at = token.partition(".")
        return f"{self.outer_id(int(task_id), index)}.{leased_at}"

    def outer_id(self, task_id: int, index: int) -> int:
        """A shard's id as the world knows it."""
        return task_id * self.size + index

    def inner_name(self, name: str) -> str:
        """A name as its shard knows it: given names stay."""
        digits = _digits_of(name)
        return chosen_name(int(digits) // self.size) if digits else name

    def outer_name(self, name: str, index: int) -> str:
        """A shard's name as the world knows it."""
        digits = _digits_of(name)
        return chosen_name(self.outer_id(int(digits), index)) if digits else name


class ShardMap:
    """Which queues are spread, as the store has it; and which are to be once they are created."""

    def __init__(self, calls: Calls, wanted: Mapping[str, int]) -> None:
        """Raises `InvalidSettingError` where a queue exists that is spread otherwise."""
        self._calls = calls
        self._wanted = wanted
        self._known: dict[str, ShardedQueue | None] = {}
        self._rotation = count()
        calls.forget = self._forget
        for queue, size in wanted.items():
            if (found := self.of(queue)) is not None and found.size != size:
                raise InvalidSettingError(
                    f"queue {queue!r} is spread over {found.size} shards, which stays so: ?spread says {size}"
                )
            if found is None and self._exists(queue):
                raise _not_sharded(queue)

    def of(self, queue: str) -> ShardedQueue | None:
        """How a queue is spread; None: it is not."""
        try:
            return self._known[queue]
        except KeyError:
            size = self._calls.client.execute(SHARDS, "HGET", SHARDS, queue)
            found = ShardedQueue(queue, int(size)) if isinstance(size, bytes) else None
            self._known[queue] = found
            return found

    def create(self, queue: str) -> ShardedQueue | None:
        """The same for a queue that is about to be created: now it is fixed. Raises `InvalidSettingError`."""
        size = self._wanted.get(queue)
        if size is not None and self.of(queue) is None:
            if self._exists(queue):
                raise _not_sharded(queue)
            self._calls.client.execute(SHARDS, "HSETNX", SHARDS, queue, size)
            self._forget(queue)
        return self.of(queue)

    def drop(self, queue: str) -> None:
        """The queue was dropped."""
        self._calls.client.execute(SHARDS, "HDEL", SHARDS, queue)
        self._forget(queue)

    def forget(self) -> None:
        """The store was emptied."""
        self._known.clear()

    def rotation(self) -> int:
        """Another number each time; what it leaves over the number of shards is the one whose turn it is."""
        return next(self._rotation)

    def _forget(self, queue: str) -> None:
        self._known.pop(queue, None)

    def _exists(self, queue: str) -> bool:
        return bool(self._calls.client.execute(key_of(queue), "EXISTS", key_of(queue)))


def by_shard(items: Sequence[T], index_of: Callable[[T], int]) -> list[tuple[int, list[int], list[T]]]:
    """Items by shard, in order: the shard, where its items were, and these."""
    groups: dict[int, tuple[list[int], list[T]]] = {}
    for position, item in enumerate(items):
        positions, some = groups.setdefault(index_of(item), ([], []))
        positions.append(position)
        some.append(item)
    return [(index, *group) for index, group in groups.items()]


def in_places(size: int, parts: Iterable[tuple[Sequence[int], Sequence[T]]]) -> list[T]:
    """What belongs to the positions given with it, in one list."""
    whole = {position: item for positions, items in parts for position, item in zip(positions, items, strict=True)}
    return [whole[position] for position in range(size)]


def _digits_of(name: str) -> str:
    digits = name[1:]
    return digits if name[:1] == "_" and digits.isascii() and digits.isdigit() else ""


def _not_sharded(queue: str) -> InvalidSettingError:
    return InvalidSettingError(
        f"queue {queue!r} exists and is not spread, which stays so: leave it out of ?spread, or move it to a store "
        "where it is not there yet (towline migrate)"
    )
