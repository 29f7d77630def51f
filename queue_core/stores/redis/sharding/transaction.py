"""The verbs of sharded queues: each calls the shards it concerns and merges their answers.

A verb is atomic within a shard, and not over several. Tasks are leased by eta within a shard; shards take turns.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from secrets import randbits
from typing import Literal
from zlib import crc32

from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.clock import Instant
from queue_core.errors import WorkerRetiredError
from queue_core.semantics import size_of
from queue_core.stats import (
    DELETED_BY_NAME,
    PURGED,
    FinishedLease,
    History,
    LiveLease,
    QueueStats,
    Samples,
    TagStats,
    TaskRemoval,
    WaitingTask,
    positions_of,
)
from queue_core.store import Kept
from queue_core.stores.redis.admin import NameOutcome
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.sharding.histories import MAX_CURSORS, Histories
from queue_core.stores.redis.sharding.named_tasks import redrive_shards, retag_shards
from queue_core.stores.redis.sharding.shards import ShardedQueue, ShardMap, by_shard, in_order, sum_of
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import (
    Added,
    Busy,
    CallVerb,
    ClientCall,
    Deleted,
    Deletion,
    Granted,
    HeldName,
    LeaseRequest,
    Page,
    Release,
    Renewal,
    Renewed,
    Retagged,
    Storage,
)

Add = Callable[[str, Sequence[NewTask]], list[Added]]
Routed = tuple[ShardedQueue | None, int, NewTask]


class ShardedTransaction:
    """See `Transaction`. Verbs of a queue that is not sharded are passed to `RedisTransaction`."""

    def __init__(self, calls: Calls, wanted: Mapping[str, int], shard_map: ShardMap | None = None) -> None:
        """Args:
        wanted: the number of shards of queues that are to be sharded when they are created.
        shard_map: the known shards; None: none yet.
        """
        self._calls = calls
        self._plain = RedisTransaction(calls)
        self._shard_map = shard_map or ShardMap(calls, wanted)
        self._cursors: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._histories = Histories(self._plain)
        self._next_cursor = 1 + randbits(48)
        self._wanted = wanted

    def forget(self) -> None:
        """Forget the known shards, after the store was emptied."""
        self._shard_map.forget()

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        sharded = self._shard_map.create(spec)
        if sharded is None:
            return self._plain.put_queue(spec, now=now)
        created = [self._plain.put_queue(replace(spec, name=name), now=now) for name in sharded.shards]
        return all(created)

    def delete_queue(self, name: str) -> int:
        sharded = self._shard_map.of(name)
        if sharded is None:
            return self._plain.delete_queue(name)
        deleted = sum([self._plain.delete_queue(shard) for shard in sharded.shards])
        self._shard_map.drop(name)
        return deleted

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        changed = [self._plain.set_paused(name, paused) for name in self._names(queue)]
        return any(changed)

    def set_moved(self, queue: str, to: str) -> None:
        for name in self._names(queue):
            self._plain.set_moved(name, to)

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        self._plain.set_storage_limit(limit_bytes)

    def storage(self) -> Storage:
        return self._plain.storage()

    # -- producers ------------------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        return self._add(queue, tasks, lambda name, some: self._plain.add(name, some, now=now))

    def _add(self, queue: str, tasks: Sequence[NewTask], add: Add) -> list[Added]:
        """Add with one call, in a cluster with one for each shard."""
        if self._shard_map.of(queue) is None and not any(new.queue for new in tasks):
            return add(queue, tasks)
        rotations: Mapping[str, int] = defaultdict(self._shard_map.rotation)
        routed = [self._routed(new, queue, rotations) for new in tasks]
        inner = [new for _, _, new in routed]
        if self._calls.in_cluster and len({sharded and sharded.queue for sharded, _, _ in routed}) == 1:
            groups = by_shard(range(len(inner)), lambda position: routed[position][1])
            parts = [
                (positions, add(inner[some[0]].queue or queue, [inner[at] for at in some]))
                for _, positions, some in groups
            ]
            added = in_order(len(tasks), parts)
        else:
            added = add(inner[0].queue or queue if inner else self._names(queue)[0], inner)
        self._note_waiters(routed)
        return [
            _outer_added(outcome, sharded, index) for outcome, (sharded, index, _) in zip(added, routed, strict=True)
        ]

    def _routed(self, new: NewTask, queue: str, rotations: Mapping[str, int]) -> Routed:
        """Choose a task's shard, by name or else round robin; return the queue's shards, the shard, the task."""
        target = new.queue or queue
        sharded = self._shard_map.of(target)
        if sharded is None:
            return None, 0, replace(new, queue=target or None)
        index = rotations[target] % sharded.size if new.name is None else sharded.index_of_name(new.name)
        return sharded, index, replace(new, queue=sharded.shard(index))

    def _note_waiters(self, routed: Sequence[Routed]) -> None:
        for name in {sharded.queue for sharded, _, _ in routed if sharded is not None}:
            self._calls.note_waiters(name)

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.lease(queue, request, now=now)
        return self._lease_on(sharded, self._shard_map.rotation() % sharded.size, request, Granted(()), now=now)

    def _lease_on(
        self, sharded: ShardedQueue, first: int, request: LeaseRequest, granted: Granted, *, now: Instant
    ) -> Granted:
        """Lease from the shards, beginning with `first`, until the request is met; `granted` counts towards it."""
        leases, expired = list(granted.leases), list(granted.expired)
        more_due = granted.more_due
        for offset in range(sharded.size):
            if len(leases) == request.count:
                break
            index = (first + offset) % sharded.size
            allowance = (
                None if request.allowance is None else request.allowance.after([_size_of(lease) for lease in leases])
            )
            if allowance is not None and leases and not allowance.total_bytes:
                break
            wanted = replace(request, count=request.count - len(leases), allowance=allowance)
            try:
                some = self._plain.lease(sharded.shard(index), wanted, now=now)
            except WorkerRetiredError:
                if not leases:
                    raise
                break
            leases += [self._outer_lease(lease, sharded, index) for lease in some.leases]
            expired += [self._outer_finished(lease, sharded, index) for lease in some.expired]
            more_due = more_due or some.more_due
        if expired:
            self._calls.note_waiters(sharded.queue)
        return Granted(tuple(leases), tuple(expired), more_due)

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[list[Deleted | None], Granted]:
        sharded = self._shard_map.of(queue)
        if sharded is None and not self._adds_to_sharded(deletions):
            return self._plain.exchange(queue, deletions, request, now=now)
        outcomes = self.delete(queue, deletions[:-1], now=now) if deletions else []
        if sharded is None:
            last, granted = self._plain.exchange(queue, self._inner(None, 0, deletions[-1:]), request, now=now)
            return [*outcomes, *self._outer_deleted(last, None, 0, deletions[-1:])], granted
        if not deletions:
            return [], self.lease(queue, request, now=now)
        index = sharded.index_of_token(deletions[-1].token)
        inner = self._inner(sharded, index, deletions[-1:])
        last, some = self._plain.exchange(sharded.shard(index), inner, request, now=now)
        granted = replace(
            some,
            leases=tuple([self._outer_lease(lease, sharded, index) for lease in some.leases]),
            expired=tuple([self._outer_finished(lease, sharded, index) for lease in some.expired]),
        )
        if not granted.refused:
            granted = self._lease_on(sharded, index + 1, request, granted, now=now)
        return [*outcomes, *self._outer_deleted(last, sharded, index, deletions[-1:])], granted

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.lease_delayed(queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now)
        index, inner_id = task_id % sharded.size, task_id // sharded.size
        lease = self._plain.lease_delayed(
            sharded.shard(index), inner_id, expected=expected, worker=worker, seconds=seconds, now=now
        )
        return lease and self._outer_lease(lease, sharded, index)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
        sharded = self._shard_map.of(queue)
        if sharded is None and not self._adds_to_sharded(deletions):
            return self._plain.delete(queue, deletions, now=now)
        groups = (
            [(0, list(range(len(deletions))), list(deletions))]
            if sharded is None
            else by_shard(deletions, lambda deletion: sharded.index_of_token(deletion.token))
        )
        parts = []
        for index, positions, some in groups:
            name = queue if sharded is None else sharded.shard(index)
            found = self._plain.delete(name, self._inner(sharded, index, some), now=now)
            parts.append((positions, self._outer_deleted(found, sharded, index, some)))
        return in_order(len(deletions), parts)

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.renew(queue, renewals, now=now)
        parts = []
        for index, positions, some in by_shard(renewals, lambda each: sharded.index_of_token(each.token)):
            inner = [replace(wanted, token=sharded.inner_token(wanted.token)) for wanted in some]
            found = self._plain.renew(sharded.shard(index), inner, now=now)
            outer = [
                each and replace(each, token=wanted.token, name=sharded.outer_name(each.name, index))
                for each, wanted in zip(found, some, strict=True)
            ]
            parts.append((positions, outer))
        return in_order(len(renewals), parts)

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.release(queue, releases, now=now)
        parts = []
        for index, positions, some in by_shard(releases, lambda each: sharded.index_of_token(each.token)):
            inner = [replace(wanted, token=sharded.inner_token(wanted.token)) for wanted in some]
            found = self._plain.release(sharded.shard(index), inner, now=now)
            parts.append((positions, [each and self._outer_finished(each, sharded, index) for each in found]))
        self._calls.note_waiters(queue)
        return in_order(len(releases), parts)

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.expire(queue, limit=limit, now=now)
        expired: list[FinishedLease] = []
        more = False
        for index, name in enumerate(sharded.shards):
            some, is_more = self._plain.expire(name, limit=limit, now=now)
            expired += [self._outer_finished(each, sharded, index) for each in some]
            more = more or is_more
        if expired:
            self._calls.note_waiters(queue)
        return expired, more

    # -- supervisors and transfer ---------------------------------------------------------------------------------

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED, now: Instant) -> list[FinishedLease]:
        released = self._plain.release_worker(worker, failure=failure, now=now)
        return [self._outer_of_shard(each) for each in released]

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        return self._plain.retire_worker(worker, busy=busy, now=now)

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        return self._plain.lead(name, holder, seconds=seconds, now=now)

    def once_for_call(self, call: ClientCall, verb: CallVerb) -> "ShardedTransaction":  # noqa: ARG002 - all of them
        calls = self._calls.once_for_call(call)
        return ShardedTransaction(calls, self._wanted, self._shard_map)

    def close_call(self, queues: Sequence[str]) -> bool:
        """See `CallOnce.close_call`."""
        return self._calls.close_call([name for queue in queues for name in self._names(queue)])

    def keep_renewed(self, tokens: Sequence[str]) -> None:
        """See `CallOnce.keep_renewed`. A repeat finds leases by their tokens, which stay."""

    def record_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        self._plain.record_answer(call, answer, now=now)

    def keep_answer(self, session: str, number: int, answer: bytes, *, now: Instant, kept: Kept = "days") -> None:
        self._plain.keep_answer(session, number, answer, now=now, kept=kept)

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.restore(queue, tasks, now=now)
        rotation = self._shard_map.rotation() % sharded.size
        parts = []
        for index, positions, some in by_shard(
            tasks, lambda task: rotation if task.name is None else sharded.index_of_name(task.name)
        ):
            added = self._plain.restore(sharded.shard(index), some, now=now)
            parts.append((positions, [_outer_added(outcome, sharded, index) for outcome in added]))
        self._calls.note_waiters(queue)
        return in_order(len(tasks), parts)

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            self._plain.hold_names(queue, names, now=now)
            return
        for index, _, some in by_shard(names, lambda held: sharded.index_of_name(held.name)):
            self._plain.hold_names(sharded.shard(index), some, now=now)

    # -- deletions as shards know them ----------------------------------------------------------------------------

    def _adds_to_sharded(self, deletions: Sequence[Deletion]) -> bool:
        return any(new.queue and self._shard_map.of(new.queue) for deletion in deletions for new in deletion.then)

    def _inner(self, sharded: ShardedQueue | None, index: int, deletions: Sequence[Deletion]) -> list[Deletion]:
        """Convert deletions for their shard; tasks that follow without a name stay on that shard."""
        return [
            Deletion(
                deletion.token if sharded is None else sharded.inner_token(deletion.token),
                tuple([new for _, _, new in self._followed(sharded, index, deletion)]),
            )
            for deletion in deletions
        ]

    def _followed(self, sharded: ShardedQueue | None, index: int, deletion: Deletion) -> list[Routed]:
        own = "" if sharded is None else sharded.queue
        rotations = defaultdict(lambda: crc32(deletion.token.encode()), {own: index})
        return [self._routed(new, own, rotations) for new in deletion.then]

    def _outer_deleted(
        self,
        found: Sequence[Deleted | None],
        sharded: ShardedQueue | None,
        index: int,
        deletions: Sequence[Deletion],
    ) -> list[Deleted | None]:
        outer: list[Deleted | None] = []
        for deleted, deletion in zip(found, deletions, strict=True):
            if deleted is None:
                outer.append(None)
                continue
            routed = self._followed(sharded, index, deletion)
            self._note_waiters(routed)
            then = [_outer_added(added, of, shard) for added, (of, shard, _) in zip(deleted.then, routed, strict=True)]
            finished = deleted.finished if sharded is None else self._outer_finished(deleted.finished, sharded, index)
            outer.append(Deleted(finished, tuple(then)))
        return outer

    # -- administration -------------------------------------------------------------------------------------------

    def delete_by_name(
        self, queue: str, names: Sequence[str], *, removal: TaskRemoval = DELETED_BY_NAME, now: Instant
    ) -> list[NameOutcome]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.delete_by_name(queue, names, removal=removal, now=now)
        parts = []
        for index, positions, some in by_shard(names, sharded.index_of_name):
            inner = [sharded.inner_name(name) for name in some]
            shard = sharded.shard(index)
            parts.append((positions, self._plain.delete_by_name(shard, inner, removal=removal, now=now)))
        return in_order(len(names), parts)

    def purge(self, queue: str, tags: TagFilter, *, limit: int, removal: TaskRemoval = PURGED, now: Instant) -> int:
        return self._purge(
            queue, limit, lambda name, left: self._plain.purge(name, tags, limit=left, removal=removal, now=now)
        )

    def purge_dead(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        return self._purge(queue, limit, lambda name, left: self._plain.purge_dead(name, tags, limit=left, now=now))

    def _purge(self, queue: str, limit: int, purge: Callable[[str, int], int]) -> int:
        count = 0
        for name in self._names(queue):
            if count < limit:
                count += purge(name, limit - count)
        return count

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.postpone(queue, name, expected=expected, eta=eta, now=now)
        shard = sharded.shard(sharded.index_of_name(name))
        moved = self._plain.postpone(shard, sharded.inner_name(name), expected=expected, eta=eta, now=now)
        self._calls.note_waiters(queue)
        return moved

    def retag(self, queue: str, names: Sequence[str], tag: str | None, *, now: Instant) -> list[Retagged]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.retag(queue, names, tag, now=now)
        retagged = retag_shards(self._plain, sharded, names, tag, now=now)
        self._calls.note_waiters(queue)
        return retagged

    def redrive(
        self, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
    ) -> list[StoredTask]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.redrive(queue, names, tags, limit=limit, now=now)
        redriven = redrive_shards(self._plain, sharded, names, tags, limit=limit, now=now)
        self._calls.note_waiters(queue)
        return redriven

    # -- reads ----------------------------------------------------------------------------------------------------

    def _names(self, queue: str) -> list[str]:
        """Return the names of the inner queues of a queue, or its own name."""
        sharded = self._shard_map.of(queue)
        return [queue] if sharded is None else sharded.shards

    def queue(self, name: str) -> QueueSpec:
        return replace(self._plain.queue(self._names(name)[0]), name=name)

    def queues(self) -> list[QueueSpec]:
        found = {spec.name.partition(":")[0]: spec for spec in self._plain.queues()}
        return [replace(found[name], name=name) for name in sorted(found)]

    # -- counts ---------------------------------------------------------------------------------------------------

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return sum_of(queue, [self._plain.stats(name, tags, now=now) for name in self._names(queue)])

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        """See `Transaction.tag_stats`. A tag among the first of all is among the first of each shard that has it."""
        by_tag: dict[str | None, list[QueueStats]] = {}
        for name in self._names(queue):
            for each in self._plain.tag_stats(name, after=after, limit=limit, now=now):
                by_tag.setdefault(each.tag, []).append(each.stats)
        first = sorted(by_tag, key=lambda tag: (tag is not None, tag or ""))[:limit]
        return [TagStats(tag, sum_of(queue, by_tag[tag])) for tag in first]

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        """See `Transaction.waiting`. Tasks between two positions of a shard count as ready with the last of them."""
        of_shards = [self._plain.waiting(name, tags, now=now) for name in self._names(queue)]
        if len(of_shards) == 1:
            return of_shards[0]
        runs = sorted(
            (each.ready_at, each.position - (waiting[at - 1].position if at else 0))
            for waiting in of_shards
            for at, each in enumerate(waiting)
        )
        merged: list[WaitingTask] = []
        reached = 0
        positions = iter(positions_of(sum(number for _, number in runs)))
        position = next(positions, None)
        for ready_at, number in runs:
            reached += number
            while position is not None and position <= reached:
                merged.append(WaitingTask(position, ready_at))
                position = next(positions, None)
        return tuple(merged)

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        of_shards = [self._plain.upcoming(name, tags, until=until, limit=limit, now=now) for name in self._names(queue)]
        return list(islice(merge(*of_shards), limit))

    def admitted(self) -> Sequence[tuple[str, str | None, int]]:
        return self._plain.admitted()

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        return min(filter(None, (self._plain.next_eta(name, now=now) for name in self._names(queue))), default=None)

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
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.peek(
                queue, tags, states, names=names, after=after, limit=limit, payload_bytes=payload_bytes, now=now
            )
        wanted: list[tuple[int, list[str] | None]] = [(index, None) for index in range(sharded.size)]
        if names is not None:
            wanted = [
                (index, [sharded.inner_name(name) for name in some])
                for index, _, some in by_shard(names, sharded.index_of_name)
            ]
        tasks: list[StoredTask] = []
        has_more = False
        for index, inner in wanted:
            page = self._plain.peek(
                sharded.shard(index),
                tags,
                states,
                names=inner,
                after=max(0, (after - index) // sharded.size),
                limit=limit,
                payload_bytes=payload_bytes,
                now=now,
            )
            tasks += [self._outer_task(task, sharded, index) for task in page.tasks]
            has_more = has_more or page.next_after is not None
        tasks.sort(key=lambda task: task.id)
        shown = tuple(tasks[:limit])
        return Page(shown, shown[-1].id if shown and (has_more or len(tasks) > limit) else None)

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.live_leases(queue, limit=limit, now=now)
        of_shards = [
            [
                replace(lease, name=sharded.outer_name(lease.name, index))
                for lease in self._plain.live_leases(name, limit=limit, now=now)
            ]
            for index, name in enumerate(sharded.shards)
        ]
        return list(islice(merge(*of_shards, key=lambda lease: lease.expires_at), limit))

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        """See `Transaction.samples`. A cursor is known to this process only; elsewhere it counts as `missed`."""
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.samples(queue, after=after, limit=limit)
        cursors = self._cursors.pop(after, None) if after else (0,) * sharded.size
        found: list[FinishedLease] = []
        missed = cursors is None or len(cursors) != sharded.size
        reached: list[int] = []
        for index, name in enumerate(sharded.shards):
            begin = 0 if missed or cursors is None else cursors[index]
            some = self._plain.samples(name, after=begin, limit=max(0, limit - len(found)))
            found += [self._outer_finished(lease, sharded, index) for lease in some.finished]
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

    def history(
        self,
        queue: str,
        *,
        names: Sequence[str] | None = None,
        before: int | None = None,
        limit: int,
        now: Instant,
    ) -> History:
        """See `Transaction.history` and, for sharded queues, `Histories`."""
        sharded = self._shard_map.of(queue)
        if sharded is None:
            return self._plain.history(queue, names=names, before=before, limit=limit, now=now)
        page = self._histories.page(sharded, names=names, before=before, limit=limit, now=now)
        found = [self._outer_finished(lease, sharded, index) for index, lease in page.leases]
        return History(tuple(found), page.next_before)

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        of_shards = [self._plain.held_names(name, after=after, limit=limit, now=now) for name in self._names(queue)]
        return list(islice(merge(*of_shards, key=lambda held: held.name), limit))

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return self._plain.workers_seen(workers)

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:
        return self._plain.answer_of(call, now=now)

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        return self._plain.last_answer(session)

    # -- results as callers know them -----------------------------------------------------------------------------

    def _outer_lease(self, lease: Lease, sharded: ShardedQueue, index: int) -> Lease:
        name, token = sharded.outer_name(lease.name, index), sharded.outer_token(lease.token, index)
        return replace(lease, queue=sharded.queue, name=name, token=token)

    def _outer_finished(self, lease: FinishedLease, sharded: ShardedQueue, index: int) -> FinishedLease:
        return replace(lease, queue=sharded.queue, name=sharded.outer_name(lease.name, index))

    def _outer_task(self, task: StoredTask, sharded: ShardedQueue, index: int) -> StoredTask:
        return replace(task, queue=sharded.queue, id=sharded.outer_id(task.id, index))

    def _outer_of_shard(self, lease: FinishedLease) -> FinishedLease:
        """Convert a finished lease of any queue, a shard or not."""
        queue, _, index = lease.queue.partition(":")
        sharded = self._shard_map.of(queue) if index else None
        return lease if sharded is None else self._outer_finished(lease, sharded, int(index))


def _outer_added(added: Added, sharded: ShardedQueue | None, index: int) -> Added:
    return added if sharded is None else replace(added, name=sharded.outer_name(added.name, index))


def _size_of(lease: Lease) -> int:
    return size_of(len(lease.payload), lease.tag, lease.name)
