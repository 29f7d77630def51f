"""Lease calls that wait at a server for room under a limit get their task as soon as there is some, on every store."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from queue_core.admission import Rate, TagLimits
from queue_core.client.http_calls import HttpQueue
from queue_core.task import Lease, NewTask, QueueSpec
from tests.support.eventually import eventually
from tests.support.servers import WORK, RunningServer, a_server
from tests.support.stores.stores import STORES, opened

LONG_SECONDS = 30.0
Serve = Callable[[QueueSpec], tuple[RunningServer, HttpQueue]]
ONE_OF_A_TAG = replace(WORK, per_tag=TagLimits(max_in_flight=1))
ONE_OF_ALL = replace(WORK, max_in_flight=1)


@pytest.fixture(params=STORES)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def serve(spec: QueueSpec) -> tuple[RunningServer, HttpQueue]:
            store = stack.enter_context(opened(request.param, tmp_path))
            running = stack.enter_context(a_server(store, spec=spec))
            queue = running.queue()
            stack.callback(queue.close)
            return running, queue

        yield serve


@pytest.mark.parametrize("spec", [pytest.param(ONE_OF_A_TAG, id="tag"), pytest.param(ONE_OF_ALL, id="queue")])
@pytest.mark.parametrize("end", ["delete", "release"])
def test_a_waiting_call_gets_the_place_that_returns(served: Serve, spec: QueueSpec, end: str) -> None:
    server, queue = served(spec)
    queue.add([NewTask(b"1", tag="a"), NewTask(b"2", tag="a")])
    (first,) = queue.lease(count=5, worker="w-1")
    assert (first.payload, queue.lease(count=5, worker="w-2")) == (b"1", [])
    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(queue.lease, worker="w-2", wait_seconds=LONG_SECONDS)
        eventually(lambda: server.waiting() == 1)
        if end == "delete":
            queue.delete(first)
        else:
            queue.release(first, delay_seconds=60.0)
        assert [lease.payload for lease in call.result(LONG_SECONDS)] == [b"2"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(replace(WORK, per_tag=TagLimits(rate=Rate(4.0))), id="tag"),
        pytest.param(replace(WORK, rate=Rate(4.0)), id="queue"),
    ],
)
def test_a_waiting_call_gets_the_next_token(served: Serve, spec: QueueSpec) -> None:
    _, queue = served(spec)
    queue.add([NewTask(tag="a") for _ in range(4)])
    leases: list[Lease] = []
    while len(leases) < 4:
        (found,) = queue.lease(worker="w-1", wait_seconds=LONG_SECONDS)
        leases.append(found)
    grants = [lease.leased_at for lease in leases]
    assert all(later - earlier >= 250_000 for earlier, later in itertools.pairwise(grants))


def test_room_that_a_death_returns_is_given_at_once(
    served: Serve,
) -> None:
    server, queue = served(ONE_OF_A_TAG)
    queue.add([NewTask(b"1", tag="a"), NewTask(b"2", tag="a")])
    queue.lease(worker="w-1")
    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(queue.lease, worker="w-2", wait_seconds=LONG_SECONDS)
        eventually(lambda: server.waiting() == 1)
        with closing(server.queues()) as queues:
            queues.release_worker("w-1")
        assert [lease.lease_number for lease in call.result(LONG_SECONDS)] in ([1], [2])
