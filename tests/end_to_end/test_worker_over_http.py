"""A worker of a server: waits that end when they should, and a server that dies under it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.client.connect import open_queues
from queue_core.errors import StoreUnavailableError
from queue_core.task import QueueSpec
from queue_core.worker import events
from tests.support.eventually import eventually
from tests.support.fleet.worker_story import ROOT, WorkerStory


class Server:
    """A server of the same store on the same socket, however often it is started."""

    def __init__(self, directory: Path) -> None:
        self.url = f"unix://{directory}/s"
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = directory

    def start(self) -> None:
        """Begin to serve."""
        store, socket = f"sqlite:///{self._directory}/queue.db", f"unix:{self._directory}/s"
        with (self._directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "serve", "--store", store, "--listen", socket],
                cwd=self._directory,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def served(directory: Path) -> Iterator[Server]:
    """A running server."""
    server = Server(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def story(server: Server, tmp_path: Path) -> Iterator[WorkerStory]:
    queues = open_queues(server.url)

    def is_served() -> bool:
        try:
            return queues.put_queue(QueueSpec("thumbs", lease_seconds=30.0, max_lease_seconds=3600.0))
        except StoreUnavailableError:
            return False

    eventually(is_served)
    yield WorkerStory(tmp_path, server.url, queues)
    queues.close()


def is_waiting(story: WorkerStory) -> bool:
    """Whether the worker has asked for a lease."""
    return "w-1" in story.queues.observe("thumbs", workers=["w-1"]).seen


def test_a_worker_that_waits_at_a_server_ends_at_once_on_sigterm(story: WorkerStory) -> None:
    with story.worker() as worker:
        eventually(lambda: is_waiting(story))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=5) == 0  # its wait would have gone on for 20 s
    assert not story.logged(events.QUEUE_UNREACHED)


def test_a_worker_that_waits_at_a_server_ends_at_once_when_it_is_retired(story: WorkerStory) -> None:
    with story.worker() as worker:
        eventually(lambda: is_waiting(story))
        assert story.queues.retire_worker("w-1")
        assert worker.wait(timeout=5) == 0
    assert len(story.logged(events.WORKER_RETIRED)) == 1


def test_a_running_task_survives_the_death_of_the_server(story: WorkerStory, server: Server) -> None:
    story.add("hold")
    with story.worker() as worker:
        eventually(story.starts)
        server.kill()
        story.let_go()
        eventually(lambda: story.logged(events.QUEUE_UNREACHED))
        server.start()
        eventually(lambda: story.logged(events.QUEUE_REACHED))
        eventually(lambda: story.queue.stats().deleted_total == 1)
        assert worker.poll() is None
    assert len(story.starts()) == 1
