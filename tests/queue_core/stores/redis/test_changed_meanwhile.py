"""Redis locks nothing between `hold` and `change`: a task that others changed meanwhile is held anew."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError
from queue_core.stats import PURGED
from queue_core.stores.redis.binary import parse_task
from queue_core.stores.redis.store import RedisStore
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.task import ALL_STATES, ANY, NewTask, Progress, TagFilter, TaskState
from queue_core.verbs import ClientCall, Release, Renewal
from queue_core.verbs.change_verbs import MAX_TRIES, UNLEASED, HeldTasks, InStates, LeasedBy, Named, Removed, Selector
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
    (record,) = found.records
    whole, (cut, size) = found.task_of(record), parse_task(QUEUE, record, 0)
    assert (whole.payload, cut.payload, size) == (payload, b"", len(record))
    assert (cut.headers, cut.attempts, cut.progress, cut.checkpoint, cut.state) == (
        {"n": "1"},
        whole.attempts,
        Progress(0.5),
        b"checkpoint",
        TaskState.READY,
    )


def test_a_purge_of_which_others_took_some_removes_what_is_left(store: RedisStore) -> None:
    add(store, *[NewTask(b"x") for _ in range(5)])
    interrupted = Interrupted(store, delete_it, times=2)
    assert interrupted.purge(QUEUE, ANY, limit=9, now=LATE) == 3
    assert stats(store, now=LATE).ready == 0


def test_a_set_that_has_fewer_tasks_than_were_held_is_not_removed(store: RedisStore) -> None:
    add(store, *[NewTask(b"x", tag="a") for _ in range(3)])
    with store.begin() as transaction:
        held = transaction.hold(QUEUE, InStates(UNLEASED, ANY, 9, depth="id"), now=LATE)
        delete_it(store)
        assert not transaction.change(QUEUE, [(record, Removed.UNCOUNTED) for record in held.records], now=LATE)
    assert stats(store, now=LATE).ready == 2


def test_a_purge_is_told_a_number_and_not_its_tasks(store: RedisStore) -> None:
    add(store, *[NewTask(b"x" * 1000, tag="a") for _ in range(50)], NewTask(b"y", tag="b"))
    with store.begin() as transaction:
        held = transaction.hold(QUEUE, InStates(UNLEASED, TagFilter.of("a"), 40, depth="id"), now=LATE)
        assert (len(held.records), len(set(held.records))) == (40, 1)
        assert len(held.records[0]) < 20
        assert transaction.change(QUEUE, [(record, Removed.UNCOUNTED) for record in held.records], now=LATE)
    assert stats(store, now=LATE).ready == 11


def test_a_task_is_held_without_its_attempts_and_keeps_them(store: RedisStore) -> None:
    add(store, NewTask(b"x"))
    lease_and_return_it(store)
    (leased,) = lease(store, now=LATE)
    with store.begin() as transaction:
        held = transaction.hold(QUEUE, Named([leased.name]), now=LATE)
        assert held.task_of(held.records[0]).attempts == ()
        transaction.release_worker(leased.worker, now=LATE)
        page = transaction.peek(QUEUE, ANY, ALL_STATES, limit=9, payload_bytes=9, now=LATE)
    assert [[one.outcome for one in task.attempts] for task in page.tasks] == [["given_back", "worker_died"]]


# -- the leases of a dead worker, some at a time -----------------------------------------------------------------------

CALL = ClientCall("s", 1)
REPEAT = ClientCall("s", 1, is_repeat=True)


def leases_of_two(store: RedisStore, count: int) -> list[str]:
    """Lease so many tasks each for two workers, in turn; return the names of those of "dead"."""
    add(store, *[NewTask(b"") for _ in range(2 * count)])
    names: list[str] = []
    for number in range(count):
        names += [one.name for one in lease(store, worker="dead", seconds=60.0 + number % 7, now=LATE)]
        lease(store, worker="other", seconds=60.0 + number % 5, now=LATE)
    return names


class InPieces(RedisTransaction):
    """A transaction that releases three leases of a dead worker at a time, and is cut off after some pieces."""

    leases_per_change = 3

    def __init__(self, store: RedisStore, call: ClientCall, *, pieces: int = 1_000) -> None:
        with store.begin() as transaction:
            within = transaction.once_for_call(call, "other")
        assert isinstance(within, RedisTransaction)
        super().__init__(within._calls)
        self._left = pieces

    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[bytes]:
        if not self._left:
            raise StoreUnavailableError("cut off")
        self._left -= 1
        return super().hold(queue, selector, now=now)


def test_all_leases_of_a_dead_worker_are_released_and_no_others(store: RedisStore) -> None:
    names = leases_of_two(store, 10)
    released = InPieces(store, CALL).release_worker("dead", now=at(6))
    assert [each.name for each in released] == names
    assert (stats(store, now=at(6)).ready, stats(store, now=at(6)).in_flight) == (10, 10)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_repeat_of_a_release_that_was_cut_off_has_the_leases_of_all_pieces(store: RedisStore, pieces: int) -> None:
    names = leases_of_two(store, 10)
    with pytest.raises(StoreUnavailableError, match="cut off"):
        InPieces(store, CALL, pieces=pieces).release_worker("dead", now=at(6))
    assert stats(store, now=at(6)).ready == 3 * pieces
    released = InPieces(store, REPEAT).release_worker("dead", now=at(7))
    assert sorted(each.name for each in released) == sorted(names)
    again = InPieces(store, REPEAT).release_worker("dead", now=at(8))
    assert sorted(each.name for each in again) == sorted(names)


def test_a_first_try_that_comes_late_has_what_its_repeat_changed(store: RedisStore) -> None:
    leases_of_two(store, 3)
    first = InPieces(store, CALL)
    assert first.fence_worker("dead", now=at(6)) == [QUEUE]
    held = first.hold(QUEUE, LeasedBy("dead", 2), now=at(6))
    changes = [(one, semantics.remove(held.task_of(one), PURGED, now=at(6))) for one in held.records]
    released = InPieces(store, REPEAT).release_worker("dead", now=at(6))
    assert len(released) == 3
    assert not first.change(QUEUE, changes, now=at(6))
    assert len(first.hold(QUEUE, LeasedBy("dead", 2), now=at(6)).records) == 3
    assert stats(store, now=at(6)).ready == 3


@pytest.mark.parametrize("leases", [4, 12])
def test_leases_of_others_are_looked_at_in_bounded_numbers(store: RedisStore, leases: int) -> None:
    add(store, *[NewTask(b"") for _ in range(6_000)])
    for number in range(6):
        lease(store, 1_000, worker="other", seconds=100.0 + number, now=LATE)
    add(store, *[NewTask(b"") for _ in range(leases)], now=LATE)
    names = [one.name for one in lease(store, leases, worker="dead", seconds=1_000.0, now=LATE)]
    with store.begin() as transaction:
        begun = transaction.hold(QUEUE, LeasedBy("dead", 100), now=at(6))
        assert (len(begun.records), begun.rest is None) == (0, False)
        assert [each.name for each in transaction.release_worker("dead", now=at(6))] == names
