"""A Swarm runtime on a private swarm of two engines, and where Swarm has put each worker."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, SpawnRequest, WorkerHandle
from orchestrator.runtimes.swarm.runtime import SwarmRuntime
from tests.support.docker.swarms import IMAGE, VOLUMES, Node, Swarm
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import exits_of

CLOCK = SystemMonotonicClock()
LAUNCH = Launch("http://queue:7878", "/srv/.towline", "/srv/.towline/supervisor.lock", 60.0)
STAY = "trap 'exit 0' TERM; sleep 600 & wait"


@dataclass
class SwarmBench:
    """The runtime under test; `disowned` are the workers whose leases it had the queue take back."""

    swarm: Swarm
    state: str
    disowned: list[str] = field(default_factory=list)
    runtime: SwarmRuntime = field(init=False)

    def __post_init__(self) -> None:
        self.runtime = self.make()

    def make(
        self, *, state: str = "", fleet: str = "", in_reach: bool = True, timeout_seconds: float = 5.0
    ) -> SwarmRuntime:
        return SwarmRuntime(
            state or self.state,
            engine=self.swarm.url,
            fleet=lambda: fleet,
            nodes=self.swarm.others if in_reach else None,
            disown=self.disowned.append,
            timeout_seconds=timeout_seconds,
        )

    def tasks(self) -> list[Mapping[str, Any]]:
        return self.swarm.tasks(self.state)

    def replicas(self) -> list[int]:
        """The services' numbers of replicas, in order of size."""
        return sorted(self.swarm.replicas(self.state).values())

    def reopen(self, *, in_reach: bool = True) -> None:
        """Close the runtime like a supervisor that ends, and make another over the same state."""
        self.runtime.close()
        self.runtime = self.make(in_reach=in_reach)

    def spawn(self, script: str = STAY, *, swarm: dict[str, object] | None = None, **settings: object) -> WorkerHandle:
        settings_of_swarm = {"image": IMAGE, "network": "host", "volumes": VOLUMES, **(swarm or {})}
        pool = a_pool(
            app=None, command=["sh", "-c", script], **{"grace": "2s", **settings}, runtime={"swarm": settings_of_swarm}
        )
        return self.start(pool)

    def start(self, pool: PoolSpec) -> WorkerHandle:
        request = SpawnRequest("not-its-name", pool, LAUNCH.environment("not-its-name", pool))
        return self.runtime.spawn(request, now=CLOCK.monotonic())

    def exits(self, count: int = 1) -> list[Exit]:
        """Wait for `count` exits and return them."""
        return exits_of(self.runtime, count, seconds=30.0)

    def running(self) -> int:
        return sum(1 for task in self.tasks() if task["Status"]["State"] == "running")

    def all_run(self, count: int) -> None:
        eventually(lambda: self.running() == count, seconds=30)

    def node_of(self, handle: WorkerHandle) -> Node:
        def found() -> Node | None:
            ids = {task["ID"]: task.get("NodeID") for task in self.tasks()}
            placed = ids[handle.ref.removeprefix("swarm:")]
            return next((node for node in self.swarm.nodes if node.id == placed), None)

        node = eventually(found)
        assert node is not None
        return node

    def container_of(self, handle: WorkerHandle) -> str:
        tasks = {task["ID"]: task for task in self.tasks()}
        return str(tasks[handle.ref.removeprefix("swarm:")]["Status"]["ContainerStatus"]["ContainerID"])

    def on(self, handles: Sequence[WorkerHandle], node: Node) -> list[WorkerHandle]:
        return [handle for handle in handles if self.node_of(handle) == node]


@contextmanager
def swarm_bench(swarm: Swarm, state: str) -> Iterator[SwarmBench]:
    """Open a bench over a state of this name; all services are removed at the end."""
    bench = SwarmBench(swarm, state)
    yield bench
    bench.runtime.close()
    swarm.remove_services()
