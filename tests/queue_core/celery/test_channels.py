"""Programs that use kombu find what they know of other brokers, on a store in this process and on a server."""

from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError

from queue_core.celery.transport.address import address_of
from queue_core.celery.transport.broker import broker_of
from queue_core.celery.transport.options import options_of
from queue_core.celery.transport.prefetched_etas import MAX_PREFETCHED_ETAS
from queue_core.clock import MICROSECONDS, SystemClock
from queue_core.config.celery_names import store_name
from queue_core.errors import InvalidSettingError, TaskTooLargeError
from queue_core.task import QueueSpec, TaskState
from tests.queue_core.celery.conftest import Connect
from tests.support.eventually import eventually


class Inbox:
    """A consumer's messages."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue, prefetch: int = 0) -> None:
        self.connection = connection
        self.messages: list[kombu.Message] = []
        channel = connection.channel()
        self.consumer = kombu.Consumer(channel, list(queues), callbacks=[self._take], accept=["json", "pickle"])
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _take(self, _body: object, message: kombu.Message) -> None:
        self.messages.append(message)

    def drain(self) -> list[Any]:
        """Return the bodies that there are now, and acknowledge nothing."""
        before = len(self.messages)
        while True:
            try:
                self.connection.drain_events(timeout=0)
            except TimeoutError:
                return [message.payload for message in self.messages[before:]]


def publish(connection: kombu.Connection, queue: kombu.Queue, *bodies: object, **members: Any) -> None:
    members.setdefault("serializer", "json")
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(
                body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], retry=False, **members
            )


def stored(connection: kombu.Connection, queue: str) -> Any:
    """Return the queue in the store."""
    broker = broker_of(address_of(connection), options_of(connection.transport_options))
    return broker.queue(store_name(queue, namespace=address_of(connection).namespace))


def jobs(name: str = "my_jobs", **options: Any) -> kombu.Queue:
    return kombu.Queue(name, kombu.Exchange(f"{name}.exchange"), routing_key=name, **options)


def eta_in(days: float) -> str:
    """Return an eta as Celery writes it."""
    return (datetime.fromtimestamp(SystemClock().now() / MICROSECONDS, UTC) + timedelta(days=days)).isoformat()


def test_a_message_comes_unchanged_and_is_gone_when_acknowledged(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), {"n": 1}, headers={"k1": "v1"})
    publish(connection, jobs(), b"\x00\xff", serializer="pickle")
    inbox = Inbox(connection, jobs())
    assert inbox.drain() == [{"n": 1}, b"\x00\xff"]
    assert inbox.messages[0].headers == {"k1": "v1"}
    assert inbox.messages[0].delivery_info["redelivered"] is False
    for message in inbox.messages:
        message.ack()
    stats = stored(connection, "my_jobs").stats()
    assert (stats.ready, stats.in_flight, stats.deleted_total) == (0, 0, 2)


def test_a_property_that_can_not_be_written_is_dropped_as_by_amqp_and_such_a_header_is_refused(
    connect: Connect,
) -> None:
    connection = connect()
    publish(connection, jobs(), "sound", signal=object(), message_id="7")
    inbox = Inbox(connection, jobs())
    assert inbox.drain() == ["sound"]
    assert inbox.messages[0].properties["message_id"] == "7"
    assert "signal" not in inbox.messages[0].properties
    with pytest.raises(TypeError, match="not JSON serializable"):
        publish(connection, jobs(), "odd", headers={"odd": object()})


def test_a_prefetch_count_bounds_what_is_leased(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), 1, 2, 3)
    inbox = Inbox(connection, jobs(), prefetch=1)
    assert inbox.drain() == [1]
    assert stored(connection, "my_jobs").stats().in_flight == 1
    inbox.messages[0].ack()
    assert inbox.drain() == [2]


def test_a_rejected_message_comes_again_counted_and_is_dead_at_its_limit_with_its_reason(connect: Connect) -> None:
    connection = connect(max_leases=2)
    publish(connection, jobs(), "poison")
    publish(connection, jobs("neighbours"), "sound")
    inbox = Inbox(connection, jobs(), jobs("neighbours"))
    assert sorted(inbox.drain()) == ["poison", "sound"]
    poison, sound = sorted(inbox.messages, key=lambda message: message.payload)
    poison.requeue()
    sound.ack()
    assert inbox.drain() == ["poison"]
    again = inbox.messages[-1]
    assert (again.delivery_info["redelivered"], again.delivery_info["delivery_count"]) == (True, 2)
    again.requeue()
    assert inbox.drain() == []
    (dead,) = stored(connection, "my_jobs").peek().tasks
    assert dead.state == TaskState.DEAD
    assert "the process that ran it died" in dead.reason
    assert stored(connection, "neighbours").stats().dead == 0


def test_a_message_that_is_rejected_for_good_is_kept_as_dead(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), "odd")
    inbox = Inbox(connection, jobs())
    inbox.drain()
    inbox.messages[0].reject()
    (dead,) = stored(connection, "my_jobs").peek().tasks
    assert (dead.state, dead.reason) == (TaskState.DEAD, "rejected by its worker")


def test_what_was_only_prefetched_comes_again_as_if_never_delivered(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), "waiting")
    first = Inbox(connection, jobs())
    first.drain()
    connection.close()
    second = Inbox(connect(), jobs())
    assert second.drain() == ["waiting"]
    assert second.messages[0].delivery_info["delivery_count"] == 1


def test_exchanges_deliver_to_task_queues_and_mailboxes_bound_by_other_connections(connect: Connect) -> None:
    topic = kombu.Exchange("news", "topic")
    durable = kombu.Queue("archive", topic, routing_key="news.#")
    passing = kombu.Queue("screen", topic, routing_key="news.*", durable=False, auto_delete=True)
    inbox = Inbox(connect(), durable, passing)
    with connect().Producer() as producer:
        producer.publish("one", exchange="news", routing_key="news.sport", retry=False, serializer="json")
        producer.publish("two", exchange="news", routing_key="news.sport.tennis", retry=False, serializer="json")
    assert sorted(inbox.drain()) == ["one", "one", "two"]


def test_a_fanout_reaches_everybody_and_leaves_nothing_in_the_store(connect: Connect) -> None:
    everybody = kombu.Exchange("everybody", "fanout", durable=False)
    queues = [kombu.Queue(name, everybody, durable=False, auto_delete=True) for name in ("one", "two")]
    inboxes = [Inbox(connect(), queue) for queue in queues]
    connection = connect()
    with connection.Producer() as producer:
        producer.publish("hello", exchange=everybody, retry=False, serializer="json")
    assert [inbox.drain() for inbox in inboxes] == [["hello"], ["hello"]]
    broker = broker_of(address_of(connection), options_of({}))
    assert not {"one", "two"} & {spec.name for spec in broker.queues.queues()}


def test_a_mailbox_goes_with_its_last_consumer(connect: Connect) -> None:
    queue = kombu.Queue("passing", kombu.Exchange("x"), routing_key="k", durable=False, auto_delete=True)
    inbox = Inbox(connect(), queue)
    inbox.consumer.cancel()
    with pytest.raises(ChannelError, match="no queue 'passing'"):
        queue(connect().channel()).queue_declare(passive=True)


def test_a_mailbox_that_went_is_reached_again_when_it_is_declared_again(connect: Connect) -> None:
    """Celery's worker does so after an error in a command of remote control."""
    everybody = kombu.Exchange("everybody", "fanout", durable=False)
    queue = kombu.Queue("one", everybody, durable=False, auto_delete=True)
    connection = connect()
    Inbox(connection, queue).consumer.cancel()
    inbox = Inbox(connection, queue)
    with connect().Producer() as producer:
        producer.publish("hello", exchange=everybody, retry=False, serializer="json")
    assert inbox.drain() == ["hello"]


