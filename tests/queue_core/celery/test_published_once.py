"""One publish is one task, whatever becomes of the answer: kombu's repeat is the same call."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import kombu
import pytest
from celery import Celery
from kombu import Message
from kombu.exceptions import OperationalError

import queue_core.kombu  # noqa: F401 - registers the transport
from queue_core.celery.transport.broker import close_brokers
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue, Queues
from queue_core.errors import OutcomeUnknownError
from queue_core.stores import open_store
from tests.celery.sites import ServerProcess
from tests.support.cutting_proxy import CuttingProxy, Fate, TcpFate, a_proxy, a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.servers import a_server
from tests.support.stores.engines import free_port
from tests.support.stores.shared_engines import EngineName
from tests.support.stores.stores import new_store_url

LOST: Fate = "lose answer"
"""A call is tried twice by the client before kombu hears of it."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Queues, CuttingProxy]]:
    """A queue of Celery's, at a server behind a proxy; a `restart` leads to a second server of its store."""
    with ExitStack() as stack:
        servers = [stack.enter_context(a_server(open_store(f"sqlite:///{tmp_path}/towline.db"))) for _ in range(2)]
        proxy = stack.enter_context(a_proxy(servers[0], other=servers[1]))
        stack.callback(close_brokers)
        yield stack.enter_context(closing(servers[0].queues())), proxy


def app_at(url: str) -> Celery:
    app = Celery(broker=f"towline+{url}")
    app.conf.task_publish_retry_policy = {"max_retries": 5, "interval_start": 0, "interval_step": 0}
    return app


def count_of(queue: Queue) -> int:
    stats = queue.stats()
    return stats.ready + stats.delayed


@pytest.mark.parametrize(
    "fates",
    [
        pytest.param([LOST], id="an answer"),
        pytest.param([LOST, LOST], id="both answers of a call"),
        pytest.param([LOST] * 3 + ["pass", LOST], id="those of the repeat, too"),
        pytest.param([LOST, "drop"], id="then the connection"),
        pytest.param([LOST, LOST, "drop", "drop"], id="then the connection for longer"),
        pytest.param(["restart", LOST], id="and the repeat goes to another server"),
    ],
)
@pytest.mark.parametrize("countdown", [0, 3600])
def test_a_task_whose_answer_was_lost_is_there_once(
    served: tuple[Queues, CuttingProxy], fates: list[Fate], countdown: int
) -> None:
    queues, proxy = served
    app = app_at(proxy.url)
    app.send_task("work")
    queue = queues.queue("celery")
    queue.purge()
    proxy.fates.extend(fates)
    app.send_task("work", countdown=countdown)
    assert count_of(queue) == 1
    app.send_task("work")
    assert count_of(queue) == 2
    app.close()


def test_a_message_for_two_queues_is_once_in_each(served: tuple[Queues, CuttingProxy]) -> None:
    queues, proxy = served
    news = kombu.Exchange("news", "topic")
    both = [kombu.Queue(name, news, routing_key="news.#") for name in ("archive", "screen")]
    with kombu.Connection(f"towline+{proxy.url}") as connection, connection.Producer() as producer:
        for number in range(6):
            proxy.fates.extend(["pass"] * (1 + number) + [LOST, LOST] if number else [])
            producer.publish(
                number,
                exchange=news,
                routing_key="news.sport",
                declare=both if number == 0 else [],
                retry=True,
                retry_policy={"max_retries": 5, "interval_start": 0},
            )
            proxy.fates.clear()
    counts = [count_of(queues.queue(one.name)) for one in both]
    assert counts == [6, 6]


def test_many_messages_are_there_once_each_while_answers_are_lost(served: tuple[Queues, CuttingProxy]) -> None:
    queues, proxy = served
    app = app_at(proxy.url)
    app.send_task("work")
    for number in range(30):
        proxy.fates.extend([LOST] * (number % 4))  # some come back to kombu, some do not
        app.send_task("work", task_id=str(number))
    proxy.fates.clear()
    assert count_of(queues.queue("celery")) == 31
    app.close()


