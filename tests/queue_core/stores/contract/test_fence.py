"""What every store must do with a queue that has left it; and the answers it keeps so that repeats are harmless."""

from collections.abc import Callable

import pytest

from queue_core.clock import START, Instant
from queue_core.errors import QueueMovedError, StoreUnavailableError, UnknownQueueError
from queue_core.store import Store, Transaction
from queue_core.task import ANY, NewTask, TaskState
from queue_core.verbs import Deletion, HeldName, LeaseRequest, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.restored_tasks import ELSEWHERE, a_task, fence, held_names, hold, opened_again, peek, restore
from tests.support.stores.task_builders import QUEUE, SPEC, a_queue, add, at, delete, lease, names, stats

# -- the fence --------------------------------------------------------------------------------------------------------

Verb = Callable[[Transaction, str], object]
CHANGES: dict[str, Verb] = {
    "add": lambda t, _: t.add(QUEUE, [NewTask()], now=at(1)),
    "lease": lambda t, _: t.lease(QUEUE, LeaseRequest(1, 10.0, ANY, "worker-1"), now=at(1)),
    "renew": lambda t, token: t.renew(QUEUE, [Renewal(token, 10)], now=at(1)),
    "release": lambda t, token: t.release(QUEUE, [Release(token, 0)], now=at(1)),
    "delete": lambda t, token: t.delete(QUEUE, [Deletion(token)], now=at(1)),
    "exchange": lambda t, token: t.exchange(
        QUEUE, [Deletion(token)], LeaseRequest(1, None, ANY, "worker-1"), now=at(1)
    ),
    "delete_by_name": lambda t, _: t.delete_by_name(QUEUE, ["waiting"], now=at(1)),
    "purge": lambda t, _: t.purge(QUEUE, ANY, limit=10, now=at(1)),
    "purge_dead": lambda t, _: t.purge_dead(QUEUE, ANY, limit=10, now=at(1)),
    "redrive": lambda t, _: changes.redrive(t, QUEUE, None, ANY, limit=10, now=at(1)),
    "lease_delayed": lambda t, _: t.lease_delayed(QUEUE, 3, expected=at(1), worker="w", seconds=1.0, now=at(0)),
    "settle": lambda t, _: t.expire(QUEUE, limit=10, now=at(1)),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_nothing_changes_the_tasks_of_a_moved_queue_and_the_error_says_where_it_is(store: Store, verb: str) -> None:
    add(store, NewTask(name="leased"), NewTask(name="waiting"), NewTask(eta=at(1)))
    restore(store, a_task(state=TaskState.DEAD, leases=1, leased_at=at(-1)))
    (held,) = lease(store, seconds=60)
    fence(store)
    before = peek(store)
    with pytest.raises(QueueMovedError, match=ELSEWHERE), store.begin() as transaction:
        CHANGES[verb](transaction, held.token)
    assert peek(store) == before


def test_a_moved_queue_can_still_be_looked_at(store: Store) -> None:
    add(store, NewTask(name="leased"), NewTask(tag="a"), NewTask(eta=at(5)))
    lease(store)
    fence(store)
    counts = stats(store)
    assert (counts.ready, counts.delayed, counts.in_flight, counts.paused) == (1, 1, 1, True)
    assert len(peek(store)) == 3
    with store.read() as transaction:
        assert transaction.queue(QUEUE).moved_to == ELSEWHERE
        assert [(spec.name, spec.moved_to) for spec in transaction.queues()] == [(QUEUE, ELSEWHERE)]
        assert len(transaction.live_leases(QUEUE, limit=10, now=START)) == 1
        assert len(transaction.tag_stats(QUEUE, after=None, limit=10, now=START)) == 2
        assert transaction.next_eta(QUEUE, now=START) is None
        assert not transaction.queue(QUEUE).paused


def test_a_task_cannot_be_handed_on_to_a_queue_that_was_moved(store: Store) -> None:
    a_queue(store, "next")
    add(store, NewTask(), queue="next")
    (held,) = lease(store, queue="next")
    fence(store)
    with pytest.raises(QueueMovedError), store.begin() as transaction:
        transaction.delete("next", [Deletion(held.token, (NewTask(queue=QUEUE),))], now=at(1))
    assert stats(store, queue="next").in_flight == 1


def test_the_fence_of_one_queue_is_nothing_to_the_others(store: Store) -> None:
    a_queue(store, "next")
    fence(store)
    add(store, NewTask(name="goes on"), queue="next")
    assert names(lease(store, queue="next")) == ["goes on"]


def test_a_dead_worker_is_released_everywhere_but_on_a_moved_queue(store: Store) -> None:
    a_queue(store, "next")
    for queue in (QUEUE, "next"):
        add(store, NewTask(), queue=queue)
        lease(store, queue=queue, worker="gone-1")
    fence(store)
    with store.begin() as transaction:
        released = transaction.release_worker("gone-1", now=at(1))
    assert [ended.queue for ended in released] == ["next"]
    assert stats(store, now=at(1)).in_flight == 1


def test_setting_and_pausing_a_moved_queue_leave_its_fence(store: Store) -> None:
    fence(store)
    a_queue(store, lease_seconds=5.0)
    with store.begin() as transaction:
        assert transaction.set_paused(QUEUE, "paused")
        spec = transaction.queue(QUEUE)
    assert (spec.lease_seconds, spec.paused, spec.moved_to) == (5.0, True, ELSEWHERE)


def test_a_queue_is_made_without_a_fence_whatever_its_settings_say(store: Store) -> None:
    a_queue(store, "copied", moved_to=ELSEWHERE)
    with store.read() as transaction:
        assert transaction.queue("copied").moved_to == ""


def test_all_goes_on_when_the_fence_is_lifted(store: Store) -> None:
    add(store, NewTask(name="waits"))
    (held,) = lease(store, seconds=60)
    fence(store)
    fence(store, "")
    assert delete(store, held, now=at(1))[0] is not None
    add(store, NewTask(name="more"))
    assert names(lease(store)) == ["more"]
    assert not stats(store).paused


def test_a_moved_queue_can_be_dropped_and_made_anew(store: Store) -> None:
    add(store, NewTask(), NewTask())
    fence(store)
    with store.begin() as transaction:
        assert transaction.delete_queue(QUEUE) == 2
    a_queue(store)
    assert add(store, NewTask())[0].status == "added"


def test_a_fenced_queue_can_be_filled(store: Store) -> None:
    fence(store)
    assert restore(store, a_task(name="cat"))[0].status == "added"
    hold(store, HeldName("done", at(9)))
    assert held_names(store) == [HeldName("done", at(9))]
    fence(store, "")
    assert names(lease(store)) == ["cat"]


def test_a_queue_that_does_not_exist_cannot_be_moved_or_filled(store: Store) -> None:
    verbs: list[Callable[[Transaction], object]] = [
        lambda t: t.set_moved("nowhere", ELSEWHERE),
        lambda t: t.restore("nowhere", [a_task()], now=START),
        lambda t: t.hold_names("nowhere", [HeldName("a", at(1))], now=START),
        lambda t: t.held_names("nowhere", after=None, limit=1, now=START),
    ]
    for verb in verbs:
        with pytest.raises(UnknownQueueError) as raised, store.begin() as transaction:
            verb(transaction)
        assert raised.type is UnknownQueueError


def test_a_fence_holds_for_every_process_at_once(store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    other = opened_again(store)
    try:
        add(other, NewTask(), NewTask())
        (held,) = lease(other)
        fence(store)
        with pytest.raises(QueueMovedError):
            lease(other)
        with pytest.raises(QueueMovedError):
            delete(other, held)
        fence(store, "")
        assert delete(other, held)[0] is not None
    finally:
        other.close()


def test_the_settings_of_a_queue_say_nothing_of_its_fence(store: Store) -> None:
    fence(store)
    with store.read() as transaction:
        assert transaction.queue(QUEUE) == SPEC


# -- repeats ----------------------------------------------------------------------------------------------------------


def keep(store: Store, session: str, number: int, answer: bytes, *, now: Instant = START) -> None:
    """Keep an answer in one transaction."""
    with store.begin() as transaction:
        transaction.keep_answer(session, number, answer, now=now)


def last_answer(store: Store, session: str) -> tuple[int, bytes] | None:
    """The answer kept last, from a snapshot."""
    with store.read() as transaction:
        return transaction.last_answer(session)


def test_the_last_answer_of_each_session_is_kept_byte_for_byte(store: Store) -> None:
    assert last_answer(store, "one") is None
    keep(store, "one", 1, b"first")
    keep(store, "two", 7, b"")
    keep(store, "one", 2, bytes(range(256)))
    assert last_answer(store, "one") == (2, bytes(range(256)))
    assert last_answer(store, "two") == (7, b"")


@pytest.mark.parametrize("number", [1, 2])
def test_a_call_that_was_answered_cannot_be_answered_otherwise(store: Store, number: int) -> None:
    keep(store, "one", 2, b"kept")
    with pytest.raises(StoreUnavailableError):
        keep(store, "one", number, b"late")
    assert last_answer(store, "one") == (2, b"kept")


def test_a_late_answer_takes_the_transaction_with_it(store: Store) -> None:
    if store.unit == "verb":
        pytest.skip(f"{store.url} commits each verb by itself")
    keep(store, "one", 2, b"kept")
    with pytest.raises(StoreUnavailableError), store.begin() as transaction:
        transaction.add(QUEUE, [NewTask()], now=START)
        transaction.keep_answer("one", 2, b"late", now=START)
    assert stats(store).added_total == 0


def test_an_answer_is_kept_for_a_day_at_least_however_many_others_come(store: Store) -> None:
    keep(store, "one", 1, b"kept")
    for number in range(50):
        keep(store, f"other-{number}", 1, b"", now=at(86_400))
    assert last_answer(store, "one") == (1, b"kept")


def test_an_answer_can_be_kept_always(store: Store) -> None:
    with store.begin() as transaction:
        transaction.keep_answer(":schedules", 1, b"first", now=START, kept="always")
    for number in range(50):
        keep(store, f"other-{number}", 1, b"", now=at(400 * 86_400))
    with store.begin() as transaction:
        transaction.keep_answer(":schedules", 2, b"kept", now=at(400 * 86_400), kept="always")
    for number in range(50, 100):
        keep(store, f"other-{number}", 1, b"", now=at(800 * 86_400))
    assert last_answer(store, ":schedules") == (2, b"kept")


@pytest.mark.parametrize("number", [1, 2])
def test_an_answer_that_is_kept_always_is_replaced_by_a_later_one_only(store: Store, number: int) -> None:
    with store.begin() as transaction:
        transaction.keep_answer(":schedules", 2, b"kept", now=START, kept="always")
    with pytest.raises(StoreUnavailableError), store.begin() as transaction:
        transaction.keep_answer(":schedules", number, b"late", now=START, kept="always")
    assert last_answer(store, ":schedules") == (2, b"kept")


def test_an_answer_outlives_the_process(store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    keep(store, "one", 1, b"kept")
    other = opened_again(store)
    try:
        assert last_answer(other, "one") == (1, b"kept")
    finally:
        other.close()
