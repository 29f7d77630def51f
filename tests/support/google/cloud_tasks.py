"""Google's own Cloud Tasks clients, set to a server here, and the names they use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import google_auth_httplib2
import grpc
import httplib2
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import tasks_v2beta2
from google.cloud.tasks_v2beta2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import Resource, build

from queue_core.clock import Clock, ManualClock
from queue_core.server.base.options import GrpcOptions, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.store import Store
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from tests.support.servers import QUEUE, RunningServer

Wire = Literal["rest", "grpc"]
PLACE = "projects/shop/locations/here"
PARENT = f"{PLACE}/queues/{QUEUE}"
MINUTE = timedelta(seconds=60)
FAILED_PRECONDITION = {"rest": exceptions.BadRequest, "grpc": exceptions.FailedPrecondition}
"""The client's exception for a failed precondition; over REST only its status, 400, identifies it."""
BASIC, FULL = tasks_v2beta2.Task.View.BASIC, tasks_v2beta2.Task.View.FULL


@contextmanager
def a_cloud_tasks_server(
    store: Store, *, clock: Clock | None = None, options: ServeOptions | None = None
) -> Iterator[RunningServer]:
    """Run a REST and gRPC server over an open store, with the queue `work`."""
    QueueService(store).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    wanted = options or ServeOptions()
    thread = ServerThread(store, replace(wanted, port=0, grpc=wanted.grpc or GrpcOptions()), clock=clock)
    url = thread.start()
    try:
        yield RunningServer(thread, store, url)
    finally:
        thread.stop()


@contextmanager
def a_client(server: RunningServer, wire: Wire, *, secret: str = "") -> Iterator[tasks_v2beta2.CloudTasksClient]:
    """Return the real client, over REST or gRPC, without TLS; with a `secret` over REST only."""
    if wire == "rest":
        credentials = Credentials(secret) if secret else AnonymousCredentials()
        with tasks_v2beta2.CloudTasksClient(
            credentials=credentials, transport="rest", client_options={"api_endpoint": server.url}
        ) as client:
            yield client
        return
    assert not secret
    address = server.thread.grpc_address
    assert address is not None
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        yield tasks_v2beta2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))


@contextmanager
def a_discovered_client(server: RunningServer) -> Iterator[Resource]:
    """Return the `queues()` of google-api-python-client, made from the server's own document."""
    http = google_auth_httplib2.AuthorizedHttp(AnonymousCredentials(), http=httplib2.Http(timeout=10))
    with build(
        "cloudtasks", "v2beta2", static_discovery=True, http=http, client_options={"api_endpoint": server.url}
    ) as service:
        yield service.projects().locations().queues()


def empty(server: RunningServer, clock: ManualClock) -> None:
    """Empty the store but for the queue `work`, and begin a new second."""

    def step(turn: UnitOfWork) -> None:
        for spec in turn.transaction.queues():
            turn.transaction.delete_queue(spec.name)
        turn.put_queue(QueueSpec(QUEUE))

    clock.advance(60 - clock.now() % 1_000_000 / 1e6)
    QueueService(server.store, clock=clock).run(step)


@dataclass(frozen=True, slots=True)
class CloudTasksBench:
    """A client, its server, and the clock of both."""

    client: tasks_v2beta2.CloudTasksClient
    server: RunningServer
    clock: ManualClock
    wire: Wire

    def create(self, payload: bytes = b"", tag: str = "", **fields: object) -> tasks_v2beta2.Task:
        return self.client.create_task(
            parent=PARENT, task={"pull_message": {"payload": payload, "tag": tag}, **fields}, timeout=10
        )

    def lease(
        self, count: int = 10, *, seconds: float = 60, view: int = BASIC, tags: str = ""
    ) -> list[tasks_v2beta2.Task]:
        answer = self.client.lease_tasks(
            request={
                "parent": PARENT,
                "max_tasks": count,
                "lease_duration": timedelta(seconds=seconds),
                "response_view": view,
                "filter": tags,
            }
        )
        return list(answer.tasks)

    def set_queue(self, spec: QueueSpec) -> None:
        QueueService(self.server.store, clock=self.clock).run(lambda turn: turn.put_queue(spec))
