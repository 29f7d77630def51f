"""Google's own Cloud Tasks clients, pointed at a server here, and the names they use."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import tasks_v2beta2
from google.cloud.tasks_v2beta2.services.cloud_tasks.transports import CloudTasksGrpcTransport, CloudTasksRestTransport

from tests.support.servers import QUEUE, RunningServer

PLACE = "projects/shop/locations/here"
PARENT = f"{PLACE}/queues/{QUEUE}"
MINUTE = timedelta(seconds=60)
FULL = tasks_v2beta2.Task.View.FULL


@contextmanager
def rest_client(server: RunningServer) -> Iterator[tasks_v2beta2.CloudTasksClient]:
    """The real client over REST."""
    client = tasks_v2beta2.CloudTasksClient(
        credentials=AnonymousCredentials(), transport="rest", client_options={"api_endpoint": server.url}
    )
    assert isinstance(client.transport, CloudTasksRestTransport)
    with client:
        yield client


@contextmanager
def grpc_client(server: RunningServer) -> Iterator[tasks_v2beta2.CloudTasksClient]:
    """The real client over gRPC, in plain text."""
    address = server.thread.grpc_address
    assert address is not None
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        yield tasks_v2beta2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
