"""The runtimes' contract bench: how workers of each kind are made, observed from outside, and left behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

from orchestrator.base.clock import Monotonic, SystemMonotonicClock
from orchestrator.base.errors import StartPendingError
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, Runtime, SpawnRequest, WorkerHandle
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.process import ProcessRuntime
from tests.support.docker.engine import TEST_IMAGE, PrivateDockerEngine
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool

CLOCK = SystemMonotonicClock()
REPOSITORY: Final = Path(__file__).parents[3]


def is_running(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def spawned_by(runtime: Runtime, request: SpawnRequest) -> WorkerHandle:
    """Start a worker; try again while a busy engine is asked about its image, as a supervisor does each turn."""

    def try_it() -> WorkerHandle | None:
        try:
            return runtime.spawn(request, now=CLOCK.monotonic())
        except StartPendingError:
            return None

    handle = eventually(try_it)
    assert handle is not None
    return handle


def exits_of(runtime: Runtime, count: int, *, seconds: float = 10.0) -> list[Exit]:
    """Wait for `count` exits and return them."""
    collected: list[Exit] = []

    def enough() -> bool:
        runtime.wait_for_exit(timeout_seconds=0.1)
        collected.extend(runtime.reap(now=CLOCK.monotonic()))
        return len(collected) >= count

    eventually(enough, seconds=seconds)
    return collected


class RuntimeKind(Protocol):
    """Makes the workers of one runtime and finds them on this host."""

    is_marked_outside: bool
    """Whether a worker's marks are kept outside it, where it can't hide them."""

    def make(self, state_dir: Path) -> Runtime: ...
    def settings(self, tmp_path: Path) -> dict[str, Any]: ...
    def pool(self, command: list[str], tmp_path: Path, settings: dict[str, Any]) -> PoolSpec: ...
    def pid_of(self, handle: WorkerHandle) -> int: ...
    def child_pid(self, handle: WorkerHandle, told: int) -> int: ...
    def has_died(self, handle: WorkerHandle) -> bool: ...
    def is_gone(self, handle: WorkerHandle) -> bool: ...


class ProcessRuntimeKind:
    """Workers that are processes of this host."""

    is_marked_outside = False

    def make(self, state_dir: Path) -> Runtime:
        return ProcessRuntime(state_dir)

    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {}

    def pool(self, command: list[str], tmp_path: Path, settings: dict[str, Any]) -> PoolSpec:
        return a_pool(app=None, command=command, **settings)

    def pid_of(self, handle: WorkerHandle) -> int:
        return int(handle.ref.removeprefix("pid:").partition("@")[0])

    def child_pid(self, handle: WorkerHandle, told: int) -> int:
        return told

    def has_died(self, handle: WorkerHandle) -> bool:
        return not is_running(self.pid_of(handle))

    def is_gone(self, handle: WorkerHandle) -> bool:
        return not Path(f"/proc/{self.pid_of(handle)}").exists()


class ForkingRuntime(ProcessRuntime):
    """Waits until a pool's template is ready, so that none of its workers is executed."""

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        if not request.command:
            environment = self._environment(request)
            if Path(request.pool.cwd or "/").is_dir():
                eventually(lambda: self._templates.prepare(request, environment, now=now) == "ready", seconds=60)
        return super().spawn(request, now=CLOCK.monotonic())


class ForkedRuntimeKind(ProcessRuntimeKind):
    """Workers that are forked from a template, and become the shell script of a test then."""

    def make(self, state_dir: Path) -> Runtime:
        return ForkingRuntime(state_dir)

    def pool(self, command: list[str], tmp_path: Path, settings: dict[str, Any]) -> PoolSpec:
        if command[:2] != ["sh", "-c"]:
            return super().pool(command, tmp_path, settings)
        more = cast("dict[str, str]", settings.pop("env", {}))
        environment = {"PYTHONPATH": str(REPOSITORY), "SCRIPT": command[2], **more}
        return a_pool(app="tests.support.fleet.script_app:app", start="fork", env=environment, **settings)


