"""What only looks at queues that are spread: counts are sums, lists are merged, waiting times are estimated."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields, replace
from heapq import merge
from itertools import islice
from secrets import randbits

from queue_core.clock import Instant
from queue_core.stats import FinishedLease, LiveLease, QueueStats, Samples, TagStats, WaitingTask, positions_of
from queue_core.store import ClientCall, HeldName, Page
from queue_core.stores.redis.spread import Spread, Spreads, by_shard
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import Lease, QueueSpec, StoredTask, TagFilter, TaskState

MAX_CURSORS = 1000

_COUNTS = tuple(
    field.name
    for field in fields(QueueStats)
    if field.name in ("ready", "delayed", "in_flight", "dead") or field.name.endswith("_total")
)


class SpreadLooking:
    """The verbs that only look. A queue that is not spread is left to `RedisTransaction`."""

    def __init__(self, plain: RedisTransaction, spreads: Spreads) -> None:
        self._plain = plain
        self._spreads = spreads
        self._cursors: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._next_cursor = 1 + randbits(48)

    def _names(self, queue: str) -> list[str]:
        """The queues that a queue consists of."""
        spread = self._spreads.of(queue)
        return [queue] if spread is None else spread.shards

    def queue(self, name: str) -> QueueSpec:
        return replace(self._plain.queue(self._names(name)[0]), name=name)

    def queues(self) -> list[QueueSpec]:
        found = {spec.name.partition(":")[0]: spec for spec in self._plain.queues()}
        return [replace(found[name], name=name) for name in sorted(found)]

    # -- counts ---------------------------------------------------------------------------------------------------

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return _sum(queue, [self._plain.stats(name, tags, now=now) for name in self._names(queue)])

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        """A tag that is among the first of all shards is among the first of each that has it."""
        by_tag: dict[str | None, list[QueueStats]] = {}
        for name in self._names(queue):
            for each in self._plain.tag_stats(name, after=after, limit=limit, now=now):
                by_tag.setdefault(each.tag, []).append(each.stats)
        first = sorted(by_tag, key=lambda tag: (tag is not None, tag or ""))[:limit]
        return [TagStats(tag, _sum(queue, by_tag[tag])) for tag in first]

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        """Exact for the shards; for all of them, what lies between two positions counts as its last task."""
        of_shards = [self._plain.waiting(name, tags, now=now) for name in self._names(queue)]
        if len(of_shards) == 1:
            return of_shards[0]
        steps = sorted(
            (each.ready_at, each.position - (waiting[at - 1].position if at else 0))
            for waiting in of_shards
            for at, each in enumerate(waiting)
        )
        merged: list[WaitingTask] = []
        reached = 0
        positions = iter(positions_of(sum(number for _, number in steps)))
        position = next(positions, None)
        for ready_at, number in steps:
            reached += number
            while position is not None and position <= reached:
                merged.append(WaitingTask(position, ready_at))
                position = next(positions, None)
        return tuple(merged)

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        of_shards = [self._plain.upcoming(name, tags, until=until, limit=limit, now=now) for name in self._names(queue)]
        return list(islice(merge(*of_shards), limit))

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        etas = [self._plain.next_eta(name, now=now) for name in self._names(queue)]
        return min((eta for eta in etas if eta is not None), default=None)

    # -- lists ----------------------------------------------------------------------------------------------------

    def peek(
        self,
        queue: str,
        tags: TagFilter,
        states: frozenset[TaskState],
        *,
        names: Sequence[str] | None = None,
        after: int = 0,
        limit: int,
        payload_bytes: int,
        now: Instant,
    ) -> Page:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.peek(
                queue, tags, states, names=names, after=after, limit=limit, payload_bytes=payload_bytes, now=now
            )
        asked: list[tuple[int, list[str] | None]] = [(index, None) for index in range(spread.size)]
        if names is not None:
            asked = [
                (index, [spread.inner_name(name) for name in some])
                for index, _, some in by_shard(names, spread.index_of_name)
            ]
        tasks: list[StoredTask] = []
        has_more = False
        for index, inner in asked:
            page = self._plain.peek(
                spread.shard(index),
                tags,
                states,
                names=inner,
                after=max(0, (after - index) // spread.size),
                limit=limit,
                payload_bytes=payload_bytes,
                now=now,
            )
            tasks += [self._outer_task(task, spread, index) for task in page.tasks]
            has_more = has_more or page.next_after is not None
        tasks.sort(key=lambda task: task.id)
        shown = tuple(tasks[:limit])
        return Page(shown, shown[-1].id if shown and (has_more or len(tasks) > limit) else None)

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.live_leases(queue, limit=limit, now=now)
        of_shards = [
            [
                replace(lease, name=spread.outer_name(lease.name, index))
                for lease in self._plain.live_leases(name, limit=limit, now=now)
            ]
            for index, name in enumerate(spread.shards)
        ]
        return list(islice(merge(*of_shards, key=lambda lease: lease.expires_at), limit))

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        """The cursors of the shards are kept in this process under one number; elsewhere it counts as `missed`."""
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.samples(queue, after=after, limit=limit)
        cursors = self._cursors.pop(after, None) if after else (0,) * spread.size
        found: list[FinishedLease] = []
        missed = cursors is None or len(cursors) != spread.size
        reached: list[int] = []
        for index, name in enumerate(spread.shards):
            begin = 0 if missed or cursors is None else cursors[index]
            some = self._plain.samples(name, after=begin, limit=max(0, limit - len(found)))
            found += [self._outer_finished(lease, spread, index) for lease in some.finished]
            missed = missed or some.missed
            reached.append(some.cursor)
        if after and not found and not missed and cursors is not None:
            self._cursors[after] = cursors
            return Samples((), after)
        self._next_cursor += 1
        self._cursors[self._next_cursor] = tuple(reached)
        while len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)
        found.sort(key=lambda lease: lease.ended_at)
        return Samples(tuple(found), self._next_cursor, missed)

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        of_shards = [self._plain.held_names(name, after=after, limit=limit, now=now) for name in self._names(queue)]
        return list(islice(merge(*of_shards, key=lambda held: held.name), limit))

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return self._plain.workers_seen(workers)

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:
        return self._plain.answer_of(call, now=now)

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        return self._plain.last_answer(session)

    # -- inside and outside ---------------------------------------------------------------------------------------

    def _outer_lease(self, lease: Lease, spread: Spread, index: int) -> Lease:
        name, token = spread.outer_name(lease.name, index), spread.outer_token(lease.token, index)
        return replace(lease, queue=spread.queue, name=name, token=token)

    def _outer_finished(self, lease: FinishedLease, spread: Spread, index: int) -> FinishedLease:
        return replace(lease, queue=spread.queue, name=spread.outer_name(lease.name, index))

    def _outer_task(self, task: StoredTask, spread: Spread, index: int) -> StoredTask:
        return replace(task, queue=spread.queue, id=spread.outer_id(task.id, index))

    def _outer_of_shard(self, lease: FinishedLease) -> FinishedLease:
        """A finished lease of any queue, a shard or not."""
        queue, _, index = lease.queue.partition(":")
        spread = self._spreads.of(queue) if index else None
        return lease if spread is None else self._outer_finished(lease, spread, int(index))


def _sum(queue: str, counted: Sequence[QueueStats]) -> QueueStats:
    oldest = [each.oldest_ready_at for each in counted if each.oldest_ready_at is not None]
    sums = {name: sum(getattr(each, name) for each in counted) for name in _COUNTS}
    return replace(counted[0], queue=queue, oldest_ready_at=min(oldest, default=None), **sums)
