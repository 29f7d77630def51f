"""Larger payloads over HTTP: refused by their size before they are read, until a queue allows them; then whole."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from queue_core import open_queue_async
from queue_core.errors import InvalidEtaError, TaskTooLargeError
from queue_core.limits import LARGEST_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES
from queue_core.server.base.bodies.body_limit import FRESH_SECONDS, BodyLimit, body_bytes_of
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, Reply, RunningServer, a_server, read_reply
from tests.support.stores.remote_memory import RemoteMemory

MIB = 1 << 20
DAY = 86_400.0
BIG = QueueSpec(QUEUE, max_payload_bytes=LARGEST_PAYLOAD_BYTES, max_eta_seconds=365 * DAY)
NEEDED = body_bytes_of(LARGEST_PAYLOAD_BYTES)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


def answer_to_head(server: RunningServer, body_bytes: int, *, path: str = f"/v1/queues/{QUEUE}/add") -> Reply:
    """The answer to the head of a request, none of whose body is ever sent."""
    with server.connect() as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {body_bytes}\r\n\r\n".encode())
        return read_reply(connection)


def waits_for_its_body(server: RunningServer, body_bytes: int) -> bool:
    """Whether the server goes on reading after the head."""
    with server.connect() as connection:
        head = f"POST /v1/queues/{QUEUE}/add HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {body_bytes}\r\n\r\n[".encode())
        eventually(lambda: any(one.cycle is not None for one in server.connections()))
        connection.settimeout(0.2)
        try:
            return read_reply(connection).status < 0
        except TimeoutError:
            return True


def put(server: RunningServer, spec: QueueSpec) -> None:
    """Change settings past the server, as another one over its store does."""
    QueueService(server.store).run(lambda turn: turn.put_queue(spec))


def test_a_body_that_no_queue_allows_is_refused_before_it_is_read(server: RunningServer) -> None:
    refused = answer_to_head(server, NEEDED)
    assert (refused.status, refused.json()["type"]) == (413, "urn:towline:problem:body-too-large")
    assert "raise max_payload" in str(refused.json()["detail"])
    with closing(server.queues()) as queues:
        queues.put_queue(BIG)
    assert waits_for_its_body(server, NEEDED)
    assert answer_to_head(server, NEEDED + 1).status == 413


def test_a_server_learns_of_a_queue_that_was_made_past_it(server: RunningServer) -> None:
    put(server, BIG)
    assert waits_for_its_body(server, NEEDED)


def test_a_server_whose_store_is_far_asks_to_try_again_while_it_reads_the_settings() -> None:
    with a_server(RemoteMemory()) as server:
        put(server, BIG)
        first = answer_to_head(server, NEEDED)
        assert (first.status, first.headers["retry-after"]) == (503, "1")
        assert first.json()["type"] == "urn:towline:problem:limits-not-known"
        eventually(lambda: server.thread.core.body_limit.bytes == NEEDED)
        assert waits_for_its_body(server, NEEDED)


def test_a_limit_follows_the_queues_and_is_read_once_in_a_while() -> None:
    now, reads, specs = [0.0], [0], [QueueSpec("plain")]

    def read() -> bool:
        reads[0] += 1
        limit.learn(specs)
        return True

    limit = BodyLimit(1000, monotonic=lambda: now[0], read=read)
    limit.learn(specs)
    assert (limit.bytes, limit.refusal(1000)) == (1000, None)
    assert [limit.refusal(1001) is None for _ in range(3)] == [False] * 3
    assert reads == [1]
    specs.append(QueueSpec("big", max_payload_bytes=2 * MIB))
    assert limit.refusal(1001) is not None
    now[0] += FRESH_SECONDS
    assert limit.refusal(body_bytes_of(2 * MIB)) is None
    specs.pop()
    now[0] += FRESH_SECONDS
    refused = limit.refusal(body_bytes_of(2 * MIB) + 1)
    assert refused is not None
    assert (refused.status, limit.bytes) == (413, 1000)
    assert limit.refusal(NEEDED + 1) is not None


def test_the_largest_payload_there_may_be_comes_back_byte_for_byte() -> None:
    payload = bytes(range(256)) * (LARGEST_PAYLOAD_BYTES // 256)

    async def leased(url: str) -> bytes:
        async with await open_queue_async(url, QUEUE) as queue:
            (lease,) = await queue.lease(10)
            await queue.release(lease, charge="uncounted")
            return lease.payload

    with a_server(spec=BIG) as server, closing(server.queue()) as queue:
        queue.add(payload)
        queue.add(b"small")
        (lease,) = queue.lease(10)  # alone, as an answer has room for 8 MiB
        assert lease.payload == payload
        queue.release(lease, charge="uncounted")
        assert asyncio.run(leased(server.url)) == payload


def test_a_refusal_names_the_queue_its_limit_and_the_setting(server: RunningServer) -> None:
    with closing(server.queue()) as queue:
        with pytest.raises(
            TaskTooLargeError, match=f"at most {MAX_PAYLOAD_BYTES} .* queue {QUEUE}: raise its max_payload"
        ):
            queue.add(bytes(2 * MIB))
        with pytest.raises(InvalidEtaError, match=f"raise max_eta of queue {QUEUE}"):
            queue.add(NewTask(delay_seconds=31 * DAY))
    put(server, QueueSpec(QUEUE, max_payload_bytes=2 * MIB))
    reply = server.ask("POST", f"/v1/queues/{QUEUE}/add", b'{"tasks":[{"text":"%b"}]}' % (b"x" * (2 * MIB + 1)))
    assert (reply.status, reply.json()["limit"]) == (413, 2 * MIB)


def test_google_s_apis_keep_their_limits_and_deliver_what_is_larger() -> None:
    with a_server(spec=BIG) as server, closing(server.queue()) as queue:
        tasks = f"/taskqueue/v1beta2/projects/app/taskqueues/{QUEUE}/tasks"
        long = b'{"payloadBase64": "%b"}' % (b"eHh4" * (MIB // 2))
        assert server.ask("POST", tasks, long).status == 400
        cloud = f"/v2beta2/projects/app/locations/here/queues/{QUEUE}/tasks"
        for task in (
            b'"pullMessage": {"payload": "%b"}' % (b"eHh4" * (MIB // 2)),
            b'"scheduleTime": "2099-01-01T00:00:00Z"',
        ):
            assert server.ask("POST", cloud, b'{"task": {%b}}' % task).status == 400
        queue.add(bytes(3 * MIB))
        reply = server.ask("POST", f"{tasks}/lease?leaseSecs=60&numTasks=10", b"")
        assert len(reply.body) > 4 * MIB
        shown = server.ask("GET", f"{cloud}?responseView=FULL")
        assert len(shown.body) > 4 * MIB
