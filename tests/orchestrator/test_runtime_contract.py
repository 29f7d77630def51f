"""What any runtime promises, asked of real workers. A new runtime joins `RUNTIMES` and must pass unchanged."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import pytest

from orchestrator.clock import SystemClock
from orchestrator.config import PoolSpec
from orchestrator.errors import SpawnError
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, Runtime, SpawnRequest, WorkerHandle
from orchestrator.runtimes import procfs
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.process import ProcessRuntime
from tests.support.docker_engine import TEST_IMAGE, DockerEngine
from tests.support.eventually import eventually
from tests.support.fleet_builders import a_pool

CLOCK: Final = SystemClock()

FINISH: Final = "exit 0"
# An engine keeps no order between what is written to stdout and to stderr within microseconds.
FAIL: Final = "echo about to fail; sleep 0.1; echo the reason >&2; exit 3"
STAY: Final = "echo up; exec sleep 600"
DRAIN: Final = "trap 'kill $!; exit 0' TERM; sleep 600 & echo up; wait"
IGNORE_DRAIN: Final = "trap '' TERM; echo up; while :; do sleep 600; done"
WITH_A_CHILD: Final = "sleep 600 & echo child $!; wait"
HIDDEN: Final = "echo up; exec env -i sleep 600"
HIDDEN_WITH_A_CHILD: Final = "sleep 600 & echo child $!; exec env -i sleep 600"

RUNTIMES: Final = ("docker", "process")


class Kind(Protocol):
    """How workers of one runtime are made, and found on this host."""

    is_marked_outside: bool
    """A worker's marks are not in the worker itself: it can't hide them."""

    def make(self, state_dir: Path) -> Runtime: ...
    def settings(self, tmp_path: Path) -> dict[str, object]: ...
    def pid_of(self, handle: WorkerHandle) -> int: ...
    def child_pid(self, handle: WorkerHandle, told: int) -> int: ...
    def has_died(self, handle: WorkerHandle) -> bool: ...
    def is_gone(self, handle: WorkerHandle) -> bool: ...


class Processes:
    """Processes of this host."""

    is_marked_outside = False

    def make(self, state_dir: Path) -> Runtime:
        return ProcessRuntime(state_dir)

    def settings(self, tmp_path: Path) -> dict[str, object]:
        return {}

    def pid_of(self, handle: WorkerHandle) -> int:
        return int(handle.ref.removeprefix("pid:").partition("@")[0])

    def child_pid(self, handle: WorkerHandle, told: int) -> int:
        return told

    def has_died(self, handle: WorkerHandle) -> bool:
        return not is_running(self.pid_of(handle))

    def is_gone(self, handle: WorkerHandle) -> bool:
        return not Path(f"/proc/{self.pid_of(handle)}").exists()


@dataclass
class Containers:
    """Containers of a private engine, which see the test's folder at its place."""

    engine: DockerEngine
    pids: dict[str, int] = field(default_factory=dict)
    is_marked_outside = True

    def make(self, state_dir: Path) -> Runtime:
        return DockerRuntime(state_dir, engine=self.engine.url)

    def settings(self, tmp_path: Path) -> dict[str, object]:
        return {"runtime": {"docker": {"image": TEST_IMAGE, "network": "none", "volumes": [f"{tmp_path}:{tmp_path}"]}}}

    def pid_of(self, handle: WorkerHandle) -> int:
        """The worker's own process: the one that the engine's init, the first of a container, started first."""
        container = _container(handle)
        if container not in self.pids:
            eventually(lambda: not self.has_died(handle))
            started = eventually(lambda: {inner: pid for inner, pid in _inner(container).items() if inner > 1})
            self.pids[container] = started[min(started)]
        return self.pids[container]

    def child_pid(self, handle: WorkerHandle, told: int) -> int:
        return eventually(lambda: _inner(_container(handle)).get(told))

    def has_died(self, handle: WorkerHandle) -> bool:
        """The engine is told by the kernel, a moment later."""
        with self.engine.client() as client:
            return not client.inspect_container(_container(handle))["State"]["Running"]

    def is_gone(self, handle: WorkerHandle) -> bool:
        container = _container(handle)
        with self.engine.client() as client:
            return not _inner(container) and not client.containers(all=True, filters={"id": container})


