"""The memory of a forked worker, measured with real processes that share memory with a template."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.runtimes import procfs
from orchestrator.runtimes.forked_memory import ForkedMemory, ForkedMemoryMeter
from orchestrator.runtimes.process import UPKEEP_SECONDS, ProcessRuntime
from orchestrator.runtimes.worker_logs import MAX_DEAD_LOGS
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.task import QueueSpec
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import ForkingRuntime

CLOCK = SystemMonotonicClock()
MIB = 1 << 20
SHARED_BYTES = 100 * MIB
TASKS = f"""\
from queue_core.worker.app import App
app = App()
held = b"x" * {SHARED_BYTES}
@app.task(queue="thumbs")
def resize(task): ...
"""


class ForkingPool:
    """A pool of a runtime, with a template that has imported 100 MiB."""

    def __init__(self, folder: Path, runtime: ForkingRuntime) -> None:
        self.folder = folder
        self.runtime = runtime
        self.pool = a_pool(cwd=str(folder), concurrency=4)
        self._turns = 0

    def spawn(
        self, worker: str, *, start: str = "auto", variables: Mapping[str, str] = MappingProxyType({})
    ) -> WorkerHandle:
        launch = Launch(f"sqlite:///{self.folder}/queue.db", str(self.folder), str(self.folder / "lock"), 60.0)
        pool = self.pool.model_copy(update={"start": start})
        request = SpawnRequest(worker, pool, {**launch.environment(worker, pool), **variables})
        if start == "exec":
            return ProcessRuntime.spawn(self.runtime, request, now=CLOCK.monotonic())
        return self.runtime.spawn(request, now=CLOCK.monotonic())

    def keep_up(self) -> bool:
        """Have the runtime do what it does every 10 s; return True."""
        self._turns += 1
        self.runtime.reap(now=type(CLOCK.monotonic())(CLOCK.monotonic() + self._turns * UPKEEP_SECONDS))
        return True

    def state(self) -> str:
        self.keep_up()
        found = StateDir(self.folder).read_templates().get("resize")
        return found.state if found else ""


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[ForkingPool]:
    (tmp_path / "tasks.py").write_text(TASKS)
    open_queues(f"sqlite:///{tmp_path}/queue.db").put_queue(QueueSpec("thumbs"))
    runtime = ForkingRuntime(tmp_path)
    pool = ForkingPool(tmp_path, runtime)
    with StateDir(tmp_path).locked():
        yield pool
    for worker in runtime.usage():
        runtime.kill(worker)
    runtime.close()


def test_a_forked_worker_takes_what_it_does_not_share(forking: ForkingPool) -> None:
    handles = [forking.spawn("resize-first", start="exec"), *[forking.spawn(f"resize-{name}") for name in "ab"]]
    assert [handle.is_forked for handle in handles] == [False, True, True]
    eventually(lambda: all("worker.started" in log(forking, handle.worker) for handle in handles))
    used = {worker: one.memory_bytes for worker, one in forking.runtime.usage().items()}
    assert used["resize-first"] > SHARED_BYTES, "it has imported all of it for itself"
    assert 0 < used["resize-a"] < SHARED_BYTES / 2
    assert 0 < used["resize-b"] < SHARED_BYTES / 2
    forking.keep_up()
    record = StateDir(forking.folder).read_templates()["resize"]
    assert (record.forks, record.app, record.forks_workers) == (2, "tasks:app", True)
    assert record.memory_bytes > SHARED_BYTES
    assert CLOCK.wall_seconds() - 600 < record.since <= CLOCK.wall_seconds()


def log(forking: ForkingPool, worker: str) -> str:
    return forking.runtime.logs.path(worker).read_text()


def test_an_exit_says_that_the_worker_was_forked_and_how_much_was_its_own(forking: ForkingPool) -> None:
    forking.spawn("resize-a")
    eventually(lambda: forking.runtime.usage()["resize-a"].memory_bytes)
    forking.runtime.kill("resize-a")
    (ended,) = eventually(lambda: forking.runtime.reap(now=CLOCK.monotonic()))
    assert ended.is_forked
    assert ended.memory_own_bytes is not None
    assert ended.memory_peak_bytes is not None
    assert 0 < ended.memory_own_bytes < SHARED_BYTES < ended.memory_peak_bytes


def test_a_forked_worker_is_known_as_one_by_the_next_supervisor(forking: ForkingPool) -> None:
    forking.spawn("resize-first", start="exec")
    forking.spawn("resize-a")
    second = ProcessRuntime(forking.folder)
    try:
        assert {one.worker: one.is_forked for one in second.adopt(now=CLOCK.monotonic())} == {
            "resize-first": False,
            "resize-a": True,
        }
    finally:
        second.close()


def test_a_worker_that_runs_a_suspected_task_alone_is_of_the_same_template(forking: ForkingPool) -> None:
    forking.spawn("resize-a")
    templates = forking.runtime._templates.pids()
    assert forking.spawn("resize-b.alone.17.1", variables={"TOWLINE_CONCURRENCY": "1"}).is_forked
    assert forking.runtime._templates.pids() == templates


def test_a_pool_that_executes_its_workers_keeps_no_template(forking: ForkingPool) -> None:
    forking.spawn("resize-a")
    assert forking.state() == "ready"
    forking.spawn("resize-b", start="exec")
    assert forking.state() == ""


def test_a_templates_log_is_kept_while_it_is_there(forking: ForkingPool) -> None:
    forking.spawn("resize-a")
    logs = forking.runtime.logs
    os.utime(logs.path("resize.template"), (1, 1))
    for number in range(MAX_DEAD_LOGS + 5):
        os.close(logs.open(f"resize-dead{number}"))
    forking.keep_up()
    assert logs.path("resize.template").exists()
    assert not logs.path("resize-dead0").exists() or not logs.path("resize-dead1").exists()


def test_a_template_that_was_killed_is_told_with_the_signal(forking: ForkingPool) -> None:
    forking.spawn("resize-a")
    (template,) = forking.runtime._templates.pids()
    os.kill(template, signal.SIGKILL)
    eventually(lambda: forking.state() == "ended")
    assert "it was ended by SIGKILL; if nobody sent it" in StateDir(forking.folder).read_templates()["resize"].sentence


FAMILY = f"""\
import os, sys, time
held = b"x" * {SHARED_BYTES}
pids = []
for _ in range(6):
    pid = os.fork()
    if not pid:
        time.sleep(3600)
    pids.append(pid)
