"""When a worker ends by itself: its bounds, and a supervisor that is gone."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_core.worker.lifecycle import retry_seconds
from queue_core.worker.runner import OrphanWatch, supervisor_lives
from queue_core.worker.settings import RecycleLimits, recycle_reason, resident_bytes

ROOT = Path(__file__).parents[3]
BOUNDS = RecycleLimits(tasks=10, memory_bytes=1000, age_seconds=60.0)


@pytest.mark.parametrize(
    ("bounds", "tasks", "memory_bytes", "age_seconds", "reason"),
    [
        pytest.param(BOUNDS, 9, 999, 59.9, None, id="below every bound"),
        pytest.param(BOUNDS, 10, 0, 0.0, "10 tasks done, at most 10", id="tasks"),
        pytest.param(BOUNDS, 0, 1000, 0.0, "1000 B of memory, at most 1000 B", id="memory"),
        pytest.param(BOUNDS, 0, 0, 60.0, "60.0 s old, at most 60 s", id="age"),
        pytest.param(RecycleLimits(), 10**9, 10**12, 10.0**9, None, id="no bounds"),
    ],
)
def test_a_worker_is_recycled_at_its_bounds(
    bounds: RecycleLimits, tasks: int, memory_bytes: int, age_seconds: float, reason: str | None
) -> None:
    assert recycle_reason(bounds, tasks=tasks, memory_bytes=memory_bytes, age_seconds=age_seconds) == reason


def test_resident_memory_is_that_of_this_process() -> None:
    assert 1 << 20 < resident_bytes() < 1 << 34


def test_a_supervisor_lives_while_it_holds_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not supervisor_lives(lock)
    with lock.open("w") as held:
        assert not supervisor_lives(lock)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert supervisor_lives(lock)
    assert not supervisor_lives(lock)


def test_workers_do_not_take_each_other_for_the_supervisor(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not supervisor_lives(lock)


def test_a_supervisor_that_comes_back_is_not_missed_any_more(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    watch = OrphanWatch(lock)
    assert watch.absent_seconds(now=100.0) == 0.0
    assert watch.absent_seconds(now=103.0) == 3.0
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert watch.absent_seconds(now=104.0) == 0.0
    assert watch.absent_seconds(now=110.0) == 0.0
    assert watch.absent_seconds(now=111.5) == 1.5


@pytest.mark.parametrize(
    ("attempt", "jitter", "seconds"),
    [(1, 0.0, 0.1), (2, 0.0, 0.2), (5, 0.0, 1.6), (6, 0.0, 2.0), (10**6, 0.0, 2.0), (1, 0.5, 0.075)],
)
def test_a_queue_that_does_not_answer_is_asked_less_and_less(attempt: int, jitter: float, seconds: float) -> None:
    assert retry_seconds(attempt, jitter=jitter) == pytest.approx(seconds)


FAILS_AFTER_A_CHANGE_OF_USER = """
import os
from queue_core.clock import ManualClock
from queue_core.log import get_logger
from queue_core.worker.lifecycle import WorkerLifecycle
from queue_core.worker.settings import WorkerSettings

lifecycle = WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=ManualClock(), log=get_logger())
os.setresuid(65534, 65534, 65534)
try:
    open("/proc/1/environ")
except PermissionError as error:
    lifecycle.fail(error, thread="renewals")
print(lifecycle.next_end_request(timeout_seconds=0).code)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the user")
def test_a_thread_that_fails_as_the_user_was_changed_is_not_the_reason_of_the_end() -> None:
    program = [sys.executable, "-c", FAILS_AFTER_A_CHANGE_OF_USER]
    run = subprocess.run(program, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (run.stdout, run.stderr) == ("77\n", "")
