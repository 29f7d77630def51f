"""What a process remembers of an SQLite file between its transactions, while another process writes it."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from queue_core.store import Store
from queue_core.stores.sqlite import workers
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, Lease, NewTask
from queue_core.verbs import ClientCall, Deletion, Granted, LeaseRequest
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease, names

FILE = "queue.db"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        yield store
        assert store.check().problems == ()


@pytest.fixture
def other(store: Store, tmp_path: Path) -> Iterator[SqliteStore]:
    """The same file, as another process has it open."""
    with closing(SqliteStore(tmp_path / FILE)) as other:
        yield other


def exchange(store: Store, *done: Lease, worker: str = "worker-1", seconds: float = 0) -> Granted:
    """Delete a lease and take one task, which is the short way."""
    with store.begin() as transaction:
        deletions = [Deletion(each.token) for each in done]
        return transaction.exchange(QUEUE, deletions, LeaseRequest(1, 60.0, ANY, worker), now=at(seconds))[1]


def used_to_leasing(store: Store, *, worker: str = "worker-1") -> None:
    """Have it remember all that an exchange looks up."""
    add(store, NewTask(), NewTask(), NewTask())
    held = lease(store, worker=worker)
    for _ in range(3):
        held = list(exchange(store, *held, worker=worker).leases)
    assert not held


def test_a_worker_that_another_process_retired_gets_nothing(store: Store, other: Store) -> None:
    used_to_leasing(store)
    add(store, NewTask())
    with other.begin() as transaction:
        assert transaction.retire_worker("worker-1", now=at(1))
    assert exchange(store, seconds=1).refused
    assert not exchange(store, worker="worker-2", seconds=1).refused


def test_a_worker_that_was_retired_here_gets_nothing(store: Store) -> None:
    used_to_leasing(store)
    add(store, NewTask())
    with store.begin() as transaction:
        transaction.release_worker("worker-1", now=at(1))
    assert exchange(store, seconds=1).refused


def test_a_worker_whose_first_lease_was_rolled_back_is_new(store: Store) -> None:
    add(store, NewTask(), NewTask())
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        for _ in range(2):
            assert transaction.lease(QUEUE, LeaseRequest(1, 60.0, ANY, "worker-1"), now=at(1)).leases
        raise ZeroDivisionError
    assert names(exchange(store, seconds=5).leases) == ["_1"]
    with store.read() as transaction:
        assert transaction.workers_seen(["worker-1"]) == {"worker-1": at(5)}


def test_more_workers_than_are_remembered_are_known(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_CACHED_WORKERS", 2)
    add(store, *[NewTask() for _ in range(12)])
    for turn in range(3):
        for number in range(4):
            assert exchange(store, worker=f"worker-{number}", seconds=turn).leases
    with store.read() as transaction:
        assert set(transaction.workers_seen([f"worker-{number}" for number in range(4)]).values()) == {at(0)}


def test_the_first_tag_that_another_process_adds_is_leased_in_its_place(store: Store, other: Store) -> None:
    used_to_leasing(store)
    add(other, NewTask(tag="a"), now=at(1))
    add(other, NewTask(), now=at(2))
    assert [names(exchange(store, seconds=3).leases) for _ in range(2)] == [["_4"], ["_5"]]


def test_the_first_tag_is_leased_in_the_transaction_that_adds_it(store: Store) -> None:
    used_to_leasing(store)
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(tag="a"), NewTask(tag="b"), NewTask()], now=at(1))
        granted = transaction.lease(QUEUE, LeaseRequest(2, 60.0, ANY, "worker-1"), now=at(1))
    assert names(granted.leases) == ["_4", "_5"]


def test_a_first_tag_that_was_rolled_back_is_no_tag(store: Store) -> None:
    used_to_leasing(store)
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(tag="a")], now=at(1))
        raise ZeroDivisionError
    add(store, NewTask(tag="a"), now=at(2))
    assert [held.tag for held in exchange(store, seconds=3).leases] == ["a"]


def test_a_delayed_task_of_another_process_is_leased_when_it_is_due(store: Store, other: Store) -> None:
    used_to_leasing(store)
    add(other, NewTask(delay_seconds=5), now=at(1))
    assert not exchange(store, seconds=5.999999).leases
    assert names(exchange(store, seconds=6).leases) == ["_4"]


def test_a_limit_that_another_process_set_is_kept_to(store: Store, other: Store, tmp_path: Path) -> None:
    used_to_leasing(store)
    with other.begin() as transaction:
        transaction.set_storage_limit(1000)
    add(store, NewTask(b"counted"))
    with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
        assert connection.execute("SELECT count(*), (SELECT used_bytes FROM storage) FROM staged_adds").fetchall() == [
            (0, 7)
        ]
    with other.begin() as transaction:
        transaction.set_storage_limit(None)
    add(store, NewTask(b"alone"))
    with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
        assert connection.execute("SELECT count(*) FROM staged_adds").fetchall() == [(1,)]


def call_of(store: Store, session: str, number: int) -> bool:
    """Make a client's call, sent for the first time as far as it says; whether it took effect."""
    with store.begin() as transaction:
        call = ClientCall(session, number)
        if transaction.answer_of(call, now=at(0)) is not None:
            return False
        transaction.record_answer(call, b"true", now=at(0))
        return True


def test_calls_of_others_are_learned_once_and_its_own_never(store: SqliteStore, other: SqliteStore) -> None:
    learned: list[int] = []
    connection = store._writer
    for number in range(1, 4):
        assert call_of(store, "mine", number)
        assert call_of(other, "theirs", number)
        assert not call_of(store, "theirs", number)
        last = connection.execute("SELECT max(id) FROM answers").fetchone()
        assert last is not None
        learned.append(last[0] - store._catalog.answers_read)
    assert learned == [0, 0, 0]
    with suppress(ZeroDivisionError), store.begin() as transaction:
        transaction.record_answer(ClientCall("mine", 9), b"true", now=at(0))
        raise ZeroDivisionError
    assert call_of(other, "mine", 9)
    assert not call_of(store, "mine", 9)
