"""Adding and deleting in the caller's own transaction: all of it happens, or none."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from queue_core.client.connect import open_queue
from queue_core.client.local_calls import LocalQueue
from queue_core.errors import InvalidRequestError, LeaseLostError, QueueMovedError, StoreError, UnknownQueueError
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.task import NewTask
from queue_core.unit.service import QueueService
from tests.support.servers import a_server
from tests.support.stores.stores import new_store_url, new_url
from tests.support.stores.task_builders import QUEUE, a_queue

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def url() -> str:
    return new_store_url("postgresql")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    a_queue(opened)
    yield opened
    assert opened.check().problems == ()
    opened.close()


@pytest.fixture
def queue(store: Store) -> LocalQueue:
    return LocalQueue(QueueService(store), QUEUE)


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with psycopg.connect(url) as opened:
        opened.execute("CREATE TABLE IF NOT EXISTS results (word text)")
        opened.commit()
        yield opened


def results(connection: Connection) -> int:
    with connection.transaction():
        row = connection.execute("SELECT count(*) FROM results").fetchone()
    assert row is not None
    return int(str(row[0]))


def test_tasks_are_there_once_the_caller_commits(queue: LocalQueue, connection: Connection) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO results VALUES ('order')")
        (added,) = queue.add(NewTask(b"ship it", name="order-1", tag="ship"), connection=connection)
        assert added.status == "added"
        assert queue.stats().ready == 0
    assert results(connection) == 1
    assert [lease.payload for lease in queue.lease()] == [b"ship it"]


def test_tasks_were_never_there_when_the_caller_rolls_back(queue: LocalQueue, connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        queue.add([NewTask(name="order-1"), NewTask(tag="a")], connection=connection)
    assert queue.stats().added_total == 0
    (added,) = queue.add(NewTask(name="order-1"))
    assert added.status == "added"


def test_tasks_that_the_caller_commits_keep_their_headers(queue: LocalQueue, connection: Connection) -> None:
    with connection.transaction():
        queue.add(NewTask(b"1", headers={"n": "1"}), connection=connection)
        queue.add([NewTask(b"2"), NewTask(b"3", name="three", headers={"n": "3"})], connection=connection)
    assert [lease.headers for lease in queue.lease(3)] == [{"n": "1"}, None, {"n": "3"}]


def test_what_a_task_did_and_that_it_is_done_are_one_commit(queue: LocalQueue, connection: Connection) -> None:
    queue.add(b"work")
    (lease,) = queue.lease()
    with connection.transaction():
        connection.execute("INSERT INTO results VALUES ('done')")
        queue.delete(lease, then=[NewTask(b"next")], connection=connection)
        assert queue.stats().in_flight == 1
    assert results(connection) == 1
    stats = queue.stats()
    assert (stats.in_flight, stats.deleted_total, stats.ready) == (0, 1, 1)


def test_a_lost_lease_takes_what_the_task_did_with_it(queue: LocalQueue, connection: Connection) -> None:
    queue.add(b"work")
    (lease,) = queue.lease()
    queue.release(lease)
    with pytest.raises(LeaseLostError), connection.transaction():
        connection.execute("INSERT INTO results VALUES ('done')")
        queue.delete(lease, connection=connection)
    assert results(connection) == 0


def test_a_refused_call_leaves_the_callers_transaction_usable(store: Store, connection: Connection) -> None:
    queues = QueueService(store)
    a_queue(store, "moved")
    with store.begin() as transaction:
        transaction.set_moved("moved", "elsewhere")
    with connection.transaction():
        connection.execute("INSERT INTO results VALUES ('kept')")
        with pytest.raises(UnknownQueueError):
            LocalQueue(queues, "unknown").add(b"x", connection=connection)
        with pytest.raises(QueueMovedError):
            LocalQueue(queues, "moved").add(b"x", connection=connection)
    assert results(connection) == 1


def test_a_transaction_opened_by_the_call_itself_is_the_callers_to_commit(
    queue: LocalQueue, connection: Connection
) -> None:
    queue.add(b"one", connection=connection)
    connection.rollback()
    queue.add(b"two", connection=connection)
    connection.commit()
    assert [lease.payload for lease in queue.lease(10)] == [b"two"]


def test_others_add_and_lease_while_the_callers_transaction_is_open(queue: LocalQueue, connection: Connection) -> None:
    queue.add(b"first")
    with connection.transaction():
        queue.add([NewTask(b"second", tag="a"), NewTask(b"third")], connection=connection)
        queue.add(b"fourth")
        assert [lease.payload for lease in queue.lease(10)] == [b"first", b"fourth"]
    assert [lease.payload for lease in queue.lease(10)] == [b"second", b"third"]
    assert queue.stats().in_flight == 4


def test_a_connection_without_a_transaction_is_refused(queue: LocalQueue, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, pytest.raises(InvalidRequestError):
        queue.add(b"x", connection=connection)


def test_a_stricter_isolation_is_refused(queue: LocalQueue, connection: Connection) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(InvalidRequestError), connection.transaction():
        queue.add(b"x", connection=connection)


def test_a_failed_or_closed_connection_is_refused(queue: LocalQueue, connection: Connection, url: str) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(InvalidRequestError):
        queue.add(b"x", connection=connection)
    closed = psycopg.connect(url)
    closed.close()
    with pytest.raises(InvalidRequestError):
        queue.add(b"x", connection=closed)


def test_what_is_no_connection_is_refused(queue: LocalQueue) -> None:
    with pytest.raises(InvalidRequestError):
        queue.add(b"x", connection="postgresql://")


def test_a_connection_to_another_database_is_refused_or_fails(queue: LocalQueue) -> None:
    with psycopg.connect(new_url("postgresql")) as elsewhere, pytest.raises(StoreError):
        queue.add(b"x", connection=elsewhere)
    assert queue.stats().added_total == 0


@pytest.mark.parametrize("kind", ["memory:", "sqlite", "server"])
def test_other_queues_say_that_they_have_no_such_connections(tmp_path: Path, kind: str, connection: Connection) -> None:
    if kind == "server":
        with a_server() as server, closing(open_queue(server.url, QUEUE)) as queue, pytest.raises(InvalidRequestError):
            queue.add(b"x", connection=connection)
        return
    queue = open_queue(f"sqlite:///{tmp_path / 'queue.db'}" if kind == "sqlite" else kind, QUEUE)
    with pytest.raises(InvalidRequestError):
        queue.add(b"x", connection=connection)
    with pytest.raises(InvalidRequestError):
        queue.delete("1.1", connection=connection)
    queue.close()
