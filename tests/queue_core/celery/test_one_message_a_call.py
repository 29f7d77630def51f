"""One call of `drain_events` delivers one message, as kombu counts them; what came with it is not lost."""

from typing import Any

import kombu
import pytest
from structlog.testing import capture_logs

from tests.queue_core.celery.conftest import Connect
from tests.queue_core.celery.test_channels import Inbox, jobs, publish, stored

FANOUT = kombu.Exchange("replies", "fanout", durable=False)
REPLIES = kombu.Queue("replies", FANOUT, durable=False, auto_delete=True)


def drained(inbox: Inbox) -> list[int]:
    """Return how many messages each call delivered, until there are no more."""
    counts = []
    while True:
        before = len(inbox.messages)
        try:
            inbox.connection.drain_events(timeout=0)
        except TimeoutError:
            return counts
        counts.append(len(inbox.messages) - before)


@pytest.mark.parametrize("queue", [jobs(), REPLIES], ids=["tasks", "mailbox"])
@pytest.mark.parametrize("no_ack", [False, True])
def test_each_call_delivers_one_message(connect: Connect, queue: kombu.Queue, no_ack: bool) -> None:
    inbox = Inbox(connect(), queue) if not no_ack else unacknowledged(connect(), queue)
    publish(connect(), queue, "a", "b", "c")
    assert drained(inbox) == [1, 1, 1]
    assert [message.payload for message in inbox.messages] == ["a", "b", "c"]


def unacknowledged(connection: kombu.Connection, queue: kombu.Queue) -> Inbox:
    inbox = Inbox(connection, queue)
    inbox.consumer.cancel()
    inbox.consumer = kombu.Consumer(connection.channel(), [queue], callbacks=[inbox._take], no_ack=True)
    inbox.consumer.consume()
    return inbox


def test_tasks_and_messages_are_merged_call_by_call(connect: Connect) -> None:
    inbox = Inbox(connect(), jobs(), REPLIES)
    for queue, body in ((jobs(), "a"), (REPLIES, "b"), (jobs(), "c")):
        publish(connect(), queue, body)
    assert sum(drained(inbox)) == 3
    assert sorted(message.payload for message in inbox.messages) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_what_was_fetched_and_not_delivered_is_ready_at_once_when_the_consumer_ends(connect: Connect, end: str) -> None:
    connection = connect()
    inbox = Inbox(connection, jobs())
    publish(connect(), jobs(), "a", "b", "c")
    connection.drain_events(timeout=0)
    inbox.messages[0].ack()
    if end == "cancel":
        inbox.consumer.cancel()
    else:
        connection.release()
    other = Inbox(connect(), jobs())
    assert other.drain() == ["b", "c"]
    assert stored(other.connection, "my_jobs").stats().in_flight == 2


def test_messages_that_are_not_acknowledged_and_not_delivered_are_kept(connect: Connect) -> None:
    connection = connect()
    inbox = unacknowledged(connection, jobs())
    publish(connect(), jobs(), "a", "b", "c")
    connection.drain_events(timeout=0)
    inbox.consumer.cancel()
    assert Inbox(connect(), jobs()).drain() == ["b", "c"]


def test_a_message_whose_consumer_fails_leaves_the_others_for_the_next_call(connect: Connect) -> None:
    connection = connect()
    taken: list[Any] = []

    def take(body: object, _message: object) -> None:
        taken.append(body)
        if body == "a":
            raise ValueError("no")

    consumer = kombu.Consumer(connection.channel(), [jobs()], callbacks=[take], accept=["json"])
    consumer.consume()
    publish(connect(), jobs(), "a", "b")
    with pytest.raises(ValueError, match="no"):
        connection.drain_events(timeout=0)
    connection.drain_events(timeout=0)
    assert taken == ["a", "b"]


# -- what else a declaration may say --------------------------------------------------------------------------------


def test_an_unbound_queue_gets_nothing_more_from_the_connection_that_bound_it(connect: Connect) -> None:
    connection = connect()
    exchange = kombu.Exchange("routes", "direct")
    queue = kombu.Queue("routed", exchange, routing_key="k")
    channel = connection.channel()
    bound = queue(channel)
    bound.declare()
    with connection.Producer() as producer:
        producer.publish("one", exchange=exchange, routing_key="k", retry=False)
        bound.unbind_from(exchange, routing_key="k")
        producer.publish("two", exchange=exchange, routing_key="k", retry=False)
        assert stored(connection, "routed").stats().ready == 1
        bound.bind_to(exchange, routing_key="k")
        producer.publish("three", exchange=exchange, routing_key="k", retry=False)
    assert stored(connection, "routed").stats().ready == 2


def test_arguments_without_an_effect_are_named_once(connect: Connect) -> None:
    arguments = {
        "x-dead-letter-exchange": "dead",
        "x-max-length": 3,
        "x-overflow": "reject-publish",
    }
    queue = kombu.Queue("limited", queue_arguments=arguments)
    with capture_logs() as logs:
        for connection in (connect(), connect()):
            queue(connection.channel()).declare()
        jobs()(connect().channel()).declare()
    (line,) = [one for one in logs if one["event"] == "queue.arguments_ignored"]
    assert (line["queue"], line["log_level"]) == ("limited", "warning")
    assert line["arguments"] == "x-dead-letter-exchange, x-max-length, x-overflow"
