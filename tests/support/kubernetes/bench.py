"""A Kubernetes runtime over a stage: a test starts workers, and says what becomes of their Pods."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.placement import ANYWHERE, Placement
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, SpawnRequest, WorkerHandle
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime
from orchestrator.runtimes.kubernetes.watch import WatchTimes
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import exits_of, spawned_by
from tests.support.kubernetes.cluster import Json
from tests.support.kubernetes.images import TOWLINE
from tests.support.kubernetes.stage import Stage

CLOCK: Final = SystemMonotonicClock()
URL: Final = "http://queue.example:7878"
TIMES: Final = WatchTimes(silent=10.0, last_pause=0.5, compare=2.0, shortest=4.0, longest=5.0)
"""Long enough for a busy machine, and short enough for a test to see what they are for."""
ELSEWHERE: Final = {"towline.test/nodes": "none"}
"""No real node of a plane has this label: its Pods wait until a test gives them to a node."""


@dataclass
class PodBench:
    """One namespace and its runtime; `reopen` acts as a restarted supervisor.

    Attributes:
        busy: workers that hold a lease, and are not fenced.
        retired, disowned: workers that the runtime asked the queue to fence, and to take the leases of.
        leads: whether calls may be made now.
    """

    stage: Stage
    folder: Path
    busy: set[str] = field(default_factory=set)
    retired: list[str] = field(default_factory=list)
    disowned: list[str] = field(default_factory=list)
    leads: bool = True
    times: WatchTimes = TIMES
    spawned: int = 0

    def __post_init__(self) -> None:
        self.runtime = self._opened()

    def pool(self, *, pod: Json | None = None, **settings: object) -> PoolSpec:
        """Return a pool of Pods; `pod` are their Pod's settings."""
        given: Json = {"image": TOWLINE, "pull": "never", "node_selector": ELSEWHERE, **(pod or {})}
        return a_pool(**{"grace": 30.0, **settings, "runtime": {"kubernetes": given}})  # type: ignore[arg-type]

    def request(self, pool: PoolSpec | None = None) -> SpawnRequest:
        """Return a request for a worker that no request was for before."""
        wanted = pool or self.pool()
        self.spawned += 1
        worker = f"{wanted.name}-{self.spawned}"
        launch = Launch(URL, str(self.folder), str(self.folder / "supervisor.lock"), 60.0, token="secret")
        return SpawnRequest(worker, wanted, launch.environment(worker, wanted))

    def spawn(self, pool: PoolSpec | None = None) -> WorkerHandle:
        """Start a worker; its Pod has no node yet."""
        return spawned_by(self.runtime, self.request(pool))

    def up(self, pool: PoolSpec | None = None) -> WorkerHandle:
        """Start a worker whose Pod runs."""
        handle = self.spawn(pool)
        self.stage.run(handle.worker)
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

    def living(self) -> set[str]:
        """Return the workers that the runtime knows."""
        return set(self.runtime.placements())

    def place(self, worker: str) -> Placement:
        """Return where a worker is and what it waits for."""
        return self.runtime.placements().get(worker, ANYWHERE)

    def reopen(self) -> None:
        """Close the runtime and make another over the same namespace."""
        self.runtime.close()
        self.runtime = self._opened()

    def _opened(self) -> KubernetesRuntime:
        """Return a runtime that has a supervisor's rights in the namespace of the stage."""
        return KubernetesRuntime(
            Access.of_kubeconfig(self.stage.kubeconfig),
            retire=self._retire,
            disown=self.disowned.append,
            may_act=lambda: self.leads,
            times=self.times,
        )

    def _retire(self, worker: str) -> bool:
        self.retired.append(worker)
        return worker not in self.busy


@contextmanager
def pod_bench(stage: Stage, folder: Path, *, times: WatchTimes = TIMES) -> Iterator[PodBench]:
    """Open a bench on a stage; its runtime is closed at the end."""
    bench = PodBench(stage, folder, times=times)
    try:
        yield bench
    finally:
        bench.runtime.close()
