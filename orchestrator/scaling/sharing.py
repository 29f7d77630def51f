"""Share tasks among pools of one queue: count the workers of one pool as helpers of another. Pure.

Pools are decided one after the other, by priority, then by name. Each counts which of its tasks the workers of the
others can begin, including starting ones, and starts workers for the rest. So a pool that can't grow leaves the rest to
the next one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.deadline import HelperPool, ServingCapacity, capacity_of
from orchestrator.scaling.learning import PolicyState

MAX_SHARERS: Final = 16
"""The most helper pools that one pool counts; each costs time in every turn."""
_UNTAGGED: Final = frozenset({""})


def order_of(spec: PoolSpec) -> tuple[int, str]:
    """Return the sort key by which the pools of a supervisor are decided."""
    return -spec.priority, spec.name


def sharers(pools: Iterable[PoolSpec]) -> dict[str, list[str]]:
    """Return for each pool the pools it shares tasks with: of the two, one takes all tasks that the other takes.

    They are in the order of decisions, at most `MAX_SHARERS`. Pools with only some tags in common plan independently,
    as it is unknown how many tasks wait for both.
    """
    by_queue: dict[tuple[str, ...], list[PoolSpec]] = {}
    for pool in sorted(pools, key=order_of):
        by_queue.setdefault(pool.queues, []).append(pool)  # with only some queues in common, they plan independently
    found = {one.name: _sharers_of(one, of_queue) for of_queue in by_queue.values() for one in of_queue}
    return {name: others for name, others in found.items() if others}


def _sharers_of(pool: PoolSpec, of_queue: Iterable[PoolSpec]) -> list[str]:
    shared = (
        other.name
        for other in of_queue
        if other is not pool and (_takes_all_of(pool, other) or _takes_all_of(other, pool))
    )
    return list(islice(shared, MAX_SHARERS))


@dataclass(frozen=True, slots=True)
class SharingPool:
    """The present state of a pool that shares tasks; `state` is its policy's."""

    spec: PoolSpec
    fleet: Fleet
    sample: QueueSample
    state: PolicyState


def helper(pool: SharingPool, other: SharingPool, *, now: Monotonic) -> HelperPool:
    """Return the other pool as a helper of this one."""
    capacity = _capacity_of(other, now=now)
    held = sum(1 for lease in pool.sample.running if lease.worker in other.fleet.workers)
    is_first = order_of(other.spec) < order_of(pool.spec)
    tasks, others_tasks = _tasks(pool.sample), _tasks(other.sample)
    if not _takes_all_of(other.spec, pool.spec):
        return HelperPool(other.spec.name, capacity, held, 1.0, others_tasks, is_first)
    share = 1.0 if others_tasks <= tasks or _takes_all_of(pool.spec, other.spec) else tasks / others_tasks
    return HelperPool(other.spec.name, capacity, held, share, math.inf, is_first)


def _capacity_of(pool: SharingPool, *, now: Monotonic) -> ServingCapacity:
    """Return the pool's serving capacity; starting workers are left out while starts fail."""
    alive = pool.fleet.alive
    if pool.fleet.failed_starts(pool.spec):
        alive = tuple([worker for worker in alive if worker.state != "starting"])
    running = [lease.held_seconds for lease in pool.sample.running]
    return capacity_of(alive, running, estimates=pool.state.estimates, spec=pool.spec, now=now)


def _tasks(sample: QueueSample) -> int:
    """Return how many tasks wait or are about to become leasable."""
    return sample.ready + (sample.upcoming[-1].position if sample.upcoming else 0)


def _takes_all_of(one: PoolSpec, other: PoolSpec) -> bool:
    """Return whether `one` takes every task of the queue that `other` takes."""
    wide, narrow = _tags(one), _tags(other)
    return wide is None or (narrow is not None and narrow <= wide)


def _tags(pool: PoolSpec) -> frozenset[str] | None:
    """Return the tags of the tasks that a pool takes, "" for untagged ones; None for any."""
    if pool.untagged:
        return _UNTAGGED
    return frozenset(pool.tags) if pool.tags else None
