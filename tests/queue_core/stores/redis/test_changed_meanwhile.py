"""Redis locks nothing between `hold` and `change`: a task that others changed meanwhile is held anew."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from queue_core.changes import MAX_TRIES, HeldTasks, Named, Removed, Selector
from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError
from queue_core.stores.redis.binary import parse_task, without_payload
from queue_core.stores.redis.store import RedisStore
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import ALL_STATES, ANY, NewTask, Progress, TaskState
from queue_core.verbs import Release, Renewal
from tests.support.stores import changes
from tests.support.stores.redis_stores import a_redis_store
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, stats

LATE = at(5)


@pytest.fixture
def store() -> Iterator[RedisStore]:
    with closing(a_redis_store()) as opened:
        a_queue(opened, max_leases=None)
        yield opened


def lease_it(store: RedisStore) -> None:
    lease(store, now=LATE)


def lease_and_return_it(store: RedisStore) -> None:
    (held,) = lease(store, now=LATE)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, 0)], now=LATE)


def delete_it(store: RedisStore) -> None:
    (held,) = lease(store, now=LATE)
    delete(store, held.token, now=LATE)


def retag_it(store: RedisStore) -> None:
    with store.begin() as transaction:
        changes.retag(transaction, QUEUE, ["one"], "other", now=LATE)


@pytest.mark.parametrize("meanwhile", [lease_it, lease_and_return_it, delete_it, retag_it])
def test_a_change_of_a_task_that_is_not_as_it_was_does_nothing(
    store: RedisStore, meanwhile: Callable[[RedisStore], None]
) -> None:
    add(store, NewTask(b"x", name="one", tag="a"))
    with store.begin() as transaction:
        held = transaction.hold(QUEUE, Named(["one"]), now=LATE)
        meanwhile(store)
        before = (stats(store, now=LATE), transaction.peek(QUEUE, ANY, ALL_STATES, limit=9, payload_bytes=9, now=LATE))
        changes = [(record, Removed.UNCOUNTED) for record in held.records]
        assert not transaction.change(QUEUE, changes, now=LATE)
        after = (stats(store, now=LATE), transaction.peek(QUEUE, ANY, ALL_STATES, limit=9, payload_bytes=9, now=LATE))
    assert after == before


class Interrupted(RedisTransaction):
    """A transaction of which `meanwhile` runs after each of the first `times` calls of `hold`."""

    def __init__(self, store: RedisStore, meanwhile: Callable[[RedisStore], None], *, times: int) -> None:
        with store.begin() as transaction:
            super().__init__(transaction._calls)
        self._store, self._meanwhile, self.left = store, meanwhile, times

    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[bytes]:
        held = super().hold(queue, selector, now=now)
        if self.left:
            self.left -= 1
            self._meanwhile(self._store)
        return held


def test_a_verb_holds_anew_and_changes_tasks_as_they_are_then(store: RedisStore) -> None:
    add(store, NewTask(b"x", name="one", tag="a"))
    interrupted = Interrupted(store, lease_it, times=1)
    assert changes.retag(interrupted, QUEUE, ["one"], "b", now=LATE) == []  # it is leased now
    assert interrupted.delete_by_name(QUEUE, ["one"], now=LATE) == ["deleted"]
    assert stats(store, now=LATE).in_flight == 0


def test_a_verb_that_never_finds_its_tasks_as_they_were_says_that_nothing_was_changed(store: RedisStore) -> None:
    add(store, NewTask(b"x", name="one", tag="a"))
    tags = iter(f"t{number}" for number in range(MAX_TRIES))

    def retag(to: RedisStore) -> None:
        with to.begin() as transaction:
            changes.retag(transaction, QUEUE, ["one"], next(tags), now=LATE)

    interrupted = Interrupted(store, retag, times=MAX_TRIES)
    with pytest.raises(StoreUnavailableError, match=f"{MAX_TRIES} times in a row; nothing was changed"):
        interrupted.delete_by_name(QUEUE, ["one"], now=LATE)
    assert stats(store, now=LATE).ready == 1


@pytest.mark.parametrize("payload", [b"", b"short", b"long" * 1000])
def test_a_payload_is_not_sent_back_with_the_rest_of_its_task(store: RedisStore, payload: bytes) -> None:
    add(store, NewTask(payload, name="one", tag="a", headers={"n": "1"}, priority=3, max_leases=9))
    (held,) = lease(store, now=LATE)
    with store.begin() as transaction:
        transaction.renew(QUEUE, [Renewal(held.token, 60, Progress(0.5), b"checkpoint")], now=LATE)
        transaction.release(QUEUE, [Release(held.token, 0)], now=LATE)
        found = transaction.hold(QUEUE, Named(["one"], depth="whole"), now=LATE)
    ((whole, _), (cut, size)) = [
        parse_task(QUEUE, one, 0) for one in (found.records[0], without_payload(found.records[0]))
    ]
    assert (whole.payload, cut.payload, size) == (payload, b"", len(without_payload(found.records[0])))
    assert (cut.headers, cut.attempts, cut.progress, cut.checkpoint, cut.state) == (
        {"n": "1"},
        whole.attempts,
        Progress(0.5),
        b"checkpoint",
        TaskState.READY,
    )
