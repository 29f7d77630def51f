"""A task of Celery's is found by the id that Celery gave it, while it waits, while it runs and when it is dead."""

import pytest
from celery import Celery
from kombu import pools

from queue_core.cli.task_story import find_stories
from queue_core.kombu.address import address_of
from queue_core.kombu.broker import broker_of
from queue_core.kombu.options import options_of
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
