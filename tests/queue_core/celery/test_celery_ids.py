"""A task of Celery's is found by the id that Celery gave it, while it waits, while it runs, when it is dead or done."""

import pytest
from celery import Celery
from kombu import pools

from queue_core.celery.transport.address import address_of
from queue_core.celery.transport.broker import broker_of
from queue_core.celery.transport.options import options_of
from queue_core.cli.task_story import find_stories
from queue_core.task import TaskState


@pytest.mark.parametrize("countdown", [0, 3600])
def test_a_task_is_found_by_its_celery_id(broker: str, countdown: int) -> None:
    app = Celery(broker=broker)
    sent = [app.send_task("work", countdown=countdown) for _ in range(3)]
    with app.connection_for_write() as connection:
        queues = broker_of(address_of(connection), options_of({})).queues
        (story,) = find_stories(queues, sent[1].id)
        assert story.task is not None
        assert story.task.state in {TaskState.READY, TaskState.DELAYED}
        queue = queues.queue("celery")
        if not countdown:
            leases = queue.lease(3)
            (story,) = find_stories(queues, sent[1].id)
            assert story.name == leases[1].name
            assert story.task is not None
            assert story.task.state is TaskState.LEASED
            queue.release(leases, dead_reason="malformed")
            (story,) = find_stories(queues, f"celery/{sent[1].id}")
            assert story.task is not None
            assert story.task.state is TaskState.DEAD
        assert find_stories(queues, "00000000-0000-0000-0000-000000000000") == []
    app.close()
    pools.reset()  # kombu keeps connections by their URL


def test_a_task_that_ended_is_found_by_its_celery_id(broker: str) -> None:
    app = Celery(broker=broker)
    sent = [app.send_task("work") for _ in range(3)]
    with app.connection_for_write() as connection:
        queues = broker_of(address_of(connection), options_of({})).queues
        queue = queues.queue("celery")
        leases = queue.lease(3, worker="w1")
        queue.delete(leases)
        for task, lease in zip(sent, leases, strict=True):
            (story,) = find_stories(queues, task.id)
            assert (story.name, story.state, [one.worker for one in story.leases]) == (lease.name, "done", ["w1"])
    app.close()
    pools.reset()


def test_a_task_that_was_published_again_with_its_id_is_found_twice(broker: str) -> None:
    app = Celery(broker=broker)
    app.send_task("work", task_id="11111111-retried")
    with app.connection_for_write() as connection:
        queues = broker_of(address_of(connection), options_of({})).queues
        queue = queues.queue("celery")
        queue.delete(queue.lease(1))
        app.send_task("work", task_id="11111111-retried", retries=1)
        assert [story.state for story in find_stories(queues, "11111111-retried")] == ["done", "ready"]
    app.close()
    pools.reset()
