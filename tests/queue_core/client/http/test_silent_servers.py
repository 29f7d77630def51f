"""A server that says nothing is asked whether it is there: one that is stopped is left, a busy one is waited for."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from queue_core.client.asynchronous.connect import open_queue_async
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.client.http_calls import HttpQueue
from queue_core.errors import OutcomeUnknownError
from queue_core.task import NewTask
from tests.support.servers import IMPATIENT, QUEUE, RunningServer, a_server

HALF_A_MINUTE = 30.0
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class Stranger:
    """A server that takes each call and does not answer it: not even a probe (stopped), or first some probes (busy)."""

    port: int
    probes_before_answer: int | None
    calls: list[bytes] = field(default_factory=list)
    probes: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 20):
                with self.changed:
                    is_probe = data.startswith(b"GET /livez")
                    if is_probe:
                        self.probes += 1
                        self.changed.notify_all()
                    else:
                        self.calls.append(data)
                    if self.probes_before_answer is None:
                        continue
                    if not is_probe:
                        self.changed.wait_for(lambda: self.probes >= (self.probes_before_answer or 0))
                connection.sendall(ANSWER)


@contextmanager
def a_stranger(*, probes_before_answer: int | None) -> Iterator[Stranger]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = Stranger(listener.getsockname()[1], probes_before_answer)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=stranger.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield stranger
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server() as server:
        yield server


@pytest.fixture
def stopped() -> Iterator[Stranger]:
    with a_stranger(probes_before_answer=None) as stranger:
        yield stranger


CALLS: dict[str, Callable[[HttpQueue], Any]] = {
    "stats": lambda queue: queue.stats().ready,
    "add": lambda queue: len(queue.add(b"x")),
    "a long add": lambda queue: len(queue.add([NewTask(bytes(900_000))] * 6)),
    "lease": lambda queue: len(queue.lease()),
    "a lease that may wait": lambda queue: len(queue.lease(wait_seconds=60.0)),
    "purge": lambda queue: queue.purge(),
    "pause": lambda queue: queue.pause(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_to_a_stopped_server_is_made_to_the_next(server: RunningServer, stopped: Stranger, name: str) -> None:
    straight = HttpQueue(server.url, QUEUE)
    straight.add(NewTask(b"waits"))
    queue = HttpQueue(f"{stopped.url},{server.url}", QUEUE, retries=IMPATIENT, timeout_seconds=HALF_A_MINUTE)
    CALLS[name](queue)
    probes = stopped.probes
    queue.stats()
    assert (probes, stopped.probes) == (1, 1), "it stays with the server that answers"
    queue.close()
    straight.close()


def test_calls_of_several_threads_share_a_probe(server: RunningServer, stopped: Stranger) -> None:
    queue = HttpQueue(f"{stopped.url},{server.url}", QUEUE, retries=IMPATIENT, timeout_seconds=HALF_A_MINUTE)
    threads = [threading.Thread(target=queue.add, args=(b"x",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.stats().added_total == 5
    assert stopped.probes < 5
    queue.close()


def test_the_async_client_turns_to_the_next_server_too(server: RunningServer, stopped: Stranger) -> None:
    async def main() -> list[bytes]:
        queue = await open_queue_async(f"{stopped.url},{server.url}", QUEUE)
        leases = await queue.lease(wait_seconds=60.0)
        await queue.close()
        return [lease.payload for lease in leases]

    straight = HttpQueue(server.url, QUEUE)
    straight.add(b"x")
    straight.close()
    assert asyncio.run(main()) == [b"x"]
    assert stopped.probes


def test_a_call_that_may_be_sent_once_ends_in_doubt_at_a_stopped_server(
    server: RunningServer, stopped: Stranger
) -> None:
    caller = HttpCaller(f"{stopped.url},{server.url}", token=None, retries=IMPATIENT, timeout_seconds=HALF_A_MINUTE)
    with pytest.raises(OutcomeUnknownError):
        caller.post("/v1/backup", {}, repeat="once")
    assert stopped.probes == 1
    caller.close()


def test_a_server_that_is_busy_with_a_call_is_waited_for(server: RunningServer) -> None:
    with a_stranger(probes_before_answer=2) as busy:
        caller = HttpCaller(f"{busy.url},{server.url}", token=None, retries=IMPATIENT, timeout_seconds=HALF_A_MINUTE)
        assert caller.post("/v1/queues/work/stats", {}, repeat="keyed") == {}
        assert (len(busy.calls), busy.probes) == (1, 2)
        caller.close()


def test_the_only_server_is_not_probed() -> None:
    with a_stranger(probes_before_answer=0) as stranger:
        caller = HttpCaller(stranger.url, token=None, retries=Retries(), timeout_seconds=HALF_A_MINUTE)
        assert caller.post("/v1/queues/work/stats", {}, repeat="keyed") == {}
        assert stranger.probes == 0
        caller.close()