def test_a_publish_whose_repeats_are_lost_too_says_so_and_is_there_once(
    served: tuple[Queues, CuttingProxy],
) -> None:
    queues, proxy = served
    app = app_at(proxy.url)
    app.send_task("work")
    queue = queues.queue("celery")
    queue.purge()
    proxy.fates.extend([LOST, LOST])
    with pytest.raises(OperationalError, match="may have taken effect"):
        app.send_task("work", retry=False)
    assert count_of(queue) == 1
    app.close()


@pytest.mark.parametrize("fates", [[LOST, LOST], [LOST, LOST, "pass", LOST, LOST], [LOST, LOST, "drop", "drop"]])
def test_a_publish_that_is_repeated_as_a_whole_is_there_once(
    served: tuple[Queues, CuttingProxy], fates: list[Fate]
) -> None:
    queues, proxy = served
    with kombu.Connection(f"towline+{proxy.url}") as connection, connection.Producer() as producer:
        producer.publish("first", routing_key="jobs", declare=[kombu.Queue("jobs")])
        ensured = connection.ensure(producer, producer.publish, max_retries=5, interval_start=0)
        for number in range(1, 4):
            proxy.fates.extend(fates)
            ensured("hello", routing_key="jobs", headers={"from": "here"})
            proxy.fates.clear()
            assert count_of(queues.queue("jobs")) == 1 + number


@pytest.mark.parametrize("is_ensured", [False, True])
def test_a_broadcast_whose_answer_was_lost_reaches_each_consumer_once(
    served: tuple[Queues, CuttingProxy],
    is_ensured: bool,
) -> None:
    _, proxy = served
    everybody = kombu.Exchange("everybody", "fanout")
    boxes = [kombu.Queue(name, everybody, durable=False, auto_delete=True) for name in ("one", "two")]
    with kombu.Connection(f"towline+{proxy.url}") as reading, kombu.Connection(f"towline+{proxy.url}") as writing:
        taken: list[tuple[str, Message]] = []
        consumer = reading.Consumer(
            boxes, callbacks=[lambda body, message: taken.append((body, message))], accept=["json"]
        )
        consumer.consume()
        producer = writing.Producer()
        policy = {"max_retries": 5, "interval_start": 0}
        publish = writing.ensure(producer, producer.publish, **policy) if is_ensured else producer.publish
        options = {} if is_ensured else {"retry": True, "retry_policy": policy}
        for body in ("a", "b", "c"):
            proxy.fates.extend([LOST] * 2)
            publish(body, exchange=everybody, serializer="json", **options)
            proxy.fates.clear()
        publish("last", exchange=everybody, serializer="json", **options)

        def drained() -> list[str]:
            with suppress(TimeoutError):
                while True:
                    reading.drain_events(timeout=0)
            return [body for body, _ in taken]

        eventually(lambda: drained().count("last") == 2)
        assert sorted(drained()) == ["a", "a", "b", "b", "c", "c", "last", "last"]
        taken[0][1].requeue()
        eventually(lambda: drained().count("a") == 3)


def test_a_publish_after_one_in_doubt_that_was_given_up_is_another(served: tuple[Queues, CuttingProxy]) -> None:
    queues, proxy = served
    with kombu.Connection(f"towline+{proxy.url}") as connection, connection.Producer() as producer:
        producer.publish("first", routing_key="jobs", declare=[kombu.Queue("jobs")])
        proxy.fates.extend([LOST, LOST])
        with pytest.raises(OutcomeUnknownError):
            producer.publish("hello", routing_key="jobs")
        producer.publish("hello", routing_key="jobs")
        assert count_of(queues.queue("jobs")) == 3


def test_two_messages_that_are_alike_are_two(served: tuple[Queues, CuttingProxy]) -> None:
    queues, proxy = served
    app = app_at(proxy.url)
    for _ in range(2):
        proxy.fates.extend([LOST, LOST])
        app.send_task("work", task_id="same")
    assert count_of(queues.queue("celery")) == 2
    app.close()


def test_a_child_of_a_fork_numbers_its_messages_by_itself(served: tuple[Queues, CuttingProxy]) -> None:
    queues, proxy = served
    app = app_at(proxy.url)
    app.send_task("work")
    child = os.fork()
    if not child:
        code = 1
        try:
            for _ in range(3):
                app.send_task("work")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(3):
        proxy.fates.extend([LOST, LOST])
        app.send_task("work")
    assert count_of(queues.queue("celery")) == 7
    app.close()


