"""What handlers do to their process: its main thread, signals, forks, threads, users; and how the worker ends."""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from queue_core.task import QueueSpec
from queue_core.worker import events
from tests.support.eventually import eventually
from tests.support.fleet.worker_story import WorkerStory, worker_story

APP = "tests.support.fleet.misbehaving_app:app"
LIMITED_APP = "tests.support.fleet.misbehaving_app:limited_app"
ASYNC_APP = "tests.support.fleet.misbehaving_app:async_app"

any_concurrency = pytest.mark.parametrize("concurrency", [1, 2])


@pytest.fixture
def story(tmp_path: Path) -> Iterator[WorkerStory]:
    with worker_story(tmp_path) as told:
        yield told


def noted(story: WorkerStory, word: str) -> list[str]:
    """What follows this word in the notes of handlers."""
    return [line.removeprefix(word).strip() for line in story.starts() if line.startswith(word)]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nobody but its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("verb", "outcome"), [("alarm", "alarm came"), ("own_loop", "loop ran")])
def test_with_a_concurrency_of_one_a_plain_handler_runs_in_the_main_thread(
    story: WorkerStory, verb: str, outcome: str
) -> None:
    story.add(verb)
    story.add("note")
    with story.worker(app=APP):
        eventually(lambda: noted(story, outcome))
        eventually(lambda: noted(story, "by"))
    assert noted(story, "by")[0].endswith("in MainThread")
    assert story.logged(events.HANDLER_FAILED) == []


def test_leases_are_renewed_beside_a_handler_in_the_main_thread(story: WorkerStory) -> None:
    story.queues.put_queue(QueueSpec("thumbs", lease_seconds=0.5, max_lease_seconds=3600.0))
    story.add("hang_in_c")
    with story.worker(app=APP):
        eventually(lambda: noted(story, "hangs"))
        leased = story.queue.peek().tasks[0].eta
        eventually(lambda: story.queue.peek().tasks[0].eta > leased + 1_000_000)
    assert story.queue.stats().expired_total == 0


@pytest.mark.parametrize("verb", ["hang_in_c", "program"])
def test_sigterm_is_heard_while_a_handler_holds_the_main_thread(story: WorkerStory, verb: str) -> None:
    story.add(verb)
    with story.worker(app=APP, grace_seconds=0.3) as worker:
        eventually(lambda: noted(story, "hangs" if verb == "hang_in_c" else "left"))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
    assert story.logged(events.WORKER_DRAINING)[0]["reason"] == "SIGTERM"
    assert story.queue.lease()[0].lease_number == 1
    assert len(story.logged(events.WORKER_CUT_OFF)) == (verb == "program")  # a handler alone has left nothing


def test_a_second_signal_is_heard_while_a_handler_holds_the_main_thread(story: WorkerStory) -> None:
    story.add("hang_in_c")
    with story.worker(app=APP, grace_seconds=3600) as worker:
        eventually(lambda: noted(story, "hangs"))
        worker.send_signal(signal.SIGTERM)
        eventually(lambda: story.logged(events.WORKER_DRAINING))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0


def test_sigterm_is_heard_after_a_handler_had_it(story: WorkerStory) -> None:
    story.add("own_loop")
    story.add("note")
    with story.worker(app=APP) as worker:
        eventually(lambda: noted(story, "by"))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
    assert story.logged(events.SIGNALS_RESTORED)[0]["signals"] == ["SIGTERM"]


@any_concurrency
@pytest.mark.parametrize(("verb", "outcome"), [("terminate", "ended -15"), ("pool", "pool 3")])
def test_a_child_process_ends_by_sigterm_and_its_worker_goes_on(
    story: WorkerStory, verb: str, outcome: str, concurrency: int
) -> None:
    story.add(verb)
    story.add("note")
    with story.worker(app=APP, concurrency=concurrency) as worker:
        eventually(lambda: noted(story, outcome))
        eventually(lambda: story.queue.stats().deleted_total == 2)
        assert worker.poll() is None
    assert story.logged(events.WORKER_DRAINING) == []


