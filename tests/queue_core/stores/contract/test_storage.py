"""What every store must do with a bound on the bytes of all payloads."""

import pytest

from queue_core.clock import ManualClock
from queue_core.errors import InvalidSettingError, StorageLimitError
from queue_core.store import Store
from queue_core.task import ANY, NewTask
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, Release, Storage
from tests.support.stores.restored_tasks import a_task, opened_again, restore
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease

LONG = b"l" * 5000


def limit(store: Store, limit_bytes: int | None) -> None:
    with store.begin() as transaction:
        transaction.set_storage_limit(limit_bytes)


def storage(store: Store) -> Storage:
    with store.read() as transaction:
        return transaction.storage()


def test_without_a_limit_nothing_is_counted(store: Store) -> None:
    add(store, NewTask(b"x"))
    assert storage(store) == Storage(None, 0)


def test_a_limit_counts_what_is_there_and_each_payload_that_comes_or_goes(store: Store) -> None:
    a_queue(store, "other")
    add(store, NewTask(b"12345"), NewTask(LONG))
    limit(store, 10_000)
    assert storage(store) == Storage(10_000, 5005)
    add(store, NewTask(b""), NewTask(b"123", name="n"), NewTask(LONG, queue="other"))
    add(store, NewTask(b"123456", name="n"))
    assert storage(store).used_bytes == 10_008
    leases = lease(store, 3)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(leases[0].token, 0)], now=at(1))
        transaction.renew(QUEUE, [], now=at(1))
        assert transaction.storage().used_bytes == 10_008
    delete(store, leases[1], now=at(1))
    assert storage(store).used_bytes == 5008
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(leases[2].token, (NewTask(b"1234", queue="other"),))], now=at(1))
    assert storage(store).used_bytes == 5012
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["n"], now=at(1))
    assert storage(store).used_bytes == 5009
    assert not store.check().problems
    with store.begin() as transaction:
        assert transaction.delete_queue("other") == 2
    assert storage(store).used_bytes == 5
    with store.begin() as transaction:
        while transaction.purge(QUEUE, ANY, limit=10, now=at(1)):
            pass
    assert storage(store) == Storage(10_000, 0)
    assert not store.check().problems


def test_what_dies_is_counted_and_what_is_used_up_is_not(store: Store) -> None:
    limit(store, 1000)
    a_queue(store, max_leases=1)
    add(store, NewTask(b"12345"))
    lease(store, seconds=10)
    with store.begin() as transaction:
        transaction.expire(QUEUE, limit=10, now=at(11))
    assert storage(store).used_bytes == 5
    a_queue(store, max_leases=1, on_exhausted="delete")
    add(store, NewTask(LONG), now=at(11))
    lease(store, seconds=10, now=at(11))
    with store.begin() as transaction:
        transaction.expire(QUEUE, limit=10, now=at(21))
    assert storage(store).used_bytes == 5
    assert not store.check().problems


def test_what_is_brought_from_another_store_counts_too(store: Store) -> None:
    limit(store, 3)
    restore(store, a_task(payload=b"12345"))
    assert storage(store) == Storage(3, 5)
    assert not store.check().problems


def test_a_limit_is_changed_and_lifted_and_counts_anew_when_it_comes_again(store: Store) -> None:
    limit(store, 10)
    limit(store, 20)
    add(store, NewTask(b"123"))
    assert storage(store) == Storage(20, 3)
    limit(store, None)
    limit(store, None)
    add(store, NewTask(b"1234"))
    assert storage(store) == Storage(None, 0)
    limit(store, 10)
    assert storage(store) == Storage(10, 7)
    assert not store.check().problems


def test_an_add_over_the_limit_is_refused_whole_and_one_up_to_it_is_taken(store: Store) -> None:
    clock = ManualClock()
    service = QueueService(store, clock=clock)
    service.run(lambda turn: turn.set_storage_limit(10))
    service.run(lambda turn: turn.add(QUEUE, [NewTask(b"12345")]))
    with pytest.raises(StorageLimitError, match=r"10 bytes.*5 are used.*6"):
        service.run(lambda turn: turn.add(QUEUE, [NewTask(b"123"), NewTask(b"123")]))
    assert len(service.run(lambda turn: turn.add(QUEUE, [NewTask(b"12345"), NewTask(b"")]))) == 2
    (held, *_) = lease(store, now=clock.now())
    token = held.token
    service.run(lambda turn: turn.delete(QUEUE, [Deletion(token, (NewTask(b"x" * 50),))]))  # a full store must drain
    assert storage(store).used_bytes == 55
    with pytest.raises(StorageLimitError):
        service.run(lambda turn: turn.add(QUEUE, [NewTask(b"1")]))
    service.run(lambda turn: turn.set_storage_limit(None))
    service.run(lambda turn: turn.add(QUEUE, [NewTask(b"1")]))


def test_a_limit_that_another_process_set_is_known_within_a_second(store: Store) -> None:
    clock = ManualClock()
    ours, others = QueueService(store, clock=clock), QueueService(store, clock=clock)
    ours.run(lambda turn: turn.add(QUEUE, [NewTask(b"12345")]))
    others.run(lambda turn: turn.set_storage_limit(1))
    clock.advance(1)
    with pytest.raises(StorageLimitError):
        ours.run(lambda turn: turn.add(QUEUE, [NewTask(b"12345")]))


def test_a_store_that_is_opened_again_has_its_limit(store: Store) -> None:
    limit(store, 10)
    add(store, NewTask(b"123"))
    again = store if store.url.startswith("memory") else opened_again(store)
    try:
        assert storage(again) == Storage(10, 3)
    finally:
        if again is not store:
            again.close()


@pytest.mark.parametrize("limit_bytes", [-1, 1 << 63])
def test_what_can_be_no_limit_is_refused(store: Store, limit_bytes: int) -> None:
    with pytest.raises(InvalidSettingError):
        QueueService(store).run(lambda turn: turn.set_storage_limit(limit_bytes))
