"""Tasks of a swarm that are frozen or removed on their node: told as that, and ended all the same."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from orchestrator.fleet.exits import Cause, cause_of
from orchestrator.runtime import WorkerHandle
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.swarm_bench import SwarmBench, swarm_bench
from tests.support.docker.swarms import Swarm
from tests.support.eventually import eventually


@pytest.fixture
def bench(two_nodes: Swarm, request: pytest.FixtureRequest) -> Iterator[SwarmBench]:
    with swarm_bench(two_nodes, request.node.name.replace("[", "-").rstrip("]")) as bench:
        yield bench


def placed(bench: SwarmBench, handle: WorkerHandle) -> tuple[PrivateDockerEngine, str]:
    """Return the engine and the container of a worker."""
    bench.all_run(1)
    (task,) = bench.tasks()
    return bench.node_of(handle).engine, task["Status"]["ContainerStatus"]["ContainerID"]


def _pause(engine: PrivateDockerEngine, container: str) -> None:
    with engine.client() as client:
        client.pause(container)


def _stop_the_processes(engine: PrivateDockerEngine, container: str) -> None:
    with engine.client() as client:
        processes = client.top(container)["Processes"]
    for row in processes:
        os.kill(int(row[1]), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("freeze", "told"),
    [
        pytest.param(_pause, "paused (docker pause)", id="paused"),
        pytest.param(_stop_the_processes, "stopped (SIGSTOP)", id="stopped"),
    ],
)
def test_a_frozen_task_is_told_with_what_froze_it_and_can_be_killed(
    bench: SwarmBench, freeze: Callable[[PrivateDockerEngine, str], None], told: str
) -> None:
    handle = bench.spawn()
    engine, container = placed(bench, handle)
    freeze(engine, container)
    assert eventually(lambda: bench.runtime.examine(handle.worker, before="mark")) == told
    bench.runtime.kill(handle.worker)
    (ended,) = bench.exits()
    assert ended.signal == signal.SIGKILL


def test_a_container_of_a_task_that_somebody_removes_is_told_as_removed(bench: SwarmBench) -> None:
    handle = bench.spawn()
    engine, container = placed(bench, handle)
    with engine.client() as client:
        client.remove_container(container, force=True)
    (ended,) = bench.exits()
    assert cause_of(ended, drained=False, overdue=False) == (
        Cause.REMOVED,
        "its container was removed by somebody else",
    )
    assert ended.is_stopped
