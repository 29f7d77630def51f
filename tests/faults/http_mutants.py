"""A faulty client and a faulty server that `over_http` must detect; never options of the product."""

import re
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.client.queue import Ended, Error, Queues
from queue_core.errors import OutcomeUnknownError, QueueError
from queue_core.stats import FinishedLease
from queue_core.stores import Durability
from queue_core.task import Lease, NewTask
from queue_core.verbs import Added
from tests.faults.store_children import serve_until_killed
from tests.support.stores.engines import free_port

PIECE_BYTES = 256 << 10
BACKLOG = 256
TOKEN = re.compile(rb'"token":"([^"]+)"')
LEASING = re.compile(rb"POST /v1/queues/([^/]+)/(?:lease|exchange) ")


class HopefulQueue(HttpQueue):
    """Counts a deletion or release whose answer was lost as done."""

    def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """See `HttpQueue.delete`."""
        try:
            return super().delete(leases, then=then, connection=connection)
        except OutcomeUnknownError:
            return []

    def release(
        self,
        leases: Lease | str | Iterable[Lease | str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
        error: Error | None = None,
    ) -> list[FinishedLease]:
        """See `HttpQueue.release`."""
        try:
            return super().release(
                leases, delay_seconds=delay_seconds, charge=charge, dead_reason=dead_reason, error=error
            )
        except OutcomeUnknownError:
            return []


class HopefulQueues(HttpQueues):
    """Makes all queues hopeful."""

    def queue(self, name: str) -> HttpQueue:
        """See `HttpQueues.queue`."""
        return HopefulQueue(self._caller.url, name, caller=self._caller)


def open_hopefully(url: str, *, retries: Retries, timeout_seconds: float) -> Queues:
    """Open queues as `open_queues` does, with the fault, and send each call once, so that every lost answer is seen."""
    return HopefulQueues(url, retries=Retries(tries=1), timeout_seconds=timeout_seconds)


def serve_giving_back(home: Path, name: str, url: str, port: int, skew_seconds: float, durability: Durability) -> None:
    """Run a server that releases leases, uncounted, when the connection that got them is reset."""
    inner = free_port()
    listening = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    threading.Thread(target=_accept, args=(listening, inner), daemon=True).start()
    serve_until_killed(home, name, url, inner, skew_seconds, durability)


def _accept(listening: socket.socket, inner: int) -> None:
    while True:
        client, _ = listening.accept()
        try:
            server = socket.create_connection(("127.0.0.1", inner))
        except OSError:
            client.close()
            continue
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _ProxiedClient(client, server, inner)
        threading.Thread(target=link.carry_requests, daemon=True).start()
        threading.Thread(target=link.carry_answers, daemon=True).start()


class _ProxiedClient:
    """A client's connection and the last answer on it."""

    def __init__(self, client: socket.socket, server: socket.socket, inner: int) -> None:
        self._client = client
        self._server = server
        self._inner = inner
        self._queue = ""
        self._answer = b""

    def carry_requests(self) -> None:
        """Forward requests; after a reset release the last leases."""
        try:
            while piece := self._client.recv(PIECE_BYTES):
                if leasing := LEASING.match(piece):
                    self._queue = leasing[1].decode()
                elif piece.startswith((b"POST ", b"GET ")):
                    self._queue = ""
                self._answer = b""
                self._server.sendall(piece)
        except ConnectionResetError:
            tokens = [token.decode() for token in TOKEN.findall(self._answer)] if self._queue else []
            if tokens:
                queue = HttpQueue(f"http://127.0.0.1:{self._inner}", self._queue)
                with suppress(QueueError):
                    queue.release(tokens, charge="uncounted", delay_seconds=0.0)
                queue.close()
        except OSError:
            pass  # the server has closed
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)

    def carry_answers(self) -> None:
        """Forward answers."""
        with suppress(OSError):
            while piece := self._server.recv(PIECE_BYTES):
                self._answer += piece
                self._client.sendall(piece)
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
