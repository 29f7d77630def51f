"""Messages over gRPC while they arrive: rights before bytes, a bound on size, bytes and time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event, Thread

import grpc
import pytest
from google.cloud.tasks_v2beta2.types import cloudtasks

from queue_core.clock import ManualClock
from queue_core.google.cloudtasks.failures import CloudTasksError
from queue_core.google.cloudtasks.grpc_messages import (
    ARRIVAL_SECONDS,
    CROWDED_SECONDS,
    MAX_BESIDE_BYTES,
    Arrivals,
    check_size,
)
from queue_core.server.base.options import AccessToken, GrpcOptions, ServeOptions
from queue_core.server.callers.auth import ANONYMOUS_ADMIN, Principal
from queue_core.server.http.in_flight import budget_bytes
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.google.cloud_tasks import PARENT

SERVICE = "/google.cloud.tasks.v2beta2.CloudTasks"
PRODUCER = AccessToken(Role.PRODUCER, "producer-" * 3)
WORKER = AccessToken(Role.WORKER, "worker-" * 3)
TASK_PATH = (2, 4, 1)
MIB = 1 << 20


@contextmanager
def _a_server() -> Iterator[grpc.Channel]:
    options = ServeOptions(tokens=(PRODUCER, WORKER), grpc=GrpcOptions())
    thread = ServerThread(MemoryStore(), replace(options, port=0))
    thread.start()
    try:
        assert thread.grpc_address is not None
        with grpc.insecure_channel(thread.grpc_address) as channel:
            yield channel
    finally:
        thread.stop()


def _status(channel: grpc.Channel, method: str, message: bytes, token: AccessToken) -> grpc.StatusCode:
    call = channel.unary_unary(f"{SERVICE}/{method}")
    with pytest.raises(grpc.RpcError) as raised:
        call(message, metadata=[("authorization", f"Bearer {token.secret}")], timeout=20)
    code: grpc.StatusCode = raised.value.code()
    return code


def test_a_role_without_the_right_is_refused_before_its_message_is_looked_at() -> None:
    with _a_server() as channel:
        never = Event()

        def no_messages() -> Iterator[bytes]:
            never.wait(20)
            yield b""

        call = channel.stream_unary(f"{SERVICE}/LeaseTasks")
        with pytest.raises(grpc.RpcError) as raised:
            call(no_messages(), metadata=[("authorization", f"Bearer {PRODUCER.secret}")], timeout=15)
        never.set()
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert _status(channel, "LeaseTasks", b"\xff" * 1000, PRODUCER) is grpc.StatusCode.PERMISSION_DENIED


def test_only_a_payload_may_be_long() -> None:
    with _a_server() as channel:
        texts = b"\x12\x00" * MIB
        assert _status(channel, "TestIamPermissions", texts, WORKER) is grpc.StatusCode.INVALID_ARGUMENT
        assert _status(channel, "LeaseTasks", b"\x0a\x00" * MIB, WORKER) is grpc.StatusCode.INVALID_ARGUMENT


def _create(payload: bytes, *, tag: str = "", name: str = "") -> bytes:
    task = {"pull_message": {"payload": payload, "tag": tag}, "name": name}
    return bytes(cloudtasks.CreateTaskRequest.serialize(cloudtasks.CreateTaskRequest(parent=PARENT, task=task)))


@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"\x12\x00" * (10 * MIB)], ids=["none", "short", "long"])
def test_a_payload_of_any_length_passes(payload: bytes) -> None:
    check_size(_create(payload, tag="t"), TASK_PATH)


@pytest.mark.parametrize(
    "message",
    [
        _create(b"", tag="t" * MIB),
        _create(b"x" * MIB, name="n" * MIB),
        b"\x12\x00" * MIB,  # many tasks, which the parser makes one of
        b"\x12\x80\x80\x80\x04" + b"\x22\x00" * MIB,  # one whose end is missing
        b"\x0b" * MIB,  # groups without an end
        b"\x18\x01" * MIB,
        b"\x80" * MIB,
        b"\x11" * MIB,
        b"\x22\x80\x80\x40" + b"x" * MIB,
    ],
    ids=["tag", "name", "tasks", "cut", "groups", "numbers", "no number", "fixed", "unknown"],
)
def test_a_message_of_much_besides_a_payload_is_refused_unparsed(message: bytes) -> None:
    with pytest.raises(CloudTasksError, match=f"{MAX_BESIDE_BYTES} bytes besides its payload"):
        check_size(message, TASK_PATH)


@dataclass(eq=False)
class _Call:
    """A call, as gRPC has it."""

    ended: Event = field(default_factory=Event)

    def is_active(self) -> bool:
        return not self.ended.is_set()

    def cancel(self) -> bool:
        self.ended.set()
        return True

    def no_messages(self) -> Iterator[bytes]:
        """Wait for a message that never comes."""
        self.ended.wait(60)
        yield from ()


def _hold(arrivals: Arrivals, call: _Call, caller: Principal, refused: list[str]) -> Thread:
    def wait() -> None:
        try:
            with arrivals.arrived(call.no_messages(), call, caller):
                pass
        except CloudTasksError as error:
            refused.append(error.message)

    thread = Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_silent_call_ends_after_ten_seconds_and_after_one_where_all_threads_are_held() -> None:
    clock = ManualClock()
    arrivals = Arrivals(MIB, threads=2, now=clock.monotonic)
    caller, refused = Principal(Role.VIEWER), list[str]()
    first = _Call()
    threads = [_hold(arrivals, first, caller, refused)]
    eventually(lambda: arrivals.held == 1)
    clock.advance(ARRIVAL_SECONDS - 1)
    arrivals.sweep()
    assert first.is_active()
    second = _Call()
    threads.append(_hold(arrivals, second, caller, refused))
    eventually(lambda: arrivals.held == 2)
    arrivals.sweep()
    assert (first.is_active(), second.is_active()) == (False, True)
    eventually(lambda: arrivals.held == 1)
    clock.advance(CROWDED_SECONDS + 1)
    arrivals.sweep()
    assert second.is_active(), "a thread is free"
    clock.advance(ARRIVAL_SECONDS)
    arrivals.sweep()
    for thread in threads:
        thread.join(20)
    assert len(refused) == 2
    assert arrivals.held_bytes == 0


def test_messages_that_arrive_share_a_budget_of_which_a_token_has_half_and_admins_a_part() -> None:
    clock = ManualClock()
    arrivals = Arrivals(64 * MIB, threads=16, now=clock.monotonic)
    assert budget_bytes(64 * MIB) == 256 * MIB
    viewer, other, refused = Principal(Role.VIEWER, "a"), Principal(Role.VIEWER, "b"), list[str]()
    calls = [_Call() for _ in range(3)]
    threads = [_hold(arrivals, call, viewer, refused) for call in calls]
    eventually(lambda: arrivals.held == 3)
    assert arrivals.held_bytes == 128 * MIB, "the third waits for its turn"
    with arrivals.arrived(iter([b"ab"]), _Call(), other) as message:
        assert message == b"ab"
        assert arrivals.held_bytes == 128 * MIB + 2
        with arrivals.arrived(iter([b"c"]), _Call(), ANONYMOUS_ADMIN):
            assert arrivals.held_bytes == 128 * MIB + 3
    clock.advance(CROWDED_SECONDS + 1)
    arrivals.sweep()
    assert not any(call.is_active() for call in calls)
    for thread in threads:
        thread.join(20)
    assert arrivals.held_bytes == 0
