"""What several files of the orchestrator's tests stand on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.state.directory import StateDir
from tests.support.docker.engine import EngineUnavailableError
from tests.support.docker.swarms import Swarm, swarm
from tests.support.fleet.reconciler_stage import ReconcilerStage
from tests.support.fleet.runtime_bench import (
    ContainerRuntimeKind,
    ForkedRuntimeKind,
    ProcessRuntimeKind,
    RuntimeBench,
    RuntimeKind,
    runtime_bench,
)

RUNTIMES = ("docker", "process", "forked")
"""A new runtime joins them, and must pass the contract unchanged."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReconcilerStage]:
    """A reconciler between fakes; what it logs is caught."""
    with capture_logs() as logs:
        yield ReconcilerStage(StateDir(tmp_path), logs)


@pytest.fixture(params=RUNTIMES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RuntimeBench]:
    """Each runtime in turn, to be held against the contract."""
    kind: RuntimeKind
    match request.param:
        case "docker":
            kind = ContainerRuntimeKind(request.getfixturevalue("docker_engine"))
        case "forked":
            kind = ForkedRuntimeKind()
        case _:
            kind = ProcessRuntimeKind()
    with runtime_bench(kind, tmp_path) as bench:
        yield bench


@pytest.fixture(scope="package")
def two_nodes_of_package() -> Iterator[Swarm | EngineUnavailableError]:
    """One private swarm of two engines; or why there is none."""
    try:
        with swarm(2) as made:
            yield made
    except EngineUnavailableError as error:
        yield error


@pytest.fixture
def two_nodes(two_nodes_of_package: Swarm | EngineUnavailableError) -> Swarm:
    """The one swarm of two engines; a skip that says why, elsewhere."""
    if isinstance(two_nodes_of_package, EngineUnavailableError):
        pytest.skip(str(two_nodes_of_package))
    for node in two_nodes_of_package.nodes:
        node.engine.ensure_running()
    return two_nodes_of_package
