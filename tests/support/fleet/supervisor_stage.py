"""A supervisor over fakes, in its own thread."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec, SupervisorSettings
from orchestrator.source import TickAdder
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.supervisor import Supervisor
from tests.support.fleet.fakes import FakeRuntime, FakeSource
from tests.support.fleet.fleet_builders import a_pool

CLOCK = SystemMonotonicClock()


@dataclass
class SupervisorStage:
    """A supervisor over fakes, in its own thread."""

    folder: Path
    source: FakeSource = field(default_factory=FakeSource)
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    pools: list[PoolSpec] = field(default_factory=lambda: [a_pool()])
    environment: Mapping[str, str] = field(default_factory=dict)
    load: Callable[[], Mapping[str, PoolSpec]] | None = None
    codes: list[int] = field(default_factory=list)
    ticks: TickAdder | None = None

    @contextmanager
    def running(self) -> Iterator[Supervisor]:
        supervisor = Supervisor(
            SupervisorSettings(),
            {pool.name: pool for pool in self.pools},
            source=self.source,
            runtime=self.runtime,
            files=StateDir(self.folder),
            url="memory:",
            load=self.load,
            environment=self.environment,
            ticks=self.ticks,
        )
        thread = threading.Thread(target=lambda: self.codes.append(supervisor.run()))
        thread.start()
        try:
            yield supervisor
        finally:
            supervisor.request_stop()
            while thread.is_alive():
                self.end_those_asked()
                thread.join(timeout=0.01)

    def end_those_asked(self) -> None:
        """End the workers that were asked to finish or exit."""
        for _, worker in [entry for entry in self.runtime.calls if entry[0] in {"drain", "kill"}]:
            if worker in self.runtime.live:
                self.runtime.end(worker, now=CLOCK.monotonic(), code=0)

    @property
    def acts(self) -> list[str]:
        return [verb for verb, _ in self.runtime.calls]
