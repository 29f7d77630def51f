"""What people do to queues that are spread: delete by name, purge, postpone, redrive; each shard by itself."""

from collections.abc import Callable, Sequence

from queue_core.clock import Instant
from queue_core.stores.redis.administering import NameOutcome
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.spread import Spreads, by_shard, in_places
from queue_core.stores.redis.spread_looking import SpreadLooking
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import StoredTask, TagFilter


class SpreadAdministering(SpreadLooking):
    """See `Transaction`."""

    def __init__(self, calls: Calls, plain: RedisTransaction, spreads: Spreads) -> None:
        super().__init__(plain, spreads)
        self._calls = calls

    def delete_by_name(self, queue: str, names: Sequence[str], *, now: Instant) -> list[NameOutcome]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.delete_by_name(queue, names, now=now)
        parts = []
        for index, places, some in by_shard(names, spread.index_of_name):
            inner = [spread.inner_name(name) for name in some]
            parts.append((places, self._plain.delete_by_name(spread.shard(index), inner, now=now)))
        return in_places(len(names), parts)

    def purge(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        return self._purge(queue, limit, lambda name, left: self._plain.purge(name, tags, limit=left, now=now))

    def purge_dead(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        return self._purge(queue, limit, lambda name, left: self._plain.purge_dead(name, tags, limit=left, now=now))

    def _purge(self, queue: str, limit: int, purge: Callable[[str, int], int]) -> int:
        count = 0
        for name in self._names(queue):
            if count < limit:
                count += purge(name, limit - count)
        return count

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.postpone(queue, name, expected=expected, eta=eta, now=now)
        shard = spread.shard(spread.index_of_name(name))
        moved = self._plain.postpone(shard, spread.inner_name(name), expected=expected, eta=eta, now=now)
        self._calls.note_listeners(queue)
        return moved

    def redrive(
        self, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
    ) -> list[StoredTask]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.redrive(queue, names, tags, limit=limit, now=now)
        asked: list[tuple[int, list[str] | None]] = [(index, None) for index in range(spread.size)]
        if names is not None:
            asked = [
                (index, [spread.inner_name(name) for name in some])
                for index, _, some in by_shard(names, spread.index_of_name)
            ]
        redriven: list[StoredTask] = []
        for index, inner in asked:
            if len(redriven) < limit:
                some = self._plain.redrive(spread.shard(index), inner, tags, limit=limit - len(redriven), now=now)
                redriven += [self._outer_task(task, spread, index) for task in some]
        self._calls.note_listeners(queue)
        return redriven