def _container(handle: WorkerHandle) -> str:
    return handle.ref.rpartition("#")[2]


def _inner(container: str) -> dict[int, int]:
    """Pids on this host of a container's processes, by the number that each has inside."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if container not in (process / "cgroup").read_text():
                continue
            status = (process / "status").read_text()
        except OSError:
            continue
        inside = next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))
        found[int(inside)] = int(process.name)
    return found


@dataclass
class Bench:
    """One state directory and the runtime under test; `reopened` is what a restarted supervisor would make."""

    kind: Kind
    tmp_path: Path
    state_dir: Path
    runtime: Runtime
    spawned: int = 0

    def spawn(self, script: str, **settings: object) -> WorkerHandle:
        """Start a worker that runs a shell script."""
        return self.start(self.pool(["sh", "-c", script], **settings))

    def pool(self, command: list[str], **settings: object) -> PoolSpec:
        return a_pool(app=None, command=command, **self.kind.settings(self.tmp_path), **settings)

    def start(self, pool: PoolSpec) -> WorkerHandle:
        self.spawned += 1
        worker = f"{pool.name}-{self.spawned}"
        launch = Launch("memory:", str(self.state_dir), str(self.state_dir / "supervisor.lock"), 60.0)
        request = SpawnRequest(worker, pool, launch.environment(worker, pool))
        return self.runtime.spawn(request, now=CLOCK.monotonic())

    def exits(self, count: int = 1) -> list[Exit]:
        """Wait for so many exits, and collect them."""
        collected: list[Exit] = []

        def enough() -> bool:
            self.runtime.wait_for_exit(timeout_seconds=0.1)
            collected.extend(self.runtime.reap(now=CLOCK.monotonic()))
            return len(collected) >= count

        eventually(enough)
        return collected

    def output(self, handle: WorkerHandle) -> str:
        """What it wrote; nothing where it has written nothing yet."""
        log = self.state_dir / "workers" / f"{handle.worker}.log"
        return log.read_text() if log.exists() else ""

    def reopen(self) -> None:
        """Drop the runtime as a supervisor that ends does, and make another over the same state."""
        self.runtime.close()
        self.runtime = self.kind.make(self.state_dir)

    def pid_of(self, handle: WorkerHandle) -> int:
        """The worker's process, as this host calls it."""
        return self.kind.pid_of(handle)


@pytest.fixture(params=sorted(RUNTIMES))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind: Kind = Processes()
    if request.param == "docker":
        kind = Containers(request.getfixturevalue("docker_engine"))
    bench = Bench(kind, tmp_path, tmp_path, kind.make(tmp_path))
    yield bench
    bench.runtime.adopt(now=CLOCK.monotonic())
    for worker in bench.runtime.usage():
        bench.runtime.kill(worker)
    eventually(lambda: bench.runtime.reap(now=CLOCK.monotonic()) or not bench.runtime.usage())
    bench.runtime.close()


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_spawned_worker_is_known_by_its_identity_pool_and_settings(bench: Bench) -> None:
    handle = bench.spawn(STAY)
    pool = bench.pool(["sh", "-c", STAY])
    assert (handle.worker, handle.pool, handle.spec_digest) == ("resize-1", "resize", pool.digest())
    assert handle.worker in bench.runtime.usage()


def test_a_worker_is_told_who_it_is_and_what_its_pool_adds(bench: Bench) -> None:
    handle = bench.spawn('echo "$TOWLINE_WORKER $TOWLINE_QUEUE $COLOUR"; exit 0', env={"COLOUR": "blue"})
    bench.exits()
    assert bench.output(handle) == "resize-1 thumbs blue\n"