@any_concurrency
@pytest.mark.parametrize("verb", ["thread", "process", "executor", "program"])
def test_what_a_handler_leaves_does_not_hold_its_worker_up_beyond_the_grace(
    story: WorkerStory, verb: str, concurrency: int
) -> None:
    story.add(verb)
    with story.worker(app=APP, concurrency=concurrency, grace_seconds=0.5) as worker:
        eventually(lambda: noted(story, "left"))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
    (cut,) = story.logged(events.WORKER_CUT_OFF)
    if verb == "thread":
        assert "left-thread" in str(cut["threads"])
    else:
        pid = int(noted(story, "left")[0])
        assert str(pid) in str(cut["processes"])
        assert has_ended(pid)


@any_concurrency
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="a stop"),
        pytest.param({"app": LIMITED_APP}, id="a timeout"),
        pytest.param({"recycle": '{"tasks": 3}', "supervisor_lock": "LOCK"}, id="recycled"),
    ],
)
def test_a_handler_does_not_go_on_when_the_child_that_it_waits_for_is_ended(
    story: WorkerStory, settings: dict[str, object], concurrency: int, tmp_path: Path
) -> None:
    story.add("publish")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        settings = {name: tmp_path / "lock" if value == "LOCK" else value for name, value in settings.items()}
        with story.worker(**{"app": APP, **settings}, concurrency=concurrency, grace_seconds=0.5) as worker:
            eventually(lambda: noted(story, "left"))
            if "app" not in settings:
                worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=20) == (79 if "app" in settings else 0)
    eventually(lambda: has_ended(int(noted(story, "left")[0])))
    assert noted(story, "published") == []
    (cut,) = story.logged(events.WORKER_CUT_OFF)
    assert noted(story, "left")[0] in str(cut["processes"])


@any_concurrency
def test_a_forked_child_that_returns_ends_and_leases_nothing(story: WorkerStory, concurrency: int) -> None:
    for _ in range(2):
        story.add("fork")
    story.add("fork_and_exit")
    story.add("note")
    with story.worker(app=APP, concurrency=concurrency) as worker:
        eventually(lambda: story.queue.stats().deleted_total == 4)
        eventually(lambda: all(has_ended(int(pid)) for pid in noted(story, "forked")))
        assert [line.split()[0] for line in noted(story, "by")] == [str(worker.pid)]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
    assert noted(story, "child") == ["7"]
    assert len(story.logged(events.CHILD_ENDED)) == 1
    assert len(story.starts()) == 4 + len(noted(story, "forked")) + 2


@pytest.mark.parametrize("verb", ["fork", "return"])
def test_a_child_forked_in_the_loop_ends_where_it_would_run_other_handlers(story: WorkerStory, verb: str) -> None:
    for _ in range(3):
        story.add("note")
    story.add(verb)
    with story.worker(app=ASYNC_APP, concurrency=4) as worker:
        eventually(lambda: story.queue.stats().deleted_total == 4)
        eventually(lambda: all(has_ended(int(pid)) for pid in noted(story, "forked")))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
    assert len(noted(story, "done note")) == 3
    assert str(worker.pid) in noted(story, f"done {verb}")
    assert len(story.logged(events.CHILD_ENDED)) == 1


def test_a_daemon_that_a_handler_became_is_no_worker(story: WorkerStory) -> None:
    story.add("daemonise")
    with story.worker(app=APP) as worker:
        assert worker.wait(timeout=10) == 0
        daemon = int(eventually(lambda: noted(story, "daemon"))[0])
        eventually(lambda: has_ended(daemon))
    assert story.queue.stats().in_flight == 1  # nobody renews it; its supervisor gives it back at once


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the user")
@any_concurrency
def test_a_worker_whose_handler_changed_its_user_says_so_and_ends(story: WorkerStory, concurrency: int) -> None:
    story.add("change_user")
    with story.worker(app=APP, concurrency=concurrency, grace_seconds=0.5) as worker:
        assert worker.wait(timeout=20) == 77
    (ended,) = story.logged(events.WORKER_CHANGED)
    assert "from 0:0 to 65534:65534" in str(ended["reason"])
