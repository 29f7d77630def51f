"""A hot queue that is sharded: stored as several inner queues, so that the nodes of a cluster share its load.

A shard is a queue named `queue:0`, `queue:1` and so on, names that callers can't use. Callers see one queue: ids, so
tokens and chosen names, carry the shard. The number of shards is fixed when the queue is created.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import TypeVar
from zlib import crc32

from queue_core.errors import InvalidSettingError
from queue_core.stats import QueueStats
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.keys import SHARDS, key_of
from queue_core.task import QueueSpec, chosen_name, parse_token

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardedQueue:
    """A queue and the number of its shards."""

    queue: str
    size: int

    def shard(self, index: int) -> str:
        """Return the name of a shard."""
        return f"{self.queue}:{index}"

    @property
    def shards(self) -> list[str]:
        """The names of all shards."""
        return [self.shard(index) for index in range(self.size)]

    def index_of_name(self, name: str) -> int:
        """Return the shard of the task with a name, given or chosen."""
        digits = _digits_of(name)
        return int(digits) % self.size if digits else crc32(name.encode()) % self.size

    def index_of_token(self, token: str) -> int:
        """Return the shard of the task with a token. Raises `InvalidTokenError`."""
        return parse_token(token)[0] % self.size

    def inner_token(self, token: str) -> str:
        """Convert a caller's token to its shard's."""
        task_id, leased_at = parse_token(token)
        return f"{task_id // self.size}.{leased_at}"

    def outer_token(self, token: str, index: int) -> str:
        """Convert a shard's token to the caller's."""
        task_id, _, leased_at = token.partition(".")
        return f"{self.outer_id(int(task_id), index)}.{leased_at}"

    def outer_id(self, task_id: int, index: int) -> int:
        """Convert a shard's id to the caller's."""
        return task_id * self.size + index

    def inner_name(self, name: str) -> str:
        """Convert a caller's name to its shard's; given names stay."""
        digits = _digits_of(name)
        return chosen_name(int(digits) // self.size) if digits else name

    def outer_name(self, name: str, index: int) -> str:
        """Convert a shard's name to the caller's; given names stay."""
        digits = _digits_of(name)
        return chosen_name(self.outer_id(int(digits), index)) if digits else name


class ShardMap:
    """The sharded queues of the store, and those that are to be sharded when they are created."""

    def __init__(self, calls: Calls, wanted: Mapping[str, int]) -> None:
        """Raises `InvalidSettingError` for an existing queue with another number of shards than `wanted` says."""
        self._calls = calls
        self._wanted = wanted
        self._known: dict[str, ShardedQueue | None] = {}
        self._rotation = count()
        calls.forget = self._forget
        for queue, size in wanted.items():
            if (found := self.of(queue)) is not None and found.size != size:
                raise InvalidSettingError(
                    f"queue {queue!r} has {found.size} shards, which can't be changed: ?spread says {size}"
                )
            if found is None and self._exists(queue):
                raise _not_sharded(queue)

    def of(self, queue: str) -> ShardedQueue | None:
        """Return a queue's shards; None: it is not sharded."""
        try:
            return self._known[queue]
        except KeyError:
            size = self._calls.client.execute(SHARDS, "HGET", SHARDS, queue)
            found = ShardedQueue(queue, int(size)) if isinstance(size, bytes) else None
            self._known[queue] = found
            return found

    def create(self, spec: QueueSpec) -> ShardedQueue | None:
        """Fix and return the shards of a queue that is about to be created. Raises `InvalidSettingError`."""
        queue = spec.name
        size = self._wanted.get(queue)
        if size is not None or self.of(queue) is not None:
            _check_limits(spec)
        if size is not None and self.of(queue) is None:
            if self._exists(queue):
                raise _not_sharded(queue)
            self._calls.client.execute(SHARDS, "HSETNX", SHARDS, queue, size)
            self._forget(queue)
        return self.of(queue)

    def drop(self, queue: str) -> None:
        """Forget the shards of a queue that was dropped."""
        self._calls.client.execute(SHARDS, "HDEL", SHARDS, queue)
        self._forget(queue)

    def forget(self) -> None:
        """Forget all shards, after the store was emptied."""
        self._known.clear()

    def rotation(self) -> int:
        """Return the next number; modulo the number of shards it is the next shard (round robin)."""
        return next(self._rotation)

    def _forget(self, queue: str) -> None:
        self._known.pop(queue, None)

    def _exists(self, queue: str) -> bool:
        return bool(self._calls.client.execute(key_of(queue), "EXISTS", key_of(queue)))


def by_shard(items: Sequence[T], index_of: Callable[[T], int]) -> list[tuple[int, list[int], list[T]]]:
    """Group items by shard: the shard, the positions of its items, and the items in order."""
    groups: dict[int, tuple[list[int], list[T]]] = {}
    for position, item in enumerate(items):
        positions, some = groups.setdefault(index_of(item), ([], []))
        positions.append(position)
        some.append(item)
    return [(index, *group) for index, group in groups.items()]


def in_order(size: int, parts: Iterable[tuple[Sequence[int], Sequence[T]]]) -> list[T]:
    """Merge groups of positions and items into one list of `size` items."""
    whole = {position: item for positions, items in parts for position, item in zip(positions, items, strict=True)}
    return [whole[position] for position in range(size)]


def _digits_of(name: str) -> str:
    digits = name[1:]
    return digits if name[:1] == "_" and digits.isascii() and digits.isdigit() else ""


def _check_limits(spec: QueueSpec) -> None:
    """Raise `InvalidSettingError` for a limit: tasks of any tag are on all shards, none of which knows the others."""
    limits = {
        "max_in_flight": spec.max_in_flight,
        "rate": spec.rate,
        "per_tag.max_in_flight": spec.per_tag.max_in_flight,
        "per_tag.rate": spec.per_tag.rate,
        "per_tag.fair": spec.per_tag.fair,
    }
    for setting, limit in limits.items():
        if limit:
            raise InvalidSettingError(
                f"queue {spec.name!r}: {setting} can't be obeyed by a sharded queue, whose shards know nothing of each "
                f"other: leave {setting} out, or leave the queue out of ?spread (an existing queue: move it to a store "
                "that does not have it yet, with towline migrate)"
            )


def _not_sharded(queue: str) -> InvalidSettingError:
    return InvalidSettingError(
        f"queue {queue!r} exists without shards, which can't change: leave it out of ?spread, or move it to a store "
        "that does not have it yet (towline migrate)"
    )


_COUNTS = tuple(
    field.name
    for field in fields(QueueStats)
    if field.name in ("ready", "delayed", "in_flight", "dead", "held") or field.name.endswith("_total")
)


def sum_of(queue: str, counted: Sequence[QueueStats]) -> QueueStats:
    """Return the counts of a sharded queue, from those of its shards."""
    oldest = [each.oldest_ready_at for each in counted if each.oldest_ready_at is not None]
    sums = {name: sum(getattr(each, name) for each in counted) for name in _COUNTS}
    return replace(counted[0], queue=queue, oldest_ready_at=min(oldest, default=None), **sums)