def test_a_passive_declaration_creates_nothing(connect: Connect) -> None:
    connection = connect()
    for _ in range(2):
        with pytest.raises(ChannelError, match="NOT_FOUND - no queue 'nowhere'"):
            kombu.Queue("nowhere")(connection.channel()).queue_declare(passive=True)


def test_a_passive_declaration_counts_ready_messages(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), 1, 2)
    found = jobs()(connection.channel()).queue_declare(passive=True)
    assert (found.message_count, found.consumer_count) == (2, 0)


def test_purging_spares_what_is_leased_and_deleting_takes_the_queue(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), 1, 2, 3)
    bound = jobs()(connection.channel())
    assert bound.purge() == 3
    bound.delete()
    with pytest.raises(ChannelError):
        bound.queue_declare(passive=True)


def test_a_message_whose_time_is_over_is_dropped(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), "late", expiration=0.0)
    publish(connection, jobs(), "sound")
    assert Inbox(connection, jobs()).drain() == ["sound"]


def test_a_task_with_an_eta_waits_in_the_store_and_not_in_a_worker(connect: Connect) -> None:
    connection = connect()
    for days in (0.1, 300):
        eta = eta_in(days)
        publish(connection, jobs(), [[], {}, {}], headers={"task": "shop.resize", "id": str(days), "eta": eta})
    assert Inbox(connection, jobs()).drain() == []
    queue = stored(connection, "my_jobs")
    assert (queue.stats().delayed, queue.stats().in_flight) == (2, 0)
    assert [task.tag for task in queue.peek().tasks] == ["shop.resize", "shop.resize"]