@dataclass
class ContainerRuntimeKind:
    """Workers in containers of a private engine, which see the test's folder at its path."""

    engine: PrivateDockerEngine
    pids: dict[str, int] = field(default_factory=dict)
    is_marked_outside = True

    def make(self, state_dir: Path) -> Runtime:
        return DockerRuntime(state_dir, engine=self.engine.url)

    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"runtime": {"docker": {"image": TEST_IMAGE, "network": "none", "volumes": [f"{tmp_path}:{tmp_path}"]}}}

    def pool(self, command: list[str], tmp_path: Path, settings: dict[str, Any]) -> PoolSpec:
        return a_pool(app=None, command=command, **self.settings(tmp_path), **settings)

    def pid_of(self, handle: WorkerHandle) -> int:
        """Return the worker's own process: the first one started by the container's init."""
        container = _container(handle)
        if container not in self.pids:
            eventually(lambda: not self.has_died(handle))
            started = eventually(lambda: {inner: pid for inner, pid in _inner(container).items() if inner > 1})
            self.pids[container] = started[min(started)]
        return self.pids[container]

    def child_pid(self, handle: WorkerHandle, told: int) -> int:
        found = eventually(lambda: _inner(_container(handle)).get(told))
        assert found is not None
        return found

    def has_died(self, handle: WorkerHandle) -> bool:
        """The kernel notifies the engine a moment later."""
        with self.engine.client() as client:
            return not client.inspect_container(_container(handle))["State"]["Running"]

    def is_gone(self, handle: WorkerHandle) -> bool:
        container = _container(handle)
        with self.engine.client() as client:
            return not _inner(container) and not client.containers(all=True, filters={"id": container})


def _container(handle: WorkerHandle) -> str:
    return handle.ref.rpartition("#")[2]


def _inner(container: str) -> dict[int, int]:
    """Return the host's pids of a container's processes, by their pid inside."""
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
class RuntimeBench:
    """One state directory and the runtime under test; `reopen` acts as a restarted supervisor."""

    kind: RuntimeKind
    tmp_path: Path
    state_dir: Path
    runtime: Runtime
    spawned: int = 0

    def spawn(self, script: str, **settings: object) -> WorkerHandle:
        """Start a worker that runs a shell script."""
        return self.start(self.pool(["sh", "-c", script], **settings))

    def pool(self, command: list[str], **settings: object) -> PoolSpec:
        return self.kind.pool(command, self.tmp_path, settings)

    def start(self, pool: PoolSpec) -> WorkerHandle:
        self.spawned += 1
        worker = f"{pool.name}-{self.spawned}"
        launch = Launch("memory:", str(self.state_dir), str(self.state_dir / "supervisor.lock"), 60.0)
        request = SpawnRequest(worker, pool, launch.environment(worker, pool))
        return spawned_by(self.runtime, request)

    def exits(self, count: int = 1) -> list[Exit]:
        """Wait for `count` exits and return them."""
        return exits_of(self.runtime, count)

    def output(self, handle: WorkerHandle) -> str:
        """Return what the worker wrote so far."""
        log = self.state_dir / "workers" / f"{handle.worker}.log"
        return log.read_text() if log.exists() else ""

    def reopen(self) -> None:
        """Close the runtime like a supervisor that ends, and make another over the same state."""
        self.runtime.close()
        self.runtime = self.kind.make(self.state_dir)

    def pid_of(self, handle: WorkerHandle) -> int:
        """Return the worker's pid on this host."""
        return self.kind.pid_of(handle)

    def child_of(self, handle: WorkerHandle) -> int:
        """Return the host's pid of the child process that a worker printed."""
        told = int(eventually(lambda: self.output(handle).removeprefix("child ").strip()))
        return self.kind.child_pid(handle, told)


@contextmanager
def runtime_bench(kind: RuntimeKind, folder: Path) -> Iterator[RuntimeBench]:
    """Open a bench whose state is in this folder; its workers have ended at the end."""
    bench = RuntimeBench(kind, folder, folder, kind.make(folder))
    yield bench
    bench.runtime.adopt(now=CLOCK.monotonic())
    for worker in bench.runtime.usage():
        bench.runtime.kill(worker)
    eventually(lambda: bench.runtime.reap(now=CLOCK.monotonic()) or not bench.runtime.usage())
    bench.runtime.close()
