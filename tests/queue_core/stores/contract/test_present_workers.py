"""Workers that lease from a store, on every store: whoever started them, by registrations and by what they lease."""

import json

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import START, ManualClock
from queue_core.stats import HeldTask, LeasingWorker, WorkerActivity
from queue_core.store import Store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.present_workers import pool_of, present_workers
from queue_core.unit.service import QueueService
from queue_core.unit.supervisors import KIND as SUPERVISORS
from queue_core.verbs.registration import WORKERS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def service(store: Store, clock: ManualClock) -> QueueService:
    return QueueService(store, clock=clock)


@pytest.fixture
def queues(service: QueueService) -> LocalQueues:
    queues = LocalQueues(service)
    queues.put_queue(QueueSpec("mail"))
    return queues


def test_a_worker_is_known_by_what_it_leases(queues: LocalQueues, clock: ManualClock) -> None:
    mail = queues.queue("mail")
    mail.add([NewTask(b"1", name="a"), NewTask(b"2", name="b"), NewTask(b"3", name="c")])
    mail.delete(mail.lease(worker="robot", seconds=60))
    mail.lease(2, worker="robot", seconds=60)
    clock.advance(5)
    assert queues.present_workers() == [
        LeasingWorker(
            worker="robot",
            pool="",
            host="",
            pid=0,
            since=0.0,
            queues=("mail",),
            state="busy",
            silent_seconds=None,
            finished=1,
            holding=2,
            tasks=(HeldTask("mail", "b", None, 5.0, 1), HeldTask("mail", "c", None, 5.0, 1)),
        )
    ]


def test_an_idle_worker_is_known_while_its_registration_holds(queues: LocalQueues, clock: ManualClock) -> None:
    facts = {"host": "node-2", "pid": "77", "queue": "mail", "since": "1700000000", "finished": "55"}
    queues.register(WORKERS, "worker-1", facts, seconds=60)
    (found,) = queues.present_workers()
    assert (found.host, found.pid, found.since, found.queues) == ("node-2", 77, 1_700_000_000.0, ("mail",))
    assert (found.state, found.finished, found.holding) == ("idle", 55, 0)
    clock.advance(60)
    assert queues.present_workers() == []


def test_odd_facts_of_other_programs_are_read_leniently(queues: LocalQueues) -> None:
    queues.register(WORKERS, "odd", {"pid": "-1", "since": "1e305", "finished": "9" * 40, "queue": "gone"}, seconds=60)
    (found,) = queues.present_workers()
    assert (found.pid, found.since, found.finished, found.queues) == (0, 0.0, 0, ("gone",))


def test_calls_that_a_server_heard_make_a_worker_known(queues: LocalQueues, service: QueueService) -> None:
    heard = [
        ("mail", WorkerActivity("waits", 0.0, waits=True, hung_up=False)),
        ("mail", WorkerActivity("was-here", 5.0, waits=False, hung_up=False)),
        ("mail", WorkerActivity("gone", 5.0, waits=True, hung_up=True)),
        ("mail", WorkerActivity("silent", 61.0, waits=True, hung_up=False)),
    ]
    found = service.read(lambda work: present_workers(work, heard))
    assert [(one.worker, one.state, one.silent_seconds) for one in found] == [
        ("waits", "leasing", 0.0),
        ("was-here", "idle", 5.0),
    ]


def test_a_worker_of_a_pool_is_told_by_its_name(queues: LocalQueues) -> None:
    queues.register(SUPERVISORS, "s", {"pools": json.dumps(["resize"])}, seconds=60)
    mail = queues.queue("mail")
    mail.add([NewTask(b"1"), NewTask(b"2")])
    mail.lease(worker="resize-7f3k2q", seconds=60)
    mail.lease(worker="worker-7f3k2q", seconds=60)
    assert [(one.worker, one.pool) for one in queues.present_workers()] == [
        ("resize-7f3k2q", "resize"),
        ("worker-7f3k2q", ""),
    ]


@pytest.mark.parametrize(
    ("worker", "pool"),
    [
        pytest.param("resize-7f3k2q", "resize", id="started by the supervisor"),
        pytest.param("resize-7f3k2q.solo-1", "resize", id="alone with a task"),
        pytest.param("resize/node.worker-1", "resize", id="of an external pool"),
        pytest.param("large-images-1", "large-images", id="a hyphen in the name"),
        pytest.param("resize", "", id="the pool's name alone"),
        pytest.param("worker-1", "", id="another"),
        pytest.param("", "", id="none"),
    ],
)
def test_a_name_stands_for_a_pool(worker: str, pool: str) -> None:
    assert pool_of(worker, {"resize", "large-images"}) == pool
