"""A Docker runtime over a state directory and a private engine, with workers that run shell scripts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, SpawnRequest, WorkerHandle
from orchestrator.runtimes.docker.runtime import DockerRuntime
from tests.support.docker.engine import TEST_IMAGE, PrivateDockerEngine
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import exits_of, spawned_by

STAY = "echo up; exec sleep 600"
CLOCK = SystemMonotonicClock()


@dataclass
class DockerBench:
    """One state directory and its runtime; `reopen` acts as a restarted supervisor."""

    engine: PrivateDockerEngine
    state_dir: Path
    runtime: DockerRuntime
    spawned: int = 0

    def pool(self, script: str, *, settings: dict[str, object] | None = None, **others: object) -> PoolSpec:
        """Return a pool of containers that run a shell script."""
        given = {"image": TEST_IMAGE, "network": "none", **(settings or {})}
        return a_pool(app=None, command=["sh", "-c", script], runtime={"docker": given}, **others)

    def spawn(self, script: str, *, settings: dict[str, object] | None = None, **others: object) -> WorkerHandle:
        """Start a worker."""
        return self.start(self.pool(script, settings=settings, **others))

    def start(self, pool: PoolSpec, *, url: str = "memory:", token: str | None = None) -> WorkerHandle:
        """Start a worker of this pool."""
        self.spawned += 1
        worker = f"{pool.name}-{self.spawned}"
        lock = str(self.state_dir / "supervisor.lock")
        environment = Launch(url, str(self.state_dir), lock, 60.0, token=token).environment(worker, pool)
        return spawned_by(self.runtime, SpawnRequest(worker, pool, environment))

    def up(self, script: str = STAY, **settings: object) -> WorkerHandle:
        """Start a worker and wait until it prints "up"."""
        handle = self.spawn(script, settings=settings or None)
        eventually(lambda: "up" in self.output(handle), seconds=30)
        return handle

    def exits(self, count: int = 1, *, seconds: float = 30.0) -> list[Exit]:
        """Wait for `count` exits and return them."""
        return exits_of(self.runtime, count, seconds=seconds)

    def reap(self) -> list[Exit]:
        """Return the exits so far."""
        return list(self.runtime.reap(now=CLOCK.monotonic()))

    def adopt(self, *remembered: WorkerHandle) -> list[WorkerHandle]:
        """Return the workers that were found."""
        return list(self.runtime.adopt(remembered=remembered, now=CLOCK.monotonic()))

    def output(self, handle: WorkerHandle) -> str:
        """Return what a worker wrote so far."""
        log = self.state_dir / "workers" / f"{handle.worker}.log"
        return log.read_text() if log.exists() else ""

    def reopen(self) -> None:
        """Close the runtime and make another over the same state."""
        self.runtime.close()
        self.runtime = DockerRuntime(self.state_dir, engine=self.engine.url)


def id_of(handle: WorkerHandle) -> str:
    """Return the container id of a worker."""
    return handle.ref.rpartition("#")[2]


@contextmanager
def docker_bench(engine: PrivateDockerEngine, state_dir: Path, *, url: str | None = None) -> Iterator[DockerBench]:
    """Open a bench on this engine, reached by `url`; its runtime is closed at the end."""
    bench = DockerBench(engine, state_dir, DockerRuntime(state_dir, engine=url or engine.url))
    try:
        yield bench
    finally:
        bench.runtime.close()
