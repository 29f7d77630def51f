"""Our server in this process, under the same clock: the protocol's bytes go through the ASGI application."""

import asyncio
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self  # protobuf messages have no types

from queue_core.clock import ManualClock
from queue_core.server.app import ServerApp
from queue_core.server.base.options import ServeOptions
from queue_core.server.http.connections import Connections
from queue_core.server.leases.rates import lease_totals
from queue_core.server.state import ServerState
from queue_core.store import Store
from queue_core.task import QueueSpec
from tests.differential.answers import Answer, Method, Refused
from tests.support.google.appengine_sdk import remote_pb2


class OurServer:
    """A server over a store, with pull queues, some with a limit of leases; closes the store at the end."""

    def __init__(self, store: Store, queues: Mapping[str, int | None], clock: ManualClock) -> None:
        self._loop = asyncio.new_event_loop()
        self._store = store
        self._core = ServerState(store, ServeOptions(), clock=clock)
        self._clock = clock
        self._app = ServerApp(self._core, Connections(self._loop.time))
        for name, limit in queues.items():
            spec = QueueSpec(name, max_leases=limit, on_exhausted="delete")
            self._core.service.run(lambda turn, spec=spec: turn.put_queue(spec))
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._core.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run_until_complete(self._stop())
        self._core.close()
        self._loop.close()
        self._store.close()

    async def _stop(self) -> None:
        self._core.stop()

    def note_leases(self) -> None:
        """Record leases as the server does every few seconds, for its figures of the last minute and hour."""
        noted = self._core.service.read(lease_totals)
        self._core.lease_counts.record(noted.totals, now=noted.at)

    def call(self, method: Method, request: Any) -> Answer:
        """Make one call as a client does."""
        answer = self.ask(method.name, request.SerializeToString())
        if answer.HasField("application_error"):
            return Refused(answer.application_error.code)
        if answer.HasField("rpc_error"):
            return Refused(-1 - answer.rpc_error.code)
        return method.read(method.response.FromString(answer.response))

    def ask(self, method: str, request: bytes) -> Any:
        """Return the answer to one call, errors included."""
        envelope = remote_pb2.Request(service_name="taskqueue", method=method, request=request, request_id="ticket")
        return remote_pb2.Response.FromString(self._loop.run_until_complete(self._post(envelope.SerializeToString())))

    async def _post(self, body: bytes) -> bytes:
        sent: list[bytes] = []
        gone: asyncio.Future[MutableMapping[str, Any]] = self._loop.create_future()
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            return requests.pop() if requests else await gone

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                assert message["status"] == 200, message
            else:
                sent.append(message["body"])

        headers = [(b"host", b"localhost"), (b"content-type", b"application/octet-stream")]
        scope = {"type": "http", "method": "POST", "path": "/rpc_http", "headers": headers, "client": ("127.0.0.1", 1)}
        await self._app(scope, receive, send)
        return b"".join(sent)