print(*pids, flush=True)
time.sleep(3600)
"""


@pytest.fixture
def family() -> Iterator[list[int]]:
    """Six processes that share 100 MiB with the one that forked them."""
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    parent.kill()
    parent.wait()
    parent.stdout.close()


def members(pids: list[int], pool: str = "resize") -> list[ForkedMemory]:
    found = [(pid, procfs.read_stat(pid)) for pid in pids]
    return [ForkedMemory(f"w{pid}", pool, pid, stat.memory_bytes) for pid, stat in found if stat is not None]


def test_few_readings_tell_the_own_part_of_all_of_a_pool(family: list[int]) -> None:
    meter = ForkedMemoryMeter(most_readings=1)
    own = meter.own_bytes(members(family))
    assert len(own) == len(family)
    assert all(size < SHARED_BYTES / 2 for size in own.values()), "the others share as much as the one that was read"


def test_growth_counts_at_once_though_nothing_is_read_again(family: list[int]) -> None:
    meter = ForkedMemoryMeter(most_readings=1)
    (one,) = members(family[:1])
    before = meter.own_bytes([one])[one.worker]
    grown = ForkedMemory(one.worker, one.pool, 0, one.resident_bytes + 50 * MIB)  # no process has this pid to be read
    assert meter.own_bytes([grown]) == {one.worker: before + 50 * MIB}


def test_a_process_that_has_become_another_program_is_read_again(family: list[int]) -> None:
    meter = ForkedMemoryMeter(most_readings=1)
    (one,) = members(family[:1])
    before = ForkedMemory(one.worker, one.pool, one.pid, one.resident_bytes + 200 * MIB)
    meter.own_bytes([before])
    assert 0 < meter.own_bytes([one])[one.worker] < SHARED_BYTES / 2


def test_where_nothing_can_be_read_all_of_it_counts() -> None:
    assert ForkedMemoryMeter().own_bytes([ForkedMemory("w", "resize", 0, 7 * MIB)]) == {"w": 7 * MIB}
