"""A worker is a process: real signals, real deaths, a real store under it."""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runtimes import procfs
from queue_core.task import QueueSpec
from queue_core.worker import events
from queue_core.worker.lifecycle import EXIT_HUNG
from tests.support.eventually import eventually
from tests.support.fleet.worker_story import WorkerStory, worker_story


@pytest.fixture
def story(tmp_path: Path) -> Iterator[WorkerStory]:
    with worker_story(tmp_path) as told:
        yield told


def test_sigterm_lets_the_running_task_finish_and_leaves_the_rest(story: WorkerStory) -> None:
    story.add("hold")
    story.add("note")
    with story.worker() as worker:
        eventually(story.starts)
        worker.send_signal(signal.SIGTERM)
        eventually(lambda: story.logged(events.WORKER_DRAINING))
        story.let_go()
        assert worker.wait(timeout=60) == 0
    stats = story.queue.stats()
    assert (stats.deleted_total, stats.ready, stats.in_flight) == (1, 1, 0)
    assert len(story.starts()) == 1


def test_what_outlasts_the_grace_is_given_back_uncounted_and_the_process_ends(story: WorkerStory) -> None:
    story.add("hold")
    with story.worker(grace_seconds=0.2) as worker:
        eventually(story.starts)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0
    (lease,) = story.queue.lease()
    assert lease.lease_number == 1


def test_a_second_ctrl_c_gives_back_at_once_but_another_signal_does_not(story: WorkerStory) -> None:
    story.add("hold")
    with story.worker(grace_seconds=3600) as worker:
        eventually(story.starts)
        worker.send_signal(signal.SIGINT)
        eventually(lambda: story.logged(events.WORKER_DRAINING))
        worker.send_signal(signal.SIGTERM)
        assert story.queue.stats().in_flight == 1
        worker.send_signal(signal.SIGINT)
        assert worker.wait(timeout=60) == 0
    assert story.queue.stats().ready == 1


def test_an_idle_worker_ends_at_once_on_sigterm(story: WorkerStory) -> None:
    with story.worker() as worker:
        eventually(lambda: story.logged(events.WORKER_STARTED))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0
    assert story.logged(events.WORKER_DRAINED)[0]["reason"] == "SIGTERM"


def test_the_tasks_of_a_killed_worker_run_again_as_soon_as_they_are_released(story: WorkerStory) -> None:
    name = story.add("hold")
    with story.worker() as worker:
        eventually(story.starts)
        worker.kill()
        worker.wait(timeout=60)
    assert [lease.name for lease in story.queues.release_worker("w-1")] == [name]
    story.let_go()
    with story.worker(worker="w-2"):
        eventually(lambda: story.queue.stats().deleted_total == 1)
    assert [line.split()[3] for line in story.starts()] == ["1", "2"]


def test_a_worker_without_its_supervisor_drains_and_ends(story: WorkerStory, tmp_path: Path) -> None:
    lock = tmp_path / "supervisor.lock"
    with lock.open("w") as supervisor:
        fcntl.flock(supervisor, fcntl.LOCK_EX)
        with story.worker(supervisor_lock=lock, orphan_grace_seconds=0.5) as worker:
            story.add("note")
            eventually(lambda: story.queue.stats().deleted_total == 1)
            assert worker.poll() is None
            fcntl.flock(supervisor, fcntl.LOCK_UN)
            assert worker.wait(timeout=60) == 0
    assert len(story.logged(events.WORKER_ORPHANED)) == 1


def test_a_recycled_worker_ends_between_tasks(story: WorkerStory) -> None:
    for _ in range(3):
        story.add("note")
    with story.worker(recycle='{"tasks": 2}') as worker:
        assert worker.wait(timeout=60) == 0
    assert len(story.logged(events.WORKER_RECYCLED)) == 1
    assert (story.queue.stats().deleted_total, story.queue.stats().ready) == (2, 1)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Path]:
    """The lock of a supervisor that lives."""
    lock = tmp_path / "supervisor.lock"
    with lock.open("w") as supervisor:
        fcntl.flock(supervisor, fcntl.LOCK_EX)
        yield lock


def test_under_a_supervisor_a_recycled_worker_goes_on_in_a_fresh_process(story: WorkerStory, supervised: Path) -> None:
    for _ in range(5):
        story.add("note")
    with story.worker(recycle='{"tasks": 2}', supervisor_lock=supervised) as worker:
        eventually(lambda: story.queue.stats().deleted_total == 5)
        pids = [line.split()[1] for line in story.starts()]
        assert sorted(map(pids.count, set(pids))) == [1, 2, 2]
        assert str(worker.pid) not in pids
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0
    assert story.logged(events.WORKER_DRAINED)[-1]["reason"] == "SIGTERM"


def test_the_next_process_gets_ready_during_the_last_task(story: WorkerStory, supervised: Path) -> None:
    story.add("hold")
    with story.worker(recycle='{"tasks": 1}', supervisor_lock=supervised) as worker:
        eventually(story.starts)
        eventually(lambda: len(procfs.children_of(worker.pid)) == 2)
        story.add("note")
        assert len(story.starts()) == 1
        story.let_go()
        eventually(lambda: story.queue.stats().deleted_total == 2)


def test_a_recycled_worker_ends_as_the_process_that_runs_its_handlers(story: WorkerStory, supervised: Path) -> None:
    story.add("hold")
    with story.worker(recycle='{"tasks": 2}', supervisor_lock=supervised) as worker:
        (line,) = eventually(story.starts)
        os.kill(int(line.split()[1]), signal.SIGKILL)
        assert worker.wait(timeout=60) == -signal.SIGKILL


def test_a_recycled_worker_does_not_outlive_its_supervisor(story: WorkerStory, tmp_path: Path) -> None:
    story.add("note")
    lock = tmp_path / "supervisor.lock"  # held by nobody
    with story.worker(recycle='{"tasks": 1}', supervisor_lock=lock, orphan_grace_seconds=0.5) as worker:
        assert worker.wait(timeout=60) == 0


def test_a_handler_that_never_returns_does_not_outlive_its_lease_and_grace(story: WorkerStory) -> None:
    story.queues.put_queue(QueueSpec("thumbs", lease_seconds=0.5, max_lease_seconds=1.0))
    story.add("hold")
    with story.worker(grace_seconds=0.3) as worker:
        assert worker.wait(timeout=60) == EXIT_HUNG
    (stuck,) = story.logged(events.HANDLER_STUCK)[:1]
    assert "in work" in stuck["where"]
    assert story.queue.lease()[0].lease_number == 2


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        pytest.param({"app": "tests.support.nowhere:app"}, "no such module", id="no such module"),
        pytest.param(
            {"app": "tests.support.fleet.recording_app:nothing"},
            "name one of: tests.support.fleet.recording_app:app",
            id="no app",
        ),
        pytest.param({"queue": "encode"}, "no handler for queue 'encode'", id="a queue nobody handles"),
        pytest.param({"url": "ftp://x"}, "not the URL of a store", id="no such store"),
        pytest.param({"concurrency": "many"}, "TOWLINE_CONCURRENCY must be", id="settings that can't be read"),
    ],
)
def test_a_worker_that_cannot_work_says_why_and_exits_with_78(
    story: WorkerStory, environment: dict[str, object], told: str
) -> None:
    with story.worker(**environment) as worker:
        assert worker.wait(timeout=60) == 78
    (refusal,) = story.logged(events.WORKER_REFUSED)
    assert told in str(refusal["reason"])