@pytest.mark.parametrize("name", ["postgresql", "redis"])
def test_a_store_that_is_opened_without_a_server_has_a_message_once_whose_answer_was_lost(name: EngineName) -> None:
    url = new_store_url(name)
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    is_down = threading.Event()

    def fate() -> TcpFate:
        return "drop" if is_down.is_set() else "pass"

    with a_tcp_proxy(place.hostname, place.port, choose=fate) as proxy:
        behind = url.replace(f":{place.port}", f":{proxy.port}", 1)
        jobs = kombu.Queue("jobs")
        queues = open_queues(url)
        with kombu.Connection(f"towline+{behind}") as connection, connection.Producer() as producer:

            def publish(errback: Callable[..., None]) -> None:
                policy = {"max_retries": 5, "interval_start": 0, "errback": errback}
                producer.publish("hello", routing_key="jobs", retry=True, retry_policy=policy)

            producer.publish("first", routing_key="jobs", declare=[jobs])
            told = []

            def back(error: Exception, _interval: float) -> None:
                told.append(str(error))
                is_down.clear()

            proxy.cut_next("lose answer")
            cutter = threading.Thread(target=lambda: eventually(lambda: not proxy.is_armed) and is_down.set())
            cutter.start()
            publish(back)
            cutter.join()
        assert count_of(queues.queue("jobs")) == 2
        queues.close()
        close_brokers()


@pytest.mark.parametrize("seconds", [3, 8, 12])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_server_that_stands_still_has_a_task_once(tmp_path: Path, seconds: int, servers: int) -> None:
    store = f"sqlite:///{tmp_path}/{free_port()}.db"
    running = [ServerProcess(store, tmp_path) for _ in range(servers)]
    try:
        for one in running:
            one.start()
        app = Celery(broker="towline+" + ",".join(one.url for one in running))
        app.send_task("work")
        running[0].send(signal.SIGSTOP)
        goes_on = threading.Timer(seconds, running[0].send, (signal.SIGCONT,))
        goes_on.start()
        app.send_task("work")
        goes_on.join()
        with closing(open_queues(running[0].url)) as queues:
            queue = queues.queue("celery")
            queue.add(b"after all that it read when it went on")
            queue.add(b"and surely so")
            assert count_of(queue) == 4
        app.close()
    finally:
        for one in running:
            one.stop()
        close_brokers()


def test_no_task_is_lost_or_there_twice_when_the_first_of_two_servers_is_killed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/{free_port()}.db"
    running = [ServerProcess(store, tmp_path) for _ in range(2)]
    try:
        for one in running:
            one.start()
        app = Celery(broker="towline+" + ",".join(one.url for one in running))
        sent = []
        for number in range(60):
            if number == 20:
                running[0].kill()
            sent.append(app.send_task("work", task_id=f"task-{number}").id)
        with closing(open_queues(running[1].url)) as queues:
            leases = queues.queue("celery").lease(1000)
        assert [json.loads(lease.payload)["headers"]["id"] for lease in leases] == sent
        app.close()
    finally:
        for one in running:
            one.stop()
        close_brokers()


def test_each_task_ends_once_when_the_server_of_its_consumer_is_killed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/{free_port()}.db"
    running = [ServerProcess(store, tmp_path) for _ in range(2)]
    jobs = kombu.Queue("jobs")
    try:
        for one in running:
            one.start()
        url = "towline+" + ",".join(one.url for one in running)
        taken: list[str] = []

        def take(body: str, message: Message) -> None:
            taken.append(body)
            message.ack()

        with kombu.Connection(url) as connection:
            with connection.Producer(serializer="json") as producer:
                for number in range(40):
                    producer.publish(str(number), routing_key="jobs", declare=[jobs])
            consumer = connection.Consumer([jobs], callbacks=[take], accept=["json"])
            consumer.qos(prefetch_count=4)
            consumer.consume()
            while len(taken) < 15:
                connection.drain_events(timeout=10)
            running[0].kill()
            while len(taken) < 40:
                connection.drain_events(timeout=10)
        with closing(open_queues(running[1].url)) as queues:
            stats = queues.queue("jobs").stats()
            assert (stats.ready, stats.in_flight) == (0, 0)
        assert sorted(taken, key=int) == [str(number) for number in range(40)]
    finally:
        for one in running:
            one.stop()
        close_brokers()
