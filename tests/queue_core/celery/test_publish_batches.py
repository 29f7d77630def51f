"""A batch of a producer's messages is added by few calls: by kombu's `Producer.batch()`, from version 5.7."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kombu
import pytest
from celery import Celery, group

from queue_core.celery.transport.broker import close_brokers
from queue_core.client.queue import Queues
from queue_core.stores import open_store
from tests.queue_core.celery.conftest import Connect
from tests.support.cutting_proxy import CuttingProxy, a_proxy
from tests.support.servers import a_server

pytestmark = pytest.mark.skipif(not hasattr(kombu.Producer, "batch"), reason="kombu has batches from 5.7 on")

JOBS = kombu.Queue("jobs")


def bodies(connection: kombu.Connection, queue: kombu.Queue) -> list[str]:
    with closing(connection.SimpleQueue(queue)) as simple:
        return [simple.get(timeout=5).payload for _ in range(simple.qsize())]


def test_a_batch_is_there_when_it_ends(connect: Connect) -> None:
    connection = connect()
    producer = connection.Producer(serializer="json")
    producer.publish("first", routing_key="jobs", declare=[JOBS])
    assert producer.supports_batch_publish
    with producer.batch():
        for number in range(5):
            producer.publish(str(number), routing_key="jobs", retry=True)
        assert JOBS(connection.channel()).queue_declare(passive=True).message_count == 1
    assert bodies(connect(), JOBS) == ["first", "0", "1", "2", "3", "4"]


def test_a_batch_that_fails_is_left_out(connect: Connect) -> None:
    connection = connect()
    producer = connection.Producer(serializer="json")
    producer.publish("first", routing_key="jobs", declare=[JOBS])
    with pytest.raises(ZeroDivisionError), producer.batch():
        producer.publish("second", routing_key="jobs")
        raise ZeroDivisionError
    assert bodies(connect(), JOBS) == ["first"]


def test_messages_for_an_exchange_keep_their_place_in_a_batch(connect: Connect) -> None:
    connection = connect()
    producer = connection.Producer(serializer="json")
    routed = kombu.Queue("jobs", kombu.Exchange("routes", "topic"), routing_key="job.#")
    with producer.batch():
        producer.publish("0", routing_key="jobs", declare=[routed])
        producer.publish("1", exchange=routed.exchange, routing_key="job.a")
        producer.publish("2", routing_key="jobs")
    assert bodies(connect(), JOBS) == ["0", "1", "2"]


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[tuple[Queues, CuttingProxy]]:
    store = open_store(f"sqlite:///{tmp_path}/towline.db")
    with a_server(store) as server, a_proxy(server) as proxy, closing(server.queues()) as queues:
        yield queues, proxy
        close_brokers()


def test_a_group_in_a_batch_is_added_by_one_call_and_once_if_its_answer_is_lost(
    counted: tuple[Queues, CuttingProxy],
) -> None:
    queues, proxy = counted
    app = Celery(broker=f"towline+{proxy.url}")
    app.send_task("work")
    members = group(app.signature("work") for _ in range(200))
    with app.producer_pool.acquire(block=True) as producer, producer.batch():
        proxy.fates.extend(["lose answer", "pass", "lose answer"])
        members.apply_async(producer=producer)
    assert len(proxy.fates) == 1
    assert queues.queue("celery").stats().ready == 201
    app.close()


def test_a_batch_in_doubt_says_so_and_is_there_once(counted: tuple[Queues, CuttingProxy]) -> None:
    from kombu.exceptions import BatchPublishError

    queues, proxy = counted
    with kombu.Connection(f"towline+{proxy.url}") as connection:
        producer = connection.Producer(serializer="json")
        producer.publish("first", routing_key="jobs", declare=[JOBS])
        with pytest.raises(BatchPublishError, match="may be there"), producer.batch():
            for number in range(5):
                producer.publish(str(number), routing_key="jobs", retry=True)
            proxy.fates.extend(["lose answer", "lose answer"])
    assert queues.queue("jobs").stats().ready == 6


def test_a_full_batch_is_added_before_it_ends(counted: tuple[Queues, CuttingProxy]) -> None:
    queues, proxy = counted
    with kombu.Connection(f"towline+{proxy.url}") as connection:
        producer = connection.Producer(serializer="json")
        producer.publish("first", routing_key="jobs", declare=[JOBS])
        with producer.batch(max_size=2):
            for number in range(5):
                producer.publish(str(number), routing_key="jobs")
            assert queues.queue("jobs").stats().ready == 5
            for _ in range(2):
                producer.publish("x" * (3 << 20), routing_key="jobs")
            assert queues.queue("jobs").stats().ready == 7
    assert queues.queue("jobs").stats().ready == 8


def test_a_queue_that_was_deleted_is_created_for_a_batch(connect: Connect) -> None:
    connection = connect()
    producer = connection.Producer(serializer="json")
    producer.publish("first", routing_key="jobs", declare=[JOBS])
    connection.transport.broker.queues.delete_queue("jobs")
    with producer.batch():
        producer.publish("second", routing_key="jobs")
    assert bodies(connect(), JOBS) == ["second"]
