"""The Kubernetes of a test run: a stand-in for each test that wants one, one real control plane whose node tests report
for, and one with real nodes, whose scheduler would place the Pods of the others."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kubernetes.node import Node
from tests.support.kubernetes.plane import Plane
from tests.support.kubernetes.plane import plane as private_plane
from tests.support.kubernetes.server import StandIn
from tests.support.kubernetes.server import stand_in as private_stand_in
from tests.support.kubernetes.stage import Stage, patched_node, plane_stage, stand_in_stage
from tests.support.stores.engine_process import EngineUnavailableError

NODES = 2


@pytest.fixture(scope="session")
def plane_of_session() -> Iterator[Plane | EngineUnavailableError]:
    """One control plane with a node that tests report for; or why there is none."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(private_plane())
            stack.enter_context(patched_node(started))
        except EngineUnavailableError as error:
            yield error
        else:
            yield started


@pytest.fixture
def plane(plane_of_session: Plane | EngineUnavailableError) -> Plane:
    """The session's control plane; a skip that says why there is none."""
    if isinstance(plane_of_session, EngineUnavailableError):
        pytest.skip(str(plane_of_session))
    return plane_of_session


@pytest.fixture(scope="session")
def cluster_of_session() -> Iterator[tuple[Plane, list[Node]] | EngineUnavailableError]:
    """A control plane with two real nodes; or why there is none."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(private_plane())
            nodes = [started.add_node() for _ in range(NODES)]
        except EngineUnavailableError as error:
            yield error
        else:
            yield started, nodes


@pytest.fixture
def cluster(cluster_of_session: tuple[Plane, list[Node]] | EngineUnavailableError) -> tuple[Plane, list[Node]]:
    """The session's control plane with two real nodes; a skip that says why there is none."""
    if isinstance(cluster_of_session, EngineUnavailableError):
        pytest.skip(str(cluster_of_session))
    return cluster_of_session


@pytest.fixture
def nodes(cluster: tuple[Plane, list[Node]]) -> list[Node]:
    """The real nodes."""
    return cluster[1]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A stand-in for the API, which can be asked for what a real one can't."""
    with private_stand_in() as server:
        yield server


@pytest.fixture
def fake(stand_in: StandIn, tmp_path: Path) -> Stage:
    """A namespace of a stand-in."""
    return stand_in_stage(stand_in, tmp_path)


@pytest.fixture
def real(plane: Plane) -> Iterator[Stage]:
    """A namespace of the real control plane."""
    made = plane_stage(plane)
    yield made
    made.clear()


@pytest.fixture(params=["stand-in", "real"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Both, one after the other: what is promised on one holds on the other."""
    found: Stage = request.getfixturevalue("fake" if request.param == "stand-in" else "real")
    return found
