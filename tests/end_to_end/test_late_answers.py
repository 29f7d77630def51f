"""A worker that stood still reads the answer to its lease call when the lease has ended: the task is another's."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.client.connect import open_queues
from queue_core.errors import StoreUnavailableError
from queue_core.task import QueueSpec
from queue_core.worker import events
from tests.end_to_end.test_worker_over_http import is_waiting, served
from tests.support.eventually import eventually
from tests.support.fleet.worker_story import WorkerStory

LEASE_SECONDS = 1.0


@pytest.fixture(params=["served", "sqlite"])
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerStory]:
    spec = QueueSpec("thumbs", lease_seconds=LEASE_SECONDS, max_lease_seconds=3600.0)
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/queue.db"
        queues = open_queues(url)
        queues.put_queue(spec)
        yield WorkerStory(tmp_path, url, queues)
        queues.close()
        return
    with served(tmp_path) as server:
        queues = open_queues(server.url)

        def is_served() -> bool:
            try:
                return queues.put_queue(spec)
            except StoreUnavailableError:
                return False

        eventually(is_served)
        yield WorkerStory(tmp_path, server.url, queues)
        queues.close()


def test_a_worker_that_stood_still_in_its_lease_call_does_not_run_what_another_has_done(story: WorkerStory) -> None:
    with story.worker() as frozen:
        story.add("note")
        eventually(lambda: story.queue.stats().deleted_total == 1)
        is_served = story.url.startswith("unix:")
        if is_served:
            eventually(lambda: is_waiting(story))
        frozen.send_signal(signal.SIGSTOP)
        story.add("note")
        if is_served:  # the call that it left open is granted the task; its lease ends while it stands still
            eventually(lambda: story.queue.stats().leased_total == 2)
            eventually(lambda: story.queue.stats().ready == 1)
        with story.worker(worker="w-2") as other:
            eventually(lambda: story.queue.stats().deleted_total == 2)
            other.send_signal(signal.SIGTERM)
            assert other.wait(timeout=10) == 0
        frozen.send_signal(signal.SIGCONT)
        if is_served:
            eventually(lambda: story.logged(events.LEASE_LOST))
        story.add("note")
        eventually(lambda: story.queue.stats().deleted_total == 3)
    assert [line.split()[0] for line in story.starts()] == ["w-1", "w-2", "w-1"]


def test_a_worker_asked_to_end_while_it_stood_still_runs_nothing_any_more(story: WorkerStory) -> None:
    with story.worker() as frozen:
        story.add("note")
        eventually(lambda: story.queue.stats().deleted_total == 1)
        frozen.send_signal(signal.SIGSTOP)
        story.add("note")
        with story.worker(worker="w-2"):
            eventually(lambda: story.queue.stats().deleted_total == 2)
        frozen.send_signal(signal.SIGTERM)
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.wait(timeout=10) == 0
    assert [line.split()[0] for line in story.starts()] == ["w-1", "w-2"]