@pytest.mark.parametrize(("retries", "given"), [(0, ["now"]), (1, [])])
def test_a_task_that_is_due_soon_is_given_to_a_worker_unless_it_retries(
    connect: Connect, retries: int, given: list[str]
) -> None:
    connection = connect()
    publish(connection, jobs(), "now", headers={"task": "shop.resize", "eta": eta_in(9 / 86_400), "retries": retries})
    assert Inbox(connection, jobs()).drain() == given


def publish_near(connection: kombu.Connection, count: int) -> None:
    for number in range(count):
        publish(connection, jobs(), number, headers={"task": "shop.resize", "eta": eta_in(9 / 86_400)})


def test_of_a_crowd_that_is_due_soon_only_a_few_are_given_to_workers_at_once(connect: Connect) -> None:
    connection = connect()
    publish_near(connection, 30)
    stats = stored(connection, "my_jobs").stats()
    assert (stats.ready, stats.delayed) == (MAX_PREFETCHED_ETAS, 30 - MAX_PREFETCHED_ETAS)


def test_a_worker_holds_only_a_few_tasks_that_are_due_soon_and_gives_back_others_uncounted(connect: Connect) -> None:
    connection = connect()
    publish_near(connect(eta="worker"), 30)
    inbox = Inbox(connection, jobs())
    assert inbox.drain() == [*range(MAX_PREFETCHED_ETAS)]
    assert inbox.drain() == []
    queue = stored(connection, "my_jobs")
    eventually(
        lambda: (queue.stats().in_flight, queue.stats().delayed) == (MAX_PREFETCHED_ETAS, 30 - MAX_PREFETCHED_ETAS)
    )
    waiting = queue.peek(states=frozenset({TaskState.DELAYED})).tasks
    assert {task.leases for task in waiting} == {0}
    publish(connection, jobs(), "due")
    assert inbox.drain() == ["due"]


def test_the_option_eta_worker_leaves_it_to_the_worker(connect: Connect) -> None:
    connection = connect(eta="worker")
    eta = eta_in(0.1)
    publish(connection, jobs(), "now", headers={"task": "shop.resize", "eta": eta})
    assert Inbox(connection, jobs()).drain() == ["now"]


def test_namespaces_are_apart(connect: Connect) -> None:
    publish(connect(namespace="a"), jobs(), "of a")
    assert Inbox(connect(namespace="b"), jobs()).drain() == []
    assert Inbox(connect(namespace="a"), jobs()).drain() == ["of a"]


def spec_of(connection: kombu.Connection, queue: str) -> QueueSpec:
    """Return the settings of the queue in the store."""
    broker = broker_of(address_of(connection), options_of(connection.transport_options))
    return {spec.name: spec for spec in broker.queues.queues()}[store_name(queue)]


def test_a_large_message_passes_as_the_brokers_before_let_it(connect: Connect) -> None:
    connection = connect()
    body = "x" * (8 << 20)
    publish(connection, jobs(), body)
    publish(connection, kombu.Queue("plain", routing_key="plain"), body)
    assert Inbox(connection, jobs(), kombu.Queue("plain", routing_key="plain")).drain() == [body, body]
    assert spec_of(connection, "plain").max_payload_bytes == 32 << 20


def test_a_message_that_is_too_large_is_refused_with_the_limit_and_the_setting(connect: Connect) -> None:
    connection = connect(max_message_bytes=1 << 20)
    with pytest.raises(TaskTooLargeError, match=r"1 MiB.*raise its max_payload"):
        publish(connection, jobs(), "x" * (1 << 20))
    with pytest.raises(TaskTooLargeError, match=r"2 MiB.*raise its max_payload"):
        publish(connection, jobs("two", queue_arguments={"x-max-message-bytes": 2 << 20}), "x" * (2 << 20))
    assert stored(connection, "two").stats().added_total == 0
    with pytest.raises(InvalidSettingError, match="queue odd: x-max-message-bytes must be"):
        jobs("odd", queue_arguments={"x-max-message-bytes": "1MiB"})(connection.channel()).declare()


def fanned_out(*names: str, **arguments: Any) -> list[kombu.Queue]:
    exchange = kombu.Exchange("all", "fanout")
    return [kombu.Queue(name, exchange, queue_arguments=arguments.get(name)) for name in names]


def test_a_message_for_several_queues_is_added_to_all_of_them_or_to_none(connect: Connect) -> None:
    connection = connect()
    queues = fanned_out("one", "two", "three", three={"x-max-message-bytes": 1 << 20})
    with connection.Producer() as producer:
        producer.publish("small", serializer="json", exchange=queues[0].exchange, declare=queues, retry=False)
        with pytest.raises(TaskTooLargeError, match="in queue three: raise its max_payload"):
            producer.publish("x" * (2 << 20), exchange=queues[0].exchange, declare=queues, retry=False)
    assert [stored(connection, queue.name).stats().added_total for queue in queues] == [1, 1, 1]
    assert Inbox(connection, *queues).drain() == ["small"] * 3


