"""A body that was refused is not kept in memory until the next collection of garbage."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import grpc
import pytest

from queue_core.server.base.options import AccessToken, GrpcOptions, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server

SIZE = 3 << 20
TIMES = 6
TOKEN = AccessToken(Role.ADMIN, "an-admin-" * 3)
KNOWN = [("authorization", f"Bearer {TOKEN.secret}")]
LONG_VALUE = b'"' + b"x" * SIZE + b'"'
UPDATE = "/google.cloud.tasks.v2beta2.CloudTasks/UpdateQueue"


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=(TOKEN,), grpc=GrpcOptions())) as running:
        yield running


def is_let_go(call: Callable[[], object]) -> bool:
    """Return whether what some calls sent is soon held no more, without a collection."""
    call()
    gc.collect()
    gc.disable()
    tracemalloc.start(1)
    try:
        for _ in range(TIMES):
            call()
        return eventually(lambda: tracemalloc.get_traced_memory()[0] < SIZE)
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    "body", [LONG_VALUE, b'{"tasks":[' + LONG_VALUE + b"]}", b"[" * SIZE], ids=["a text", "a task", "lists"]
)
def test_a_refused_add_is_let_go(guarded: RunningServer, body: bytes) -> None:
    headers = [*KNOWN, ("content-type", "application/json")]

    def add() -> None:
        assert guarded.ask("POST", f"/v1/queues/{QUEUE}/add", body, headers=headers).status >= 400

    assert is_let_go(add)


def test_a_refused_message_over_grpc_is_let_go(guarded: RunningServer) -> None:
    assert guarded.thread.grpc_address is not None
    with grpc.insecure_channel(guarded.thread.grpc_address) as channel:

        def call() -> None:
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(UPDATE)(b"\x12\x00" * (SIZE // 2), metadata=KNOWN, timeout=20)

        assert is_let_go(call)
