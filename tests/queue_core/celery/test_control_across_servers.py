"""Celery's remote control, events and broadcasts over two servers of one PostgreSQL, one of which is killed.

One worker has both servers in a URL of Towline's, one in Celery's own list, one opens the store itself.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from queue_core.celery.transport.broker import close_brokers
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import StoreError
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port
from tests.support.stores.stores import new_store_url

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

PROGRAM = "tests.queue_core.celery.shop"
SECONDS = 60.0


@dataclass
class TwoServers:
    """Two servers and three workers, as processes."""

    folder: Path
    store: str
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def serve(self, name: str) -> str:
        """Run a server; return its URL."""
        url = f"http://127.0.0.1:{free_port()}"
        listen = url.removeprefix("http://")
        self._run(name, [sys.executable, "-m", "orchestrator", "serve", "--store", self.store, "--listen", listen])
        with closing(HttpQueues(url, retries=Retries(tries=1))) as queues:
            eventually(lambda: _answers(queues))
        return url

    def work(self, name: str, broker: str) -> None:
        """Start a worker."""
        command = [sys.executable, "-m", "celery", "-A", PROGRAM, "worker", "-n", f"{name}@host", "-P", "solo"]
        self._run(name, [*command, "-E", "-l", "INFO"], SHOP_BROKER=broker, SHOP_FOLDER=str(self.folder))

    def is_ready(self, name: str) -> bool:
        return b" ready." in (self.folder / f"{name}.log").read_bytes()

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def _run(self, name: str, command: list[str], **environment: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as output:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**program_environment(), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _answers(queues: HttpQueues) -> bool:
    try:
        queues.queues()
    except StoreError:
        return False
    return True


@dataclass
class Watching:
    """A thread that receives events; `seen`: type and worker of each."""

    app: Celery
    seen: set[tuple[str, str]] = field(default_factory=set)
    is_over: bool = False

    def run(self) -> None:
        with self.app.connection_for_read() as connection:
            receiver = self.app.events.Receiver(connection, handlers={"*": self._note})
            with receiver.consumer_context() as (receiving, _channel, _consumers):
                while not self.is_over:
                    with suppress(TimeoutError):
                        receiving.drain_events(timeout=0.2)

    def _note(self, event: dict[str, Any]) -> None:
        self.seen.add((event["type"], event["hostname"]))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoServers]:
    made = TwoServers(tmp_path_factory.mktemp("fleet"), new_store_url("postgresql"))
    try:
        yield made
    finally:
        made.close()
        close_brokers()


WORKERS = {"comma@host", "list@host", "alone@host"}


def test_control_events_and_broadcasts_go_on_when_a_server_is_killed(fleet: TwoServers) -> None:
    first, second = fleet.serve("first"), fleet.serve("second")
    fleet.work("comma", f"towline+{first},{second}")
    fleet.work("list", f"towline+{first};towline+{second}")
    fleet.work("alone", f"towline+{fleet.store}")
    eventually(lambda: all(fleet.is_ready(name) for name in ("comma", "list", "alone")))
    with ExitStack() as stack:
        app = stack.enter_context(Celery("client", broker=f"towline+{second}"))
        other = stack.enter_context(Celery("other", broker=f"towline+{fleet.store}", set_as_current=False))
        watching = Watching(app)
        thread = threading.Thread(target=watching.run, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, watching, "is_over", True)
        for client in (app, other):
            eventually(lambda client=client: answering(client) == WORKERS)
        eventually(lambda: {worker for kind, worker in watching.seen if kind == "worker-heartbeat"} == WORKERS)

        fleet.kill("first")
        for client in (app, other):
            eventually(lambda client=client: answering(client) == WORKERS)
        app.control.revoke("unwanted")
        eventually(lambda: revoking(app) == WORKERS)
        watching.seen.clear()
        eventually(lambda: {worker for kind, worker in watching.seen if kind == "worker-heartbeat"} == WORKERS)


def answering(app: Celery) -> set[str]:
    """Return the workers that answer a ping within a second."""
    return set(app.control.inspect(timeout=1).ping() or {})


def revoking(app: Celery) -> set[str]:
    """Return the workers that know that a task is revoked."""
    found = app.control.inspect(timeout=1).revoked() or {}
    return {worker for worker, tasks in found.items() if "unwanted" in tasks}
