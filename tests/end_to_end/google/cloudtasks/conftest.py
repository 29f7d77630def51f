"""Servers over two stores, and Google's own client for Cloud Tasks over both wires."""

from collections.abc import Iterator

import pytest

from queue_core.clock import ManualClock
from tests.support.google.cloud_tasks import CloudTasksBench, a_client, a_cloud_tasks_server, empty
from tests.support.servers import RunningServer
from tests.support.stores.stores import opened


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, ManualClock]]:
    """A server over each store in turn, and its clock; the store passes its own check at the end."""
    clock = ManualClock()
    with opened(request.param, tmp_path_factory.mktemp("store")) as store:
        with a_cloud_tasks_server(store, clock=clock) as server:
            yield server, clock
        assert store.check().problems == ()


@pytest.fixture
def server(running: tuple[RunningServer, ManualClock]) -> tuple[RunningServer, ManualClock]:
    """The same, with nothing in it but the empty queue `work`."""
    empty(*running)
    return running


@pytest.fixture(params=["rest", "grpc"])
def bench(request: pytest.FixtureRequest, server: tuple[RunningServer, ManualClock]) -> Iterator[CloudTasksBench]:
    """A client of such a server, over each wire in turn."""
    running, clock = server
    with a_client(running, request.param) as client:
        yield CloudTasksBench(client, running, clock, request.param)
