"""Workers as a server knows them: while they call, after they were answered, after they hung up."""

import threading

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.errors import QueueError
from queue_core.server.leases.waiters import MAX_PRESENT_BYTES, MAX_PRESENT_WORKERS, MAX_TAG_BYTES_OF_WORKER, Presence
from queue_core.stats import WorkerActivity
from queue_core.task import ANY, TagFilter
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server


def described(presence: Presence, *, now: float, prefix: str = "") -> list[WorkerActivity]:
    return [one.describe(now=now) for one in presence.with_prefix(QUEUE, prefix)]


def test_a_worker_is_not_silent_while_one_of_its_calls_is_under_way() -> None:
    presence = Presence()
    for _ in range(2):
        presence.call_began(QUEUE, "resize/a", ANY, waits=True, now=10.0)
    presence.call_ended(QUEUE, "resize/a", now=11.0)
    assert described(presence, now=50.0) == [WorkerActivity("resize/a", 0.0, waits=True, hung_up=False, tags=())]
    presence.call_ended(QUEUE, "resize/a", now=52.0)
    assert described(presence, now=55.0) == [WorkerActivity("resize/a", 3.0, waits=True, hung_up=False, tags=())]


def test_a_worker_that_hung_up_is_described_as_gone_until_it_calls_again() -> None:
    presence = Presence()
    presence.call_began(QUEUE, "resize/a", ANY, waits=True, now=10.0)
    presence.call_ended(QUEUE, "resize/a", now=12.0, hung_up=True)
    assert described(presence, now=12.5) == [WorkerActivity("resize/a", 0.5, waits=True, hung_up=True, tags=())]
    presence.call_began(QUEUE, "resize/a", ANY, waits=False, now=13.0)
    assert described(presence, now=20.0) == [WorkerActivity("resize/a", 0.0, waits=True, hung_up=False, tags=())]


def test_only_workers_of_the_queue_with_the_prefix_are_found_and_nobody_without_a_name() -> None:
    presence = Presence()
    for queue, worker in ((QUEUE, "resize/a"), (QUEUE, "resize-b"), (QUEUE, ""), ("other", "resize/c")):
        presence.call_began(queue, worker, ANY, waits=True, now=10.0)
    assert [one.worker for one in described(presence, now=10.0, prefix="resize/")] == ["resize/a"]
    assert len(described(presence, now=10.0)) == 2


def test_of_very_many_workers_those_silent_for_longest_are_forgotten() -> None:
    presence = Presence()
    for number in range(MAX_PRESENT_WORKERS + 1):
        presence.call_began(QUEUE, f"w{number}", ANY, waits=False, now=float(number))
        if number == MAX_PRESENT_WORKERS - 1:
            presence.call_began(QUEUE, "w0", ANY, waits=False, now=float(number))
    names = {one.worker for one in described(presence, now=float(MAX_PRESENT_WORKERS))}
    assert len(names) == MAX_PRESENT_WORKERS
    assert "w0" in names
    assert "w1" not in names


def heard(server: RunningServer, prefix: str = "") -> list[WorkerActivity]:
    queues = HttpQueues(server.url)
    try:
        return queues.worker_activity(QUEUE, prefix=prefix)
    finally:
        queues.close()


def test_a_waiting_worker_is_heard_of_and_one_that_hung_up_is_told_so(server: RunningServer) -> None:
    queue = server.queue()
    asking = threading.Thread(target=lambda: _lease(queue))
    asking.start()
    eventually(lambda: server.waiting() == 1)
    assert heard(server, "resize/") == [WorkerActivity("resize/a", 0.0, waits=True, hung_up=False, tags=())]
    assert heard(server, "render/") == []
    queue.close()
    asking.join()
    eventually(lambda: heard(server)[0].hung_up)


def test_a_limit_that_is_none_is_refused(server: RunningServer) -> None:
    with server.connect() as line:
        line.sendall(f"GET /v1/queues/{QUEUE}/workers?limit=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert b" 422 " in line.recv(200)


def _lease(queue) -> None:  # type: ignore[no-untyped-def]
    try:
        queue.lease(worker="resize/a", wait_seconds=20.0)
    except QueueError:
        return


@pytest.mark.parametrize(
    ("environment", "worker"),
    [
        ({}, "w-1"),
        ({"HOSTNAME": "pod-7"}, "w-1"),
        ({"TOWLINE_POOL": "resize"}, "resize/w-1"),
        ({"TOWLINE_POOL": "resize", "HOSTNAME": "pod-7"}, "resize/pod-7.w-1"),
        ({"TOWLINE_POOL": "resize", "HOSTNAME": "h" * 300}, f"resize/{'h' * 64}.w-1"),
        ({"TOWLINE_POOL": "resize", "TOWLINE_WORKER": "mine"}, "mine"),
    ],
)
def test_a_worker_that_nobody_named_is_named_by_its_pool_and_host(environment: dict[str, str], worker: str) -> None:
    assert WorkerSettings.from_environment(environment, identity=lambda: "w-1").worker == worker


def test_an_observation_tells_when_each_worker_asked_last() -> None:
    with a_server() as server:
        queues = server.queues()
        try:
            queues.queue(QUEUE).lease(worker="resize-1")
            heard = queues.observe(QUEUE, workers=["resize-1", "resize-2"]).heard
        finally:
            queues.close()
    assert heard is not None
    assert [(one.worker, one.waits, one.hung_up) for one in heard] == [("resize-1", False, False)]


def test_what_is_remembered_of_workers_is_bounded_in_bytes() -> None:
    presence = Presence()
    tags = TagFilter.of(*[f"{number:070}" for number in range(40)])
    size = sum(len(tag) for tag in tags.tags)
    assert size < MAX_TAG_BYTES_OF_WORKER
    for number in range(MAX_PRESENT_WORKERS):
        presence.call_began(QUEUE, f"w-{number}", tags, waits=False, now=float(number))
    known = list(presence.with_prefix(QUEUE, "w-"))
    assert known[-1].worker == f"w-{MAX_PRESENT_WORKERS - 1}"  # those that called last
    assert 0.99 * MAX_PRESENT_BYTES < sum(one.counted_bytes for one in known) <= MAX_PRESENT_BYTES
    assert all(one.counted_bytes > size for one in known)


def test_of_a_worker_with_very_long_tags_it_is_known_that_it_leases_any() -> None:
    presence = Presence()
    presence.call_began(QUEUE, "w", TagFilter.of(*[f"{number:0500}" for number in range(100)]), waits=False, now=1.0)
    (known,) = presence.with_prefix(QUEUE, "w")
    assert known.tags == ()
    presence.call_began(QUEUE, "v", TagFilter.of("a", "b"), waits=False, now=1.0)
    presence.call_began(QUEUE, "v", TagFilter.of("b", "c"), waits=False, now=2.0)
    (known,) = presence.with_prefix(QUEUE, "v")
    assert known.tags == ("a", "b", "c")
