"""A queue of the store is one, however a program declares it."""

from tests.queue_core.celery.conftest import Connect


def test_a_queue_that_holds_tasks_stays_one_when_it_is_declared_as_passing(connect: Connect) -> None:
    """`celery amqp queue.declare NAME` declares it as not durable."""
    with connect() as first, first.channel() as channel:
        channel.queue_declare("mail", durable=True)
        channel.basic_publish(channel.prepare_message("{}"), exchange="", routing_key="mail")
    with connect() as second, second.channel() as channel:
        assert channel.queue_declare("mail", durable=False).message_count == 1
        assert channel.queue_purge("mail") == 1