def test_a_worker_runs_in_the_directory_of_its_pool(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    handle = bench.spawn("pwd", cwd=str(folder))
    bench.exits()
    assert bench.output(handle).strip() == str(folder)


def test_a_worker_that_finishes_is_told_once_with_exit_code_0(bench: Bench) -> None:
    handle = bench.spawn(FINISH)
    (ended,) = bench.exits()
    assert (ended.worker, ended.ref, ended.code, ended.signal) == (handle.worker, handle.ref, 0, None)
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []


def test_an_exit_code_and_the_last_words_are_told(bench: Bench) -> None:
    bench.spawn(FAIL)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal, ended.out_of_memory) == (3, None, False)
    assert ended.last_lines == ("about to fail", "the reason")


def test_a_worker_ended_from_outside_is_told_with_its_signal(bench: Bench) -> None:
    handle = bench.spawn(STAY)
    os.kill(bench.pid_of(handle), signal.SIGKILL)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal, ended.out_of_memory) == (None, signal.SIGKILL, False)


def test_a_drained_worker_finishes_by_itself(bench: Bench) -> None:
    handle = bench.spawn(DRAIN)
    eventually(lambda: "up" in bench.output(handle))
    bench.runtime.drain(handle.worker)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal) == (0, None)


def test_a_kill_ends_a_worker_that_ignores_a_drain(bench: Bench) -> None:
    handle = bench.spawn(IGNORE_DRAIN)
    eventually(lambda: "up" in bench.output(handle))
    bench.runtime.drain(handle.worker)
    bench.runtime.kill(handle.worker)
    (ended,) = bench.exits()
    assert ended.signal == signal.SIGKILL


def child_of(bench: Bench, handle: WorkerHandle) -> int:
    told = int(eventually(lambda: bench.output(handle).removeprefix("child ").strip()))
    return bench.kind.child_pid(handle, told)


def test_a_kill_ends_everything_the_worker_started(bench: Bench) -> None:
    handle = bench.spawn(WITH_A_CHILD)
    child = child_of(bench, handle)
    bench.runtime.kill(handle.worker)
    bench.exits()
    eventually(lambda: not is_running(child))


def test_nothing_a_dead_worker_started_stays_behind(bench: Bench) -> None:
    handle = bench.spawn(WITH_A_CHILD)
    child = child_of(bench, handle)
    os.kill(bench.pid_of(handle), signal.SIGKILL)
    bench.exits()
    eventually(lambda: not is_running(child))


def test_a_command_that_does_not_exist_is_refused_with_its_name(bench: Bench) -> None:
    with pytest.raises(SpawnError, match="no such command: no-such-program"):
        bench.start(bench.pool(["no-such-program"]))
    assert bench.runtime.usage() == {}


def test_a_file_that_may_not_be_executed_is_refused(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "plain.txt"
    script.write_text("not a program\n")
    with pytest.raises(SpawnError, match="may not be executed"):
        bench.start(bench.pool([str(script)]))


def test_a_working_directory_that_is_missing_is_refused_by_its_own_name(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"mend pools\.resize\.cwd"):
        bench.spawn(STAY, cwd=str(tmp_path / "missing"))


def test_verbs_on_an_unknown_worker_have_no_effect(bench: Bench) -> None:
    bench.runtime.drain("nobody")
    bench.runtime.kill("nobody")
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []


def test_workers_left_running_are_adopted_as_they_are(bench: Bench) -> None:
    left = bench.spawn(STAY)
    bench.reopen()
    (found,) = bench.runtime.adopt(now=CLOCK.monotonic())
    assert (found.worker, found.pool, found.ref, found.spec_digest) == (
        left.worker,
        left.pool,
        left.ref,
        left.spec_digest,
    )
    assert abs(found.spawned_at - left.spawned_at) < 1.0
    assert is_running(bench.pid_of(left))


def test_an_adopted_worker_is_told_of_when_it_ends(bench: Bench) -> None:
    left = bench.spawn(STAY)
    bench.reopen()
    bench.runtime.adopt(now=CLOCK.monotonic())
    bench.runtime.kill(left.worker)
    (ended,) = bench.exits()
    assert ended.worker == left.worker


def test_a_remembered_worker_that_hides_its_marks_is_adopted_all_the_same(bench: Bench) -> None:
    left = bench.spawn(HIDDEN)
    eventually(lambda: bench.output(left) == "up\n" and not procfs.environment_of(bench.pid_of(left)))
    bench.reopen()
    if not bench.kind.is_marked_outside:
        assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    (found,) = bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic())
    assert replace(found, spawned_at=left.spawned_at) == left
    assert bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic()) == []
    bench.runtime.kill(left.worker)
    assert [ended.worker for ended in bench.exits()] == [left.worker]


