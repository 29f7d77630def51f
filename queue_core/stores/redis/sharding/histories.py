"""The history of sharded queues: pages of the shards' ended leases, merged in the order in which these ended."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from secrets import randbits

from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.stats import FinishedLease
from queue_core.stores.redis.reads import NumberedHistory
from queue_core.stores.redis.sharding.shards import ShardedQueue
from queue_core.stores.redis.transaction import RedisTransaction

MAX_CURSORS = 1000
"""The most cursors over histories, or samples, of sharded queues that a process keeps; the oldest go first."""
_NO_MORE = 1  # nothing was recorded before the first

Positions = Mapping[int, int | None]
"""For each shard that a page concerns, the cursor at which it goes on there; None: with the newest."""


@dataclass(frozen=True, slots=True)
class ShardedPage:
    """Ended leases, newest first, as their shards know them, each with the index of its shard."""

    leases: tuple[tuple[int, FinishedLease], ...]
    next_before: int | None


class Histories:
    """The cursors of a process. Each shard keeps `history_keep` ended leases, so a sharded queue keeps more."""

    def __init__(self, plain: RedisTransaction) -> None:
        self._plain = plain
        self._cursors: OrderedDict[int, Positions] = OrderedDict()
        self._next_cursor = 1 + randbits(48)

    def page(
        self, sharded: ShardedQueue, *, names: Sequence[str] | None, before: int | None, limit: int, now: Instant
    ) -> ShardedPage:
        """See `Transaction.history`. Raises `InvalidRequestError` for a cursor of another process, or an old one."""
        pages: dict[int, NumberedHistory] = {}
        for index, position in self._positions(sharded, names, before).items():
            inner = None
            if names is not None:
                inner = [sharded.inner_name(name) for name in names if sharded.index_of_name(name) == index]
            pages[index] = self._plain.numbered_history(
                sharded.shard(index), names=inner, before=position, limit=limit, now=now
            )
        taken = dict.fromkeys(pages, 0)
        found: list[tuple[int, FinishedLease]] = []
        for index, lease in islice(merge(*map(_indexed, pages, pages.values()), key=_ended_last), limit):
            taken[index] += 1
            found.append((index, lease))
        return ShardedPage(
            tuple(found), self._keep({index: pages[index].position_after(taken[index]) for index in pages})
        )

    def _positions(self, sharded: ShardedQueue, names: Sequence[str] | None, before: int | None) -> Positions:
        if before is None:
            return dict.fromkeys(
                range(sharded.size) if names is None else sorted(set(map(sharded.index_of_name, names)))
            )
        known = self._cursors.get(before)
        if known is None or max(known) >= sharded.size:
            raise InvalidRequestError(
                f"the cursor {before} of the history of the sharded queue {sharded.queue!r} is old, or of another "
                "process: begin with the newest page"
            )
        return known

    def _keep(self, reached: Positions) -> int | None:
        """Return the cursor of these positions; None: there are no more ended leases."""
        if all(position == _NO_MORE for position in reached.values()):
            return None
        self._next_cursor += 1
        self._cursors[self._next_cursor] = reached
        while len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)
        return self._next_cursor


def _indexed(index: int, page: NumberedHistory) -> Iterator[tuple[int, FinishedLease]]:
    return ((index, lease) for lease in page.page.leases)


def _ended_last(found: tuple[int, FinishedLease]) -> int:
    return -found[1].ended_at
