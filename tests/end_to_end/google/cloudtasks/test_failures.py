"""What Google's own Cloud Tasks client raises when it may not, and when the store is away; and what an end leaves."""

from collections.abc import Iterator

import pytest
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.google.cloud_tasks import MINUTE, PARENT, Wire, a_client, a_cloud_tasks_server
from tests.support.servers import QUEUE, RunningServer
from tests.support.stores.remote_memory import RemoteMemory

TASK = {"pull_message": {"payload": b"x"}}
LEASE = {"parent": PARENT, "max_tasks": 1, "lease_duration": MINUTE}
WORKER = AccessToken(Role.WORKER, "worker-" * 4)


@pytest.fixture(params=["rest", "grpc"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return request.param


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    with a_cloud_tasks_server(MemoryStore(), options=ServeOptions(tokens=(WORKER,))) as server:
        yield server


def test_a_client_is_told_over_grpc_that_it_may_not(guarded: RunningServer) -> None:
    with a_client(guarded, "grpc") as client:
        with pytest.raises(exceptions.Unauthenticated):
            client.create_task(parent=PARENT, task=TASK)
        bearer = [("authorization", f"Bearer {WORKER.secret}")]
        made = client.create_task(parent=PARENT, task=TASK, metadata=bearer)
        assert [task.name for task in client.lease_tasks(request=LEASE, metadata=bearer).tasks] == [made.name]
        with pytest.raises(exceptions.PermissionDenied):
            client.purge_queue(name=PARENT, metadata=bearer)


def test_a_client_is_told_over_rest_that_it_may_not(guarded: RunningServer) -> None:
    """There it takes a 401 for a token that wants refreshing, which it can't do."""
    for secret in ("", "another-secret"):
        with a_client(guarded, "rest", secret=secret) as client, pytest.raises(GoogleAuthError):
            client.create_task(parent=PARENT, task=TASK)
    with a_client(guarded, "rest", secret=WORKER.secret) as client:
        made = client.create_task(parent=PARENT, task=TASK)
        assert [task.name for task in client.lease_tasks(request=LEASE).tasks] == [made.name]
        with pytest.raises(exceptions.Forbidden):
            client.purge_queue(name=PARENT)


def test_a_store_that_is_away_is_unavailable_and_serves_when_it_is_back(wire: Wire) -> None:
    store = RemoteMemory()
    with a_cloud_tasks_server(store) as server, a_client(server, wire) as client:
        store.is_down = True
        with pytest.raises(exceptions.ServiceUnavailable):
            client.create_task(parent=PARENT, task=TASK)
        store.is_down = False
        client.create_task(parent=PARENT, task=TASK)
        assert len(client.lease_tasks(request=LEASE).tasks) == 1


def test_a_lease_that_its_caller_did_not_wait_for_is_given_back() -> None:
    store = RemoteMemory()
    with a_cloud_tasks_server(store) as server, a_client(server, "grpc") as client:
        client.create_task(parent=PARENT, task=TASK)  # it is connected: the lease arrives before its caller gives up
        store.stall()
        with pytest.raises((exceptions.DeadlineExceeded, exceptions.RetryError)):
            client.lease_tasks(request=LEASE, timeout=0.3)
        # Answered once the server has heard, on the same wire, who is gone.
        with pytest.raises(exceptions.InvalidArgument):
            client.lease_tasks(request={"parent": "nobody's"})
        store.flow()
        service = QueueService(store)
        eventually(lambda: service.read(lambda turn: turn.stats(QUEUE, ANY)).released_total == 1)
        [again] = client.lease_tasks(request=LEASE).tasks
        assert again.status.attempt_dispatch_count == 1


def test_a_server_ends_in_time_with_clients_connected(wire: Wire) -> None:
    with a_cloud_tasks_server(MemoryStore()) as server, a_client(server, wire) as client:
        client.create_task(parent=PARENT, task=TASK)
        server.thread.stop()
        with pytest.raises((exceptions.ServiceUnavailable, OSError)):
            client.create_task(parent=PARENT, task=TASK, timeout=5)
