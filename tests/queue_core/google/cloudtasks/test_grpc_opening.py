"""What a connection for gRPC may send before it has taken up the limits of the server, and what it may send then."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest

pytest.importorskip("grpc")

from queue_core.google.cloudtasks.grpc_opening import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HELD_BYTES, Opening, OpeningError
from queue_core.google.cloudtasks.grpc_relay import GrpcRelay
from queue_core.google.cloudtasks.grpc_server import MAX_METADATA_BYTES
from queue_core.server.base.options import AccessToken, GrpcOptions, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs.roles import Role
from tests.fuzz.stalls.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    field,
    frame,
    head,
)

PLAIN = frame(SETTINGS, 0, 0)
ACKED = frame(SETTINGS, ACK, 0)
CALL = frame(HEADERS, END_HEADERS, 1, b"call")
GRANT = frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")
OF_CALL = frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1")
LATE_SECONDS = 20.0
MIN_FIELD_BYTES = 33
"""A field of one letter, as gRPC counts it."""
RESOURCE_EXHAUSTED = b"grpc-status\x018"
MANY = 100_000


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_calls_go_on_once_the_settings_are_acknowledged_and_everything_else_at_once() -> None:
    opening = Opening()
    assert opening.take(PREFACE + PLAIN + CALL + GRANT + OF_CALL) == PREFACE + PLAIN + GRANT
    assert not opening.is_over
    assert opening.take(frame(PING, 0, 0, b"12345678")) == frame(PING, 0, 0, b"12345678")
    assert opening.take(ACKED + b"any") == ACKED + CALL + OF_CALL + b"any"
    assert opening.is_over
    assert opening.take(b"more") == b"more"


def test_what_arrives_byte_by_byte_is_the_same() -> None:
    opening = Opening()
    whole = PREFACE + PLAIN + CALL + GRANT + ACKED + CALL
    found = b"".join(opening.take(whole[at : at + 1]) for at in range(len(whole)))
    assert found == PREFACE + PLAIN + GRANT + ACKED + CALL + CALL


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(PREFACE + PLAIN + (MAX_FRAME_BYTES + 1).to_bytes(3, "big") + b"\0" * 6, id="a long frame"),
        pytest.param(
            PREFACE + PLAIN + frame(DATA, 0, 1, b"x" * MAX_FRAME_BYTES) * (MAX_HELD_BYTES // MAX_FRAME_BYTES),
            id="more than is held",
        ),
        pytest.param(PREFACE + PLAIN + GRANT * MAX_FRAMES, id="very many frames"),
    ],
)
def test_what_no_client_sends_is_refused(data: bytes) -> None:
    with pytest.raises(OpeningError):
        Opening().take(data)


@pytest.mark.parametrize("kind", [HEADERS, CONTINUATION, DATA, RST_STREAM, 0x4A])
@pytest.mark.parametrize("stream", [0, 1, 3])
def test_nothing_that_may_begin_a_call_goes_on_before(kind: int, stream: int) -> None:
    assert Opening().take(PREFACE + PLAIN + frame(kind, 0, stream, b"x")) == PREFACE + PLAIN


def test_a_settings_frame_of_a_call_is_no_acknowledgement() -> None:
    opening = Opening()
    assert opening.take(PREFACE + frame(SETTINGS, ACK, 1) + CALL) == PREFACE
    assert not opening.is_over


# -- a server ---------------------------------------------------------------------------------------------------------


@contextmanager
def a_listener() -> Iterator[int]:
    options = ServeOptions(tokens=(AccessToken(Role.ADMIN, "admin-" * 4),), grpc=GrpcOptions())
    thread = ServerThread(MemoryStore(), replace(options, port=0))
    thread.start()
    try:
        assert thread.grpc_address is not None
        yield int(thread.grpc_address.rpartition(":")[2])
    finally:
        thread.stop()


def frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of what a server sends, up to its end."""
    with connection.makefile("rb") as stream:
        while len(found := stream.read(9)) == 9:
            payload = stream.read(int.from_bytes(found[:3], "big"))
            yield found[3], found[4], int.from_bytes(found[5:], "big"), payload


