"""A server, and App Engine's own client for Python set to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from queue_core.google.appengine import connect
from queue_core.server.base.options import ServeOptions
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.appengine_sdk import taskqueue
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores.failing_store import FailingStore

SECRET = "a-secret-of-the-worker"
Task = taskqueue.Task


@dataclass(frozen=True, slots=True)
class AppEngineWorld:
    """A server, and App Engine's client set to it."""

    server: RunningServer
    store: FailingStore
    queue: taskqueue.Queue

    def set_queue(self, spec: QueueSpec) -> None:
        QueueService(self.store).run(lambda turn: turn.put_queue(spec))

    def pause(self) -> None:
        QueueService(self.store).run(lambda turn: turn.set_paused(QUEUE, "paused"))

    def add(self, **settings: object) -> taskqueue.Task:
        return self.queue.add(Task(**({"payload": b"x", "method": "PULL"} | settings)))

    def leased(self) -> taskqueue.Task:
        """Add and lease a task."""
        self.add()
        (task,) = self.queue.lease_tasks(60, 1)
        return task


@contextmanager
def connected(options: ServeOptions | None = None, ticket: str | None = None) -> Iterator[AppEngineWorld]:
    """Run a server to which the client of this process is connected."""
    store = FailingStore()
    with a_server(store, options) as server:
        connect.connect_appengine(server.url, ticket=ticket)
        yield AppEngineWorld(server, store, taskqueue.Queue(QUEUE))


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the client's settings from the environment until the test's end."""
    for name in ("API_HOST", "API_PORT", "HTTP_X_APPENGINE_API_TICKET", "HTTP_HOST", "TOWLINE_WORKER"):
        monkeypatch.delenv(name, raising=False)
