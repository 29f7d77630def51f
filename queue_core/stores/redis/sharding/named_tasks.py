"""Verbs of sharded queues by the names of tasks: each shard is asked for its own."""

from collections.abc import Sequence
from dataclasses import replace

from queue_core.clock import Instant
from queue_core.stores.redis.sharding.shards import ShardedQueue, by_shard
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import StoredTask, TagFilter
from queue_core.verbs import Retagged


def redrive_shards(
    plain: RedisTransaction,
    sharded: ShardedQueue,
    names: Sequence[str] | None,
    tags: TagFilter,
    *,
    limit: int,
    now: Instant,
) -> list[StoredTask]:
    """See `Transaction.redrive`."""
    wanted: list[tuple[int, list[str] | None]] = [(index, None) for index in range(sharded.size)]
    if names is not None:
        wanted = [
            (index, [sharded.inner_name(name) for name in some])
            for index, _, some in by_shard(names, sharded.index_of_name)
        ]
    redriven: list[StoredTask] = []
    for index, inner in wanted:
        if len(redriven) < limit:
            some = plain.redrive(sharded.shard(index), inner, tags, limit=limit - len(redriven), now=now)
            redriven += [replace(task, queue=sharded.queue, id=sharded.outer_id(task.id, index)) for task in some]
    return redriven


def retag_shards(
    plain: RedisTransaction, sharded: ShardedQueue, names: Sequence[str], tag: str | None, *, now: Instant
) -> list[Retagged]:
    """See `Transaction.retag`."""
    found: dict[str, Retagged] = {}
    for index, _, some in by_shard(list(dict.fromkeys(names)), sharded.index_of_name):
        outer = {sharded.inner_name(name): name for name in some}
        for one in plain.retag(sharded.shard(index), list(outer), tag, now=now):
            found[outer[one.name]] = replace(one, name=outer[one.name])
    return [found[name] for name in dict.fromkeys(names) if name in found]
