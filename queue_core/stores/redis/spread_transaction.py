"""The verbs of queues that are spread: each asks the shards it concerns, and makes one answer of theirs.

What concerns one shard is one step, as ever; what concerns several is a step for each. Tasks are leased by eta within a
shard, the shards by turns.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal
from zlib import crc32

from queue_core.clock import Instant
from queue_core.errors import WorkerRetiredError
from queue_core.semantics import size_of
from queue_core.stats import FinishedLease
from queue_core.store import (
    Added,
    Busy,
    CallVerb,
    ClientCall,
    Deleted,
    Deletion,
    Granted,
    HeldName,
    LeaseRequest,
    Release,
    Renewal,
    Renewed,
    Storage,
)
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.spread import Spread, Spreads, by_shard, in_places
from queue_core.stores.redis.spread_administering import SpreadAdministering
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask

Add = Callable[[str, Sequence[NewTask]], list[Added]]
Routed = tuple[Spread | None, int, NewTask]


class SpreadTransaction(SpreadAdministering):
    """See `Transaction`. A queue that is not spread is left to `RedisTransaction`."""

    def __init__(self, calls: Calls, wanted: Mapping[str, int], spreads: Spreads | None = None) -> None:
        """Args:
        wanted: the number of shards of queues that are to be spread when they are created.
        spreads: what is known of those that are; None: nothing yet.
        """
        super().__init__(calls, RedisTransaction(calls), spreads or Spreads(calls, wanted))
        self._wanted = wanted

    def forget(self) -> None:
        """The store was emptied: nothing that was known of its queues holds."""
        self._spreads.forget()

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        spread = self._spreads.create(spec.name)
        if spread is None:
            return self._plain.put_queue(spec, now=now)
        created = [self._plain.put_queue(replace(spec, name=name), now=now) for name in spread.shards]
        return all(created)

    def delete_queue(self, name: str) -> int:
        spread = self._spreads.of(name)
        if spread is None:
            return self._plain.delete_queue(name)
        deleted = sum([self._plain.delete_queue(shard) for shard in spread.shards])
        self._spreads.drop(name)
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
        """One step, but in a cluster a step for each shard: its names decide where a task goes."""
        if self._spreads.of(queue) is None and not any(new.queue for new in tasks):
            return add(queue, tasks)
        turns: Mapping[str, int] = defaultdict(self._spreads.turn)
        routed = [self._routed(new, queue, turns) for new in tasks]
        inner = [new for _, _, new in routed]
        if self._calls.in_cluster and len({spread and spread.queue for spread, _, _ in routed}) == 1:
            groups = by_shard(range(len(inner)), lambda position: routed[position][1])
            parts = [
                (places, add(inner[some[0]].queue or queue, [inner[at] for at in some])) for _, places, some in groups
            ]
            added = in_places(len(tasks), parts)
        else:
            added = add(inner[0].queue or queue if inner else self._names(queue)[0], inner)
        self._note_spread(routed)
        return [_outer_added(outcome, spread, index) for outcome, (spread, index, _) in zip(added, routed, strict=True)]

    def _routed(self, new: NewTask, queue: str, turns: Mapping[str, int]) -> Routed:
        """Where a task goes: how its queue is spread, the shard (by its name, else by the queue's turn), the task."""
        target = new.queue or queue
        spread = self._spreads.of(target)
        if spread is None:
            return None, 0, replace(new, queue=target or None)
        index = turns[target] % spread.size if new.name is None else spread.index_of_name(new.name)
        return spread, index, replace(new, queue=spread.shard(index))

    def _note_spread(self, routed: Sequence[Routed]) -> None:
        for name in {spread.queue for spread, _, _ in routed if spread is not None}:
            self._calls.note_listeners(name)

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.lease(queue, request, now=now)
        return self._lease_on(spread, self._spreads.turn() % spread.size, request, Granted(()), now=now)

    def _lease_on(
        self, spread: Spread, first: int, request: LeaseRequest, granted: Granted, *, now: Instant
    ) -> Granted:
        """Lease from the shards by turns, until all that was asked for is granted besides what is already."""
        leases, expired = list(granted.leases), list(granted.expired)
        unsettled = granted.unsettled
        for step in range(spread.size):
            if len(leases) == request.count:
                break
            index = (first + step) % spread.size
            room = None if request.room is None else request.room.after([_size_of(lease) for lease in leases])
            if room is not None and leases and not room.total_bytes:
                break
            asked = replace(request, count=request.count - len(leases), room=room)
            try:
                some = self._plain.lease(spread.shard(index), asked, now=now)
            except WorkerRetiredError:
                if not leases:
                    raise
                break
            leases += [self._outer_lease(lease, spread, index) for lease in some.leases]
            expired += [self._outer_finished(lease, spread, index) for lease in some.expired]
            unsettled = unsettled or some.unsettled
        if expired:
            self._calls.note_listeners(spread.queue)
        return Granted(tuple(leases), tuple(expired), unsettled)

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[list[Deleted | None], Granted]:
        spread = self._spreads.of(queue)
        if spread is None and not self._hands_to_spread(deletions):
            return self._plain.exchange(queue, deletions, request, now=now)
        outcomes = self.delete(queue, deletions[:-1], now=now) if deletions else []
        if spread is None:
            last, granted = self._plain.exchange(queue, self._inner(None, 0, deletions[-1:]), request, now=now)
            return [*outcomes, *self._outer_deleted(last, None, 0, deletions[-1:])], granted
        if not deletions:
            return [], self.lease(queue, request, now=now)
        index = spread.index_of_token(deletions[-1].token)
        inner = self._inner(spread, index, deletions[-1:])
        last, some = self._plain.exchange(spread.shard(index), inner, request, now=now)
        granted = replace(
            some,
            leases=tuple([self._outer_lease(lease, spread, index) for lease in some.leases]),
            expired=tuple([self._outer_finished(lease, spread, index) for lease in some.expired]),
        )
        if not granted.refused:
            granted = self._lease_on(spread, index + 1, request, granted, now=now)
        return [*outcomes, *self._outer_deleted(last, spread, index, deletions[-1:])], granted

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.lease_delayed(queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now)
        index, inner_id = task_id % spread.size, task_id // spread.size
        lease = self._plain.lease_delayed(
            spread.shard(index), inner_id, expected=expected, worker=worker, seconds=seconds, now=now
        )
        return lease and self._outer_lease(lease, spread, index)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
        spread = self._spreads.of(queue)
        if spread is None and not self._hands_to_spread(deletions):
            return self._plain.delete(queue, deletions, now=now)
        groups = (
            [(0, list(range(len(deletions))), list(deletions))]
            if spread is None
            else by_shard(deletions, lambda deletion: spread.index_of_token(deletion.token))
        )
        parts = []
        for index, places, some in groups:
            name = queue if spread is None else spread.shard(index)
            found = self._plain.delete(name, self._inner(spread, index, some), now=now)
            parts.append((places, self._outer_deleted(found, spread, index, some)))
        return in_places(len(deletions), parts)

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.renew(queue, renewals, now=now)
        parts = []
        for index, places, some in by_shard(renewals, lambda asked: spread.index_of_token(asked.token)):
            inner = [replace(asked, token=spread.inner_token(asked.token)) for asked in some]
            found = self._plain.renew(spread.shard(index), inner, now=now)
            outer = [
                each and replace(each, token=asked.token, name=spread.outer_name(each.name, index))
                for each, asked in zip(found, some, strict=True)
            ]
            parts.append((places, outer))
        return in_places(len(renewals), parts)

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.release(queue, releases, now=now)
        parts = []
        for index, places, some in by_shard(releases, lambda asked: spread.index_of_token(asked.token)):
            inner = [replace(asked, token=spread.inner_token(asked.token)) for asked in some]
            found = self._plain.release(spread.shard(index), inner, now=now)
            parts.append((places, [each and self._outer_finished(each, spread, index) for each in found]))
        self._calls.note_listeners(queue)
        return in_places(len(releases), parts)

    def settle(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.settle(queue, limit=limit, now=now)
        expired: list[FinishedLease] = []
        more = False
        for index, name in enumerate(spread.shards):
            some, is_more = self._plain.settle(name, limit=limit, now=now)
            expired += [self._outer_finished(each, spread, index) for each in some]
            more = more or is_more
        if expired:
            self._calls.note_listeners(queue)
        return expired, more

    # -- supervisors, and moving a queue --------------------------------------------------------------------------

    def release_worker(self, worker: str, *, now: Instant) -> list[FinishedLease]:
        return [self._outer_of_shard(each) for each in self._plain.release_worker(worker, now=now)]

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        return self._plain.retire_worker(worker, busy=busy, now=now)

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        return self._plain.lead(name, holder, seconds=seconds, now=now)

    def of_call(self, call: ClientCall, verb: CallVerb) -> "SpreadTransaction":  # noqa: ARG002 - all of them
        calls = self._calls.of_call(call)
        return SpreadTransaction(calls, self._wanted, self._spreads)

    def note_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        self._plain.note_answer(call, answer, now=now)

    def keep_answer(self, session: str, number: int, answer: bytes, *, now: Instant) -> None:
        self._plain.keep_answer(session, number, answer, now=now)

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        spread = self._spreads.of(queue)
        if spread is None:
            return self._plain.restore(queue, tasks, now=now)
        turn = self._spreads.turn() % spread.size
        parts = []
        for index, places, some in by_shard(
            tasks, lambda task: turn if task.name is None else spread.index_of_name(task.name)
        ):
            added = self._plain.restore(spread.shard(index), some, now=now)
            parts.append((places, [_outer_added(outcome, spread, index) for outcome in added]))
        self._calls.note_listeners(queue)
        return in_places(len(tasks), parts)

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        spread = self._spreads.of(queue)
        if spread is None:
            self._plain.hold_names(queue, names, now=now)
            return
        for index, _, some in by_shard(names, lambda held: spread.index_of_name(held.name)):
            self._plain.hold_names(spread.shard(index), some, now=now)

    # -- inside and outside ---------------------------------------------------------------------------------------

    def _hands_to_spread(self, deletions: Sequence[Deletion]) -> bool:
        return any(new.queue and self._spreads.of(new.queue) for deletion in deletions for new in deletion.then)

    def _inner(self, spread: Spread | None, index: int, deletions: Sequence[Deletion]) -> list[Deletion]:
        """Deletions as their shard knows them; what follows without a name of its own stays on that shard."""
        return [
            Deletion(
                deletion.token if spread is None else spread.inner_token(deletion.token),
                tuple([new for _, _, new in self._followed(spread, index, deletion)]),
            )
            for deletion in deletions
        ]

    def _followed(self, spread: Spread | None, index: int, deletion: Deletion) -> list[Routed]:
        own = "" if spread is None else spread.queue
        turns = defaultdict(lambda: crc32(deletion.token.encode()), {own: index})
        return [self._routed(new, own, turns) for new in deletion.then]

    def _outer_deleted(
        self,
        found: Sequence[Deleted | None],
        spread: Spread | None,
        index: int,
        deletions: Sequence[Deletion],
    ) -> list[Deleted | None]:
        outer: list[Deleted | None] = []
        for deleted, deletion in zip(found, deletions, strict=True):
            if deleted is None:
                outer.append(None)
                continue
            routed = self._followed(spread, index, deletion)
            self._note_spread(routed)
            then = [_outer_added(added, of, shard) for added, (of, shard, _) in zip(deleted.then, routed, strict=True)]
            finished = deleted.finished if spread is None else self._outer_finished(deleted.finished, spread, index)
            outer.append(Deleted(finished, tuple(then)))
        return outer


def _outer_added(added: Added, spread: Spread | None, index: int) -> Added:
    return added if spread is None else replace(added, name=spread.outer_name(added.name, index))


def _size_of(lease: Lease) -> int:
    return size_of(len(lease.payload), lease.tag, lease.name)