def large_head(count: int) -> bytes:
    """A call with so many fields of a letter, a byte each."""
    block = head("GetQueue") + field(b"x", b"y", kind=0x40) + b"\xbe" * (count - 1)
    parts = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
    return b"".join(
        frame(
            CONTINUATION if number else HEADERS,
            END_HEADERS if number == len(parts) - 1 else 0,
            1,
            part,
        )
        for number, part in enumerate(parts)
    )


def test_a_call_is_answered_once_the_settings_are_acknowledged_and_not_before() -> None:
    with a_listener() as port, socket.create_connection(("127.0.0.1", port), LATE_SECONDS) as connection:
        connection.sendall(PREFACE + PLAIN + frame(HEADERS, END_HEADERS, 1, head("GetQueue")))
        connection.sendall(frame(PING, 0, 0, b"12345678"))
        answers = frames(connection)
        before = []
        for kind, flags, stream, _ in answers:
            before.append(stream)
            if kind == PING and flags & ACK:
                break
        assert set(before) == {0}, "what came before the call is answered, and the call is not"
        connection.sendall(ACKED)
        kinds = {kind for kind, _, stream, _ in _until_stream(answers)}
        assert HEADERS in kinds


def _until_stream(answers: Iterator[tuple[int, int, int, bytes]]) -> Iterator[tuple[int, int, int, bytes]]:
    for one in answers:
        yield one
        if one[2] == 1 or one[0] == GOAWAY:
            return


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_head_of_very_many_fields_is_refused_by_grpc_before_it_is_looked_at(is_asked: bool) -> None:
    with a_listener() as port, socket.create_connection(("127.0.0.1", port), LATE_SECONDS) as connection:
        connection.sendall(PREFACE + PLAIN)
        answers = frames(connection)
        if is_asked:
            assert next(answers)[0] == SETTINGS
        connection.sendall(ACKED + large_head(2 * MAX_METADATA_BYTES // MIN_FIELD_BYTES))
        kind, _, _, payload = list(_until_stream(answers))[-1]
        assert kind == HEADERS
        assert RESOURCE_EXHAUSTED in payload, "a token that is missing would be told otherwise"


def test_a_head_of_half_a_million_fields_ends_its_connection_or_its_call() -> None:
    with a_listener() as port:
        for opening in (PREFACE + PLAIN, PREFACE + PLAIN + ACKED):
            with socket.create_connection(("127.0.0.1", port), LATE_SECONDS) as connection:
                with suppress(ConnectionError):
                    connection.sendall(opening + large_head(5 * MANY))
                with suppress(ConnectionError):
                    told = [payload for kind, _, stream, payload in _until_stream(frames(connection)) if stream]
                    assert all(RESOURCE_EXHAUSTED in one for one in told)


@pytest.mark.timeout(60)
def test_a_server_stops_while_clients_are_connected_that_never_answer_and_never_read() -> None:
    with ExitStack() as stack:
        with a_listener() as port:
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
            silent[0].sendall(PREFACE + PLAIN)
            silent[1].sendall(PREFACE + PLAIN + ACKED + frame(HEADERS, END_HEADERS, 1, head("GetQueue")))
            assert next(frames(silent[1]))[0] == SETTINGS
        for one in silent:
            one.settimeout(LATE_SECONDS)
            with suppress(ConnectionError):
                assert isinstance(list(frames(one)), list), "each has ended"


def test_more_connections_than_there_is_room_for_are_closed_and_room_is_given_back() -> None:
    ended = []

    class Inner(asyncio.Protocol):
        def connection_made(self, _transport: asyncio.BaseTransport) -> None:
            ended.append(asyncio.get_running_loop().create_future())
            self.ended = ended[-1]

        def connection_lost(self, _exc: Exception | None) -> None:
            self.ended.set_result(None)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        relay = GrpcRelay(GrpcOptions(), most=2)
        own = await loop.create_unix_server(Inner, str(relay.inner))
        relay.start(loop)
        kept = [await asyncio.open_connection("127.0.0.1", relay.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        kept[0][1].close()
        while True:  # until the place is free
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(PREFACE + PLAIN)
            try:
                await asyncio.wait_for(reader.read(), 0.2)
            except TimeoutError:
                break
            except ConnectionError:
                continue
            finally:
                writer.close()
        await relay.stop()
        relay.close()
        own.close()
        kept[1][1].close()
        await asyncio.gather(*ended)
        assert not relay.inner.parent.exists()

    asyncio.run(asyncio.wait_for(run(), LATE_SECONDS))
