"""The SDK for Python set to a server in this process with a manual clock."""

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # the SDK has no types

import pytest

from queue_core.clock import ManualClock, SystemClock, after
from tests.differential.our_server import OurServer
from tests.support.google.appengine_sdk import apiproxy_errors, apiproxy_stub_map, taskqueue
from tests.support.stores.stores import opened

QUEUE, LIMITED = "pull-queue", "limited"
WEEK_SECONDS = 604_800
AVAILABLE_SECONDS = 60.0
"""Time for tasks to become available: their eta comes from the client's clock, not the test's."""
Task = taskqueue.Task


class InProcess:
    """The SDK's transport to a server in this process."""

    THREADSAFE = False

    def __init__(self, server: OurServer) -> None:
        self._server = server

    def CreateRPC(self) -> Any:  # noqa: N802 - Google's name
        from google.appengine.api import apiproxy_rpc

        return apiproxy_rpc.RPC(stub=self)

    def MakeSyncCall(self, service: str, call: str, request: Any, response: Any) -> None:  # noqa: N802 - Google's name
        answer = self._server.ask(call, request.SerializeToString())
        if answer.HasField("application_error"):
            error = answer.application_error
            raise apiproxy_errors.ApplicationError(error.code, error.detail)
        assert not answer.HasField("rpc_error"), answer
        response.ParseFromString(answer.response)


@dataclass(frozen=True, slots=True)
class Kit:
    """The client's queue and the server's clock."""

    queue: Any
    clock: ManualClock

    def add(self, *tasks: Any) -> list[Any]:
        """Add tasks and wait until they are available."""
        added: list[Any] = self.queue.add(list(tasks))
        self.clock.advance(AVAILABLE_SECONDS)
        return added

    def pull(self, payload: bytes | str = b"mypayload", **more: Any) -> Any:
        """Return a pull task to add."""
        return Task(payload=payload, method="PULL", **more)

    def eta(self, seconds: float) -> dt.datetime:
        """Return the time `seconds` after the server's present."""
        return dt.datetime.fromtimestamp(after(self.clock.now(), seconds) / 1e6, dt.UTC)

    def lease(self, count: int = 1000, seconds: float = 60) -> list[Any]:
        return list(self.queue.lease_tasks(seconds, count))

    def by_tag(self, tag: str | bytes | None, count: int = 1000, seconds: float = 60) -> list[Any]:
        return list(self.queue.lease_tasks_by_tag(seconds, count, tag))


@contextmanager
def a_kit(store_name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """Open a kit over a new store; the SDK of this process uses it until the test's end."""
    clock = ManualClock(SystemClock().now())
    with (
        opened(store_name, folder) as store,
        OurServer(store, {QUEUE: None, LIMITED: 3}, clock) as server,
    ):
        stubs = apiproxy_stub_map.APIProxyStubMap()
        stubs.RegisterStub("taskqueue", InProcess(server))
        monkeypatch.setattr(apiproxy_stub_map, "apiproxy", stubs)
        monkeypatch.setenv("HTTP_HOST", "localhost")
        yield Kit(taskqueue.Queue(QUEUE), clock)


def names(tasks: Sequence[Any]) -> list[str]:
    """Return the tasks' names in order."""
    return [task.name for task in tasks]
