"""A reconciler between fakes, run turn by turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from structlog.typing import EventDict

from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.capacity.allocation import HostCapacity
from orchestrator.capacity.host import HostMeter
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.conditions import ConditionsTracker
from orchestrator.supervisor.reconciler import Reconciler
from tests.support.fleet.fakes import FakeRuntime, FakeSource
from tests.support.fleet.fleet_builders import a_pool


class QuietHost(HostMeter):
    """A large host that nothing else uses, so that no decision depends on the machine on which a test runs."""

    def measure(self, *, now: Monotonic) -> HostCapacity:
        return HostCapacity(64e9, 60e9, 64.0, 64.0)


@dataclass
class ReconcilerStage:
    """A reconciler between fakes, with a manual clock."""

    files: StateDir
    logs: list[EventDict]
    source: FakeSource = field(default_factory=FakeSource)
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    clock: ManualMonotonicClock = field(default_factory=ManualMonotonicClock)
    names: int = 0
    leads: bool = True

    def __post_init__(self) -> None:
        self.reconciler = self.made()

    def made(self, conditions: ConditionsTracker | None = None) -> Reconciler:
        """Return a reconciler between the fakes, as a starting supervisor makes it."""
        return Reconciler(
            source=self.source,
            runtime=self.runtime,
            clock=self.clock,
            files=self.files,
            launch=Launch("memory:", str(self.files.path), "lock", 60.0),
            identify=self._identify,
            may_act=lambda: self.leads,
            conditions=conditions or ConditionsTracker(self.files, clock=self.clock, host=QuietHost()),
        )

    def _identify(self, pool: str) -> str:
        self.names += 1
        return f"{pool}-{self.names}"

    def set_pools(self, *pools: PoolSpec, learned: Mapping[str, object] | None = None) -> None:
        self.reconciler.set_pools({pool.name: pool for pool in pools}, learned=learned)

    def turn(self, *, after: float = 5.0) -> None:
        """Advance the clock by `after` seconds, reap, and run the turns that are due."""
        self.clock.advance(after)
        self.reconciler.reap()
        self.reconciler.turns()

    def with_workers(self, count: int, **settings: object) -> list[str]:
        """Set a pool whose minimum of workers is up and idle."""
        self.set_pools(a_pool(least=count, spawn_parallelism=count, **settings))
        self.turn()
        names = list(self.runtime.live)
        self.source.seen.update(names)
        self.turn()
        self.runtime.calls.clear()
        return names

    def logged(self, event: str) -> list[EventDict]:
        return [entry for entry in self.logs if entry["event"] == event]

    def state_of(self, worker: str) -> str:
        pools = self.reconciler.pools.values()
        return next(pool.fleet.workers[worker].state for pool in pools if worker in pool.fleet.workers)
