"""What a round asks a broker for, in which order it delivers, and when acknowledgements wait for others."""

from collections.abc import Iterator
from typing import Any, cast

import kombu
import pytest

from queue_core.celery.transport.rounds import (
    LONGEST_GATHERING_SECONDS,
    Addressed,
    ChannelRoom,
    Delivery,
    Fetcher,
    Gathering,
    RoundChannel,
    merged,
)
from queue_core.clock import Instant
from tests.queue_core.celery.conftest import Connect

QUEUE = kombu.Queue("jobs", kombu.Exchange("jobs"), routing_key="jobs")
CONTROL = kombu.Queue("control", kombu.Exchange("control"), routing_key="control", durable=False, auto_delete=True)


class Consuming:
    """A channel that consumes a task queue and a mailbox, and the calls for messages that it makes."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        self.channel: Any = connection.channel()
        kombu.Consumer(self.channel, [QUEUE], callbacks=[lambda *_: None]).consume()
        kombu.Consumer(self.channel, [CONTROL], callbacks=[lambda *_: None], no_ack=True).consume()
        self.fetcher = Fetcher(connection.transport.broker.keeper)
        self.pops = 0
        mailboxes = self.channel._transport.mailboxes
        pop = mailboxes.pop

        def counted(*arguments: Any) -> Any:
            self.pops += 1
            return pop(*arguments)

        mailboxes.pop = counted

    def send(self, queue: kombu.Queue, body: object) -> None:
        with self.connection.Producer() as producer:
            producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, retry=False)

    def fetch(self, room: int, *, is_mail_due: bool = False) -> list[str]:
        """Fetch, and return the queues of what came, in the order of delivery."""
        fetched = self.fetcher.fetch([self.channel.room_for(room)], is_mail_due=is_mail_due)
        return [delivery.queue for _, delivery in merged(fetched.letters, fetched.tasks)]


@pytest.fixture
def consuming(connect: Connect) -> Iterator[Consuming]:
    made = Consuming(connect())
    yield made
    made.channel.close()


def test_a_message_that_was_sent_before_a_task_comes_before_it(consuming: Consuming) -> None:
    consuming.send(CONTROL, "first")
    consuming.send(QUEUE, "second")
    consuming.send(CONTROL, "third")
    assert consuming.fetch(5) == ["control", "jobs", "control"]


def test_the_tasks_of_a_backlog_are_leased_without_asking_for_messages_each_time(consuming: Consuming) -> None:
    for number in range(4):
        consuming.send(QUEUE, number)
    assert [consuming.fetch(1) for _ in range(4)] == [["jobs"]] * 4
    assert consuming.pops == 1


def test_a_message_before_a_later_task_is_asked_for(consuming: Consuming) -> None:
    consuming.send(QUEUE, 1)
    consuming.fetch(1)
    consuming.send(CONTROL, "stop")
    consuming.send(QUEUE, 2)
    assert consuming.fetch(1) == ["control", "jobs"]


def test_without_room_no_task_is_leased(consuming: Consuming) -> None:
    consuming.send(QUEUE, 1)
    consuming.send(CONTROL, "ping")
    assert consuming.fetch(0, is_mail_due=True) == ["control"]
    assert consuming.fetch(1, is_mail_due=True) == ["jobs"]


def test_a_task_for_a_consumer_that_never_acknowledges_is_gone_when_it_is_delivered(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    bodies: list[object] = []
    with connection.Producer() as producer:
        for number in range(3):
            producer.publish(
                number, exchange=QUEUE.exchange, routing_key="jobs", declare=[QUEUE], retry=False, serializer="json"
            )
    consumer = kombu.Consumer(channel, [QUEUE], callbacks=[lambda body, _: bodies.append(body)], no_ack=True)
    consumer.qos(prefetch_count=1)
    consumer.consume()
    while len(bodies) < 3:
        connection.drain_events(timeout=10)
    stats = connection.transport.broker.queue("jobs").stats()
    assert (bodies, stats.in_flight, stats.deleted_total) == ([0, 1, 2], 0, 3)


# -- acknowledgements that wait for others --------------------------------------------------------------------------


class Delivered:
    """A channel that has delivered tasks, of which some are not acknowledged."""

    def __init__(self) -> None:
        self.tags: set[str] = set()

    def deliver(self, tag: str) -> Addressed:
        self.tags.add(tag)
        delivery = Delivery("jobs", 1, {"properties": {"delivery_tag": tag}}, Instant(1), is_counted=True)
        return cast("RoundChannel", self), delivery

    def is_unacknowledged(self, tag: str) -> bool:
        return tag in self.tags


def gathered(call_seconds: float) -> tuple[Gathering, Delivered]:
    """Return a gathering that knows how long calls take; one of them has just brought `a` and `b`, at 100 s."""
    gathering, channel = Gathering(), Delivered()
    for number in range(50):
        gathering.call_began(now=float(number))
        gathering.call_ended([], now=number + call_seconds)
    gathering.call_ended([channel.deliver("a"), channel.deliver("b")], now=100.0)
    return gathering, channel


def test_an_acknowledgement_waits_for_that_of_a_task_that_has_just_begun_as_long_as_a_call_takes() -> None:
    gathering, channel = gathered(0.003)
    channel.tags.discard("a")
    assert gathering.pause_seconds(now=100.001) == pytest.approx(0.002, abs=0.0001)
    assert gathering.pause_seconds(now=100.0031) == 0


def test_it_does_not_wait_when_all_are_there() -> None:
    gathering, channel = gathered(0.003)
    channel.tags.clear()
    assert gathering.pause_seconds(now=100.001) == 0


@pytest.mark.parametrize(("call_seconds", "longest"), [(0.0005, 0.0), (1.0, LONGEST_GATHERING_SECONDS)])
def test_it_does_not_wait_for_fast_calls_nor_long_for_slow_ones(call_seconds: float, longest: float) -> None:
    gathering, _ = gathered(call_seconds)
    assert gathering.pause_seconds(now=100.0) == pytest.approx(longest)


def test_a_channel_without_room_asks_for_nothing() -> None:
    assert ChannelRoom(cast("RoundChannel", None), (), (), (), 0).tasks() == ([], False)
