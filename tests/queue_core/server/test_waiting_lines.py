"""Lines of waiting threads on an opened store: a wait is cut short from another thread, on every store."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import SystemClock
from queue_core.stores import open_store
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually
from tests.support.stores.stores import STORES, new_url, opened

LONG_SECONDS = 60.0
SOON_SECONDS = 10.0
STOP_SECONDS = 5.0
"""A worker that waits would sit out up to 20 s if its wait were not cut short."""


@pytest.fixture(params=STORES)
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalQueues]:
    with opened(request.param, tmp_path) as store:
        queues = LocalQueues(QueueService(store))
        queues.put_queue(QueueSpec("q"))
        yield queues


def test_closing_a_line_ends_its_wait_and_no_other(queues: LocalQueues) -> None:
    first, other = queues.waiting_call("q"), queues.waiting_call("q")
    with ThreadPoolExecutor(2) as pool:
        closed = pool.submit(first.lease, wait_seconds=LONG_SECONDS)
        kept = pool.submit(other.lease, wait_seconds=LONG_SECONDS)
        eventually(lambda: first._subscription is not None and other._subscription is not None)
        first.close()
        assert closed.result(SOON_SECONDS) == []
        queues.queue("q").add(b"x")
        assert [lease.payload for lease in kept.result(SOON_SECONDS)] == [b"x"]


def test_a_closed_line_does_not_wait_but_leases_what_is_there(queues: LocalQueues) -> None:
    line = queues.waiting_call("q")
    line.close()
    assert line.lease(wait_seconds=LONG_SECONDS) == []
    queues.queue("q").add(b"x")
    assert len(line.lease(wait_seconds=LONG_SECONDS)) == 1


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "redis"])
def test_a_worker_that_waits_at_a_store_ends_at_once_when_asked_to(name: str, tmp_path: Path) -> None:
    url = (
        f"sqlite:///{tmp_path / 'queue.db'}"
        if name == "sqlite"
        else new_url("redis" if name == "redis" else "postgresql")
    )
    store = open_store(url)
    queues = LocalQueues(QueueService(store))
    queues.put_queue(QueueSpec("thumbs"))
    told = {"TOWLINE_APP": "tests.support.fleet.recording_app:app", "TOWLINE_WORKER": "w-1", "TOWLINE_QUEUE": "thumbs"}
    command = [sys.executable, "-m", "orchestrator", "work", "--url", url]
    worker = subprocess.Popen(command, cwd=ROOT, env=program_environment() | told)
    try:
        eventually(lambda: "w-1" in queues.observe("thumbs", workers=["w-1"]).seen, seconds=LONG_SECONDS)
        clock = SystemClock()
        asked_at = clock.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LONG_SECONDS) == 0
        assert clock.monotonic() - asked_at < STOP_SECONDS
    finally:
        worker.kill()
        worker.wait()
        store.close()
