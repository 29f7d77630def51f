"""Celery's workers in a supervisor's pools: their names, their broker, and when they lease no more."""

from typing import Any

import kombu
import pytest

from queue_core.celery.transport.address import BrokerAddress, completed
from queue_core.client.connect import open_queues
from queue_core.kombu.worker import broker_url, named, set_variables
from queue_core.task import NewTask, QueueSpec
from tests.support.servers import a_server


@pytest.mark.parametrize(
    ("given", "found"),
    [
        pytest.param("-A p worker -c 2", "-A p worker -c 2 -n w@%h", id="named"),
        pytest.param("-A p worker -- worker.x=1", "-A p worker -n w@%h -- worker.x=1", id="before settings"),
        pytest.param("-A p worker -n own@%h", "-A p worker -n own@%h", id="its own"),
        pytest.param("-A p worker --hostname=own", "-A p worker --hostname=own", id="its own, long"),
        pytest.param("-A p inspect ping", "-A p inspect ping", id="another command"),
    ],
)
def test_a_node_has_its_workers_name(given: str, found: str) -> None:
    assert named(given.split(), "w") == found.split()


def test_a_broker_is_the_queue_of_the_supervisor_unless_the_pool_names_one() -> None:
    environment: dict[str, str] = {}
    set_variables(environment, worker="w", url="http://q:7878", token="secret")
    assert environment["CELERY_BROKER_URL"] == broker_url("http://q:7878") == "towline+http://q:7878"
    own = {"CELERY_BROKER_URL": "towline+http://other:7878"}
    set_variables(own, worker="w", url="http://q:7878", token=None)
    assert own["CELERY_BROKER_URL"] == "towline+http://other:7878"


def test_a_token_goes_to_the_broker_that_it_is_for_and_to_no_other() -> None:
    told = {"TOWLINE_URL": "http://q:7878", "TOWLINE_TOKEN": "secret", "TOWLINE_NAMESPACE": "eu"}
    assert completed(BrokerAddress("http://q:7878"), told) == BrokerAddress("http://q:7878", "secret", "eu")
    own = BrokerAddress("http://q:7878", "own", "us")
    assert completed(own, told) == own
    other = BrokerAddress("http://other:7878")
    assert completed(other, told) == other
    assert completed(other, {"TOWLINE_TOKEN": "secret"}) == other


def test_a_worker_for_one_task_finds_it_in_whichever_of_its_queues_and_leases_nothing_else() -> None:
    with a_server() as running:
        queues = open_queues(running.url)
        for name in ("a", "b", "c"):
            queues.put_queue(QueueSpec(name))
            queues.queue(name).add(NewTask(b"another"))
        message = '{"body": "", "headers": {}, "properties": {"delivery_tag": "x", "delivery_info": {}}}'
        queues.queue("b").add(NewTask(message.encode(), delay_seconds=600, name="one"))
        (task,) = queues.queue("b").peek(names=["one"]).tasks
        worker = f"shop-1.alone.{task.id}.{task.eta}"
        got: list[Any] = []
        with kombu.Connection(f"towline+{running.url}", transport_options={"worker": worker}) as connection:
            consumed = [kombu.Queue(name) for name in ("a", "b", "c")]
            with connection.Consumer(consumed, callbacks=[lambda _, message: got.append(message)], accept=["json"]):
                connection.drain_events(timeout=5)
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0.2)
                got[0].ack()
        assert len(got) == 1
        assert [queues.queue(name).stats().ready for name in ("a", "b", "c")] == [1, 1, 1]
        queues.close()