def test_a_queue_that_was_deleted_since_gets_its_message_with_the_others(connect: Connect) -> None:
    connection = connect()
    queues = fanned_out("one", "two")
    with connection.Producer() as producer:
        producer.publish("a", exchange=queues[0].exchange, declare=queues, retry=False)
        broker_of(address_of(connection), options_of({})).queues.delete_queue("two")
        producer.publish("b", exchange=queues[0].exchange, retry=False)
    assert [stored(connection, name).stats().added_total for name in ("one", "two")] == [2, 1]


def test_a_large_message_is_not_for_mailboxes(connect: Connect) -> None:
    connection = connect()
    durable, mailbox = fanned_out("one", "box")
    mailbox.durable = False
    with connection.Producer() as producer, pytest.raises(TaskTooLargeError, match="1 MiB"):
        producer.publish("x" * (2 << 20), exchange=durable.exchange, declare=[durable, mailbox], retry=False)
    assert stored(connection, "one").stats().added_total == 0


def test_an_eta_beyond_thirty_days_waits_in_the_store_where_the_queue_allows_it(connect: Connect) -> None:
    connection = connect()
    broker = broker_of(address_of(connection), options_of({}))
    broker.queues.put_queue(QueueSpec("short"))
    broker.refresh()
    for name in ("long", "short"):
        headers = {"task": "shop.resize", "id": name, "eta": eta_in(300)}
        publish(connection, jobs(name), [[], {}, {}], headers=headers)
    days = [
        (stored(connection, name).peek().tasks[0].eta - SystemClock().now()) / MICROSECONDS / 86_400
        for name in ("long", "short")
    ]
    assert [round(each) for each in days] == [300, 30]


def test_a_delivery_limit_of_a_queue_is_its_max_leases(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(queue_arguments={"x-delivery-limit": 7}), 1)
    broker = broker_of(address_of(connection), options_of({}))
    assert {spec.name: spec.max_leases for spec in broker.queues.queues()}[store_name("my_jobs")] == 7


def test_a_durable_queue_with_auto_delete_is_kept_in_the_store(connect: Connect) -> None:
    connection = connect()
    queue = jobs(auto_delete=True)
    publish(connection, queue, "one", "two")
    inbox = Inbox(connection, queue, prefetch=1)
    assert inbox.drain() == ["one"]
    inbox.consumer.cancel()
    connection.close()
    stats = stored(connection, "my_jobs").stats()
    assert stats.ready + stats.in_flight == 2


@pytest.mark.parametrize(
    "options", [{"expires": 60}, {"auto_delete": True, "expires": 60}, {"queue_arguments": {"x-expires": 60_000}}]
)
def test_a_durable_queue_that_is_to_expire_is_refused_when_it_is_declared(
    connect: Connect, options: dict[str, Any]
) -> None:
    connection = connect()
    with pytest.raises(InvalidSettingError, match="queue my_jobs is durable and has expires") as refused:
        publish(connection, jobs(**options), "one")
    assert isinstance(refused.value, connection.channel_errors)
    assert not isinstance(refused.value, connection.connection_errors)
    assert store_name("my_jobs") not in {spec.name for spec in connection.transport.broker.queues.queues()}


def test_a_queue_of_the_store_is_not_declared_again_with_an_expiry(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), "one")
    with pytest.raises(InvalidSettingError, match="expires"):
        jobs(expires=60, durable=False)(connection.channel()).declare()
    assert stored(connection, "my_jobs").stats().ready == 1


@pytest.mark.parametrize("options", [{"durable": False}, {"exclusive": True}])
def test_a_queue_in_memory_may_expire(connect: Connect, options: dict[str, Any]) -> None:
    connection = connect()
    queue = jobs(expires=60, **options)
    publish(connection, queue, "one")
    assert Inbox(connection, queue).drain() == ["one"]
    assert store_name("my_jobs") not in {spec.name for spec in connection.transport.broker.queues.queues()}


@pytest.mark.parametrize(
    "name", ["bcast.8a1f2b3c-1111-2222-3333-444455556666", "celery@host.celery.pidbox", "celeryev.x", "amq.gen-1"]
)
def test_a_durable_queue_of_one_consumer_goes_with_it(connect: Connect, name: str) -> None:
    connection = connect()
    queue = kombu.Queue(name, kombu.Exchange("all", "fanout"), auto_delete=True)
    inbox = Inbox(connection, queue)
    assert store_name(name) not in {spec.name for spec in connection.transport.broker.queues.queues()}
    inbox.consumer.cancel()
    with pytest.raises(ChannelError):
        queue(connection.channel()).queue_declare(passive=True)
