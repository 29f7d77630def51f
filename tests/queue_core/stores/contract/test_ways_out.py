"""Every task that was added is left, was done, or was taken away: no way out of a queue loses or counts one twice."""

from collections.abc import Callable
from random import Random

import pytest

from queue_core.admission import TagLimits
from queue_core.clock import Instant, after
from queue_core.stats import TaskRemoval
from queue_core.store import Store
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from queue_core.verbs import Deletion, Release
from tests.support.stores import changes
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, exchange_one, lease, stats

WORKER = "worker-1"
LEASE_SECONDS = 10.0
Way = Callable[[Store, str, Instant], tuple[int, int]]
"""Adds a task of that tag, and does something to it; returns how many tasks were done, and how many taken away."""


def held(store: Store, tag: str, now: Instant, **task: int) -> str:
    """Add a task and return the token of a lease of it."""
    add(store, NewTask(tag=tag, **task), now=now)  # type: ignore[arg-type]
    (granted,) = lease(store, seconds=LEASE_SECONDS, tags=TagFilter.of(tag), worker=WORKER, now=now)
    return granted.token


def release(store: Store, token: str, now: Instant, dead_reason: str = "") -> None:
    with store.begin() as transaction:
        (ended,) = transaction.release(QUEUE, [Release(token, 0.0, dead_reason=dead_reason)], now=now)
    assert ended is not None


def by_name(store: Store, tag: str, now: Instant, removal: TaskRemoval | None = None) -> int:
    """Delete the tasks of the tag by name; return how many."""
    removal = removal or TaskRemoval("deleted by ann")
    with store.begin() as transaction:
        tasks = transaction.peek(
            QUEUE, TagFilter.of(tag), frozenset(TaskState), limit=100, payload_bytes=0, now=now
        ).tasks
    with store.begin() as transaction:
        names = [task.shown_name for task in tasks]
        return transaction.delete_by_name(QUEUE, names, removal=removal, now=now).count("deleted")


def purge(store: Store, tag: str, now: Instant) -> int:
    with store.begin() as transaction:
        return transaction.purge(QUEUE, TagFilter.of(tag), limit=100, now=now)


def purge_dead(store: Store, tag: str, now: Instant) -> int:
    with store.begin() as transaction:
        return transaction.purge_dead(QUEUE, TagFilter.of(tag), limit=100, now=now)