def test_what_a_remembered_worker_that_hides_its_marks_has_started_is_left_to_it(bench: Bench) -> None:
    left = bench.spawn(HIDDEN_WITH_A_CHILD)
    child = child_of(bench, left)
    eventually(lambda: not procfs.environment_of(bench.pid_of(left)))
    bench.reopen()
    (found,) = bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic())
    assert found.worker == left.worker
    assert is_running(child)
    bench.runtime.kill(left.worker)
    bench.exits()
    eventually(lambda: not is_running(child))


def test_a_remembered_worker_that_is_gone_is_not_adopted(bench: Bench) -> None:
    left = bench.spawn(FINISH)
    bench.exits()
    bench.reopen()
    assert bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic()) == []


def test_a_worker_is_adopted_once(bench: Bench) -> None:
    bench.spawn(STAY)
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    bench.reopen()
    assert len(bench.runtime.adopt(now=CLOCK.monotonic())) == 1
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []


def test_workers_of_another_state_are_left_alone(bench: Bench, tmp_path: Path) -> None:
    bench.spawn(STAY)
    with closing(bench.kind.make(tmp_path / "another")) as stranger:
        assert stranger.adopt(now=CLOCK.monotonic()) == []


def test_what_is_left_of_a_worker_that_died_unseen_is_ended(bench: Bench) -> None:
    left = bench.spawn(WITH_A_CHILD)
    child = child_of(bench, left)
    bench.reopen()
    os.kill(bench.pid_of(left), signal.SIGKILL)
    eventually(lambda: bench.kind.has_died(left))
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    eventually(lambda: not is_running(child))


def test_waiting_for_an_exit_ends_early_when_woken(bench: Bench) -> None:
    bench.spawn(STAY)
    bench.runtime.wake()
    assert bench.runtime.wait_for_exit(timeout_seconds=600) is False


def test_waiting_for_an_exit_ends_with_the_exit(bench: Bench) -> None:
    bench.spawn(FINISH)
    assert bench.runtime.wait_for_exit(timeout_seconds=60) is True


def test_waiting_for_an_exit_ends_when_the_time_is_up(bench: Bench) -> None:
    bench.spawn(STAY)
    assert bench.runtime.wait_for_exit(timeout_seconds=0) is False


def test_usage_tells_memory_and_processor_time(bench: Bench) -> None:
    handle = bench.spawn("while :; do :; done")
    used = eventually(lambda: (u := bench.runtime.usage()[handle.worker]).cpu_seconds > 0 and u)
    assert 100_000 < used.memory_bytes < 100_000_000


def test_nothing_is_left_open_by_workers_that_came_and_went(bench: Bench) -> None:
    first = bench.spawn(FINISH)
    bench.exits()
    eventually(lambda: bench.kind.is_gone(first))
    before = open_descriptors()
    for _ in range(10):
        bench.spawn(FINISH)
    bench.exits(10)
    eventually(lambda: open_descriptors() <= before)


def test_a_collected_worker_is_no_zombie(bench: Bench) -> None:
    handle = bench.spawn(FINISH)
    bench.exits()
    eventually(lambda: bench.kind.is_gone(handle))