def stays(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    add(store, NewTask(tag=tag), now=now)
    return 0, 0


def is_done(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    assert delete(store, held(store, tag, now), now=now) != [None]
    return 1, 0


def is_done_twice(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    token = held(store, tag, now)
    delete(store, token, now=now)
    assert delete(store, token, now=now) == [None]
    return 1, 0


def is_exchanged(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    token = held(store, tag, now)
    outcomes, _ = exchange_one(store, token, now=now)
    assert outcomes != [None]
    return 1, 0


def hands_over(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    token = held(store, tag, now)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(token, (NewTask(tag=tag), NewTask(tag=tag)))], now=now)
    return 1, 0


def waits_and_is_deleted(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    add(store, NewTask(tag=tag), NewTask(tag=tag, delay_seconds=5), NewTask(tag=tag, priority=9), now=now)
    return 0, by_name(store, tag, now)


def runs_and_is_deleted(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    held(store, tag, now)
    add(store, NewTask(tag=tag), now=now)  # which a limit holds back, where there is one
    return 0, by_name(store, tag, now)


def is_deleted_by_its_holder(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    held(store, tag, now)
    return by_name(store, tag, now, TaskRemoval("deleted by its worker", WORKER)), 0


def is_deleted_twice(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    add(store, NewTask(name=f"twice-{tag}", tag=tag), now=now)
    count = by_name(store, tag, now)
    with store.begin() as transaction:
        assert transaction.delete_by_name(QUEUE, [f"twice-{tag}"], now=now) == ["tombstoned"]
    return 0, count


def waits_and_is_purged(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    add(store, NewTask(tag=tag), NewTask(tag=tag, delay_seconds=5), NewTask(tag=tag, priority=9), now=now)
    return 0, purge(store, tag, now)


def runs_and_is_purged(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    held(store, tag, now)
    add(store, NewTask(tag=tag), now=now)  # which a limit holds back, where there is one
    return 0, purge(store, tag, now)


def dies(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    release(store, held(store, tag, now), now, "bad input")
    return 0, 0


def dies_and_is_deleted(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    dies(store, tag, now)
    return 0, by_name(store, tag, now)


def dies_and_is_purged(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    dies(store, tag, now)
    assert purge(store, tag, now) == 0
    return 0, purge_dead(store, tag, now)


def dies_is_redriven_and_done(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    dies(store, tag, now)
    with store.begin() as transaction:
        assert len(changes.redrive(transaction, QUEUE, None, TagFilter.of(tag), limit=100, now=now)) == 1
    (again,) = lease(store, tags=TagFilter.of(tag), now=now)
    delete(store, again, now=now)
    return 1, 0


def is_given_back(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    release(store, held(store, tag, now), now)
    return 0, 0


def is_retagged(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    (added,) = add(store, NewTask(tag=tag), now=now)
    with store.begin() as transaction:
        changes.retag(transaction, QUEUE, [added.name], f"not {tag}", now=now)
    return 0, 0


def is_postponed(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    (added,) = add(store, NewTask(tag=tag, delay_seconds=5), now=now)
    with store.begin() as transaction:
        transaction.postpone(QUEUE, added.name, expected=after(now, 5), eta=after(now, 6), now=now)
    return 0, 0


def loses_its_worker(store: Store, tag: str, now: Instant) -> tuple[int, int]:
    add(store, NewTask(tag=tag), now=now)
    lease(store, tags=TagFilter.of(tag), worker=f"worker of {tag}", now=now)
    with store.begin() as transaction:
        assert len(transaction.release_worker(f"worker of {tag}", now=now)) == 1
    return 0, 0


WAYS: tuple[Way, ...] = (
    stays,
    is_done,
    is_done_twice,
    is_exchanged,
    hands_over,
    waits_and_is_deleted,
    runs_and_is_deleted,
    is_deleted_by_its_holder,
    is_deleted_twice,
    waits_and_is_purged,
    runs_and_is_purged,
    dies,
    dies_and_is_deleted,
    dies_and_is_purged,
    dies_is_redriven_and_done,
    is_given_back,
    is_retagged,
    is_postponed,
    loses_its_worker,
)


def check(store: Store, now: Instant, *, done: int, removed: int) -> None:
    found = stats(store, ANY, now=now)
    left = found.pending + found.dead
    assert (found.deleted_total, found.added_total - found.deleted_total - left) == (done, removed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
def test_what_was_added_is_left_or_done_or_was_taken_away(store: Store, limited: bool, seed: int) -> None:
    if limited:
        a_queue(store, per_tag=TagLimits(max_in_flight=1))
    random = Random(seed)
    done = removed = 0
    for number, way in enumerate(random.sample(WAYS * 2, len(WAYS) * 2)):
        now = at(number * 0.01)  # no lease ends meanwhile
        more_done, more_removed = way(store, f"t{number}", now)
        done, removed = done + more_done, removed + more_removed
        check(store, now, done=done, removed=removed)
    assert not store.check().problems


@pytest.mark.parametrize("end", ["given back", "expired"])
@pytest.mark.parametrize(("on_exhausted", "removed"), [("dead", 0), ("delete", 1)])
def test_a_task_that_used_up_its_leases_is_dead_or_taken_away_and_never_done(
    store: Store, end: str, on_exhausted: str, removed: int
) -> None:
    a_queue(store, on_exhausted=on_exhausted)
    token = held(store, "a", at(0), max_leases=1)
    if end == "given back":
        release(store, token, at(1))
    else:
        with store.begin() as transaction:
            transaction.expire(QUEUE, limit=10, now=at(LEASE_SECONDS + 1))
    check(store, at(LEASE_SECONDS + 1), done=0, removed=removed)
    assert stats(store, now=at(LEASE_SECONDS + 1)).died_total == 1
