"""What a pool does while the engine that runs its workers can't be asked; and several runtimes as one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import Runtime, SpawnRequest, WorkerHandle
from orchestrator.runtimes.composite import CompositeRuntime, key_of, key_of_ref
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.reconciler import Reconciler
from tests.support.fleet.fakes import FakeRuntime, FakeSource
from tests.support.fleet.fleet_builders import NOW, a_pool

AWAY = "the engine at unix:///run/docker.sock does not answer"


class EngineAway(FakeRuntime):
    """A fake whose engine is away as long as a test says so; `tries` counts the starts it was asked for."""

    is_away = False
    tries = 0

    def spawn(self, request: SpawnRequest, *, now: object) -> WorkerHandle:  # type: ignore[override]
        self.tries += 1
        if self.is_away:
            raise RuntimeUnavailableError(AWAY)
        return super().spawn(request, now=now)  # type: ignore[arg-type]


@dataclass
class Stage:
    files: StateDir
    source: FakeSource = field(default_factory=FakeSource)
    runtime: EngineAway = field(default_factory=EngineAway)
    clock: ManualMonotonicClock = field(default_factory=ManualMonotonicClock)
    names: int = 0

    def __post_init__(self) -> None:
        launch = Launch("memory:", str(self.files.path), "lock", 60.0)
        self.reconciler = Reconciler(
            source=self.source,
            runtime=self.runtime,
            clock=self.clock,
            files=self.files,
            launch=launch,
            identify=self._identify,
        )

    def _identify(self, pool: str) -> str:
        self.names += 1
        return f"{pool}-{self.names}"

    def turn(self) -> tuple[str, ...]:
        """Five seconds later: the guards that held the pool back."""
        self.clock.advance(5.0)
        self.reconciler.reap()
        self.reconciler.turns()
        decision = self.reconciler.pools["resize"].decision
        return decision.limited_by if decision else ()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    (tmp_path / "state").mkdir()
    stage = Stage(StateDir(tmp_path / "state"))
    stage.reconciler.set_pools({"resize": a_pool(least=2, spawn_parallelism=2)})
    yield stage


def test_an_engine_that_is_away_is_a_guard_with_a_name_and_no_crash_loop(stage: Stage) -> None:
    stage.runtime.is_away = True
    with capture_logs() as logs:
        limits = [stage.turn() for _ in range(6)]
    assert ("runtime_unavailable",) in limits
    assert not any("crash_loop" in limit for limit in limits)
    pool = stage.reconciler.pools["resize"]
    assert pool.fleet.crash.failures == 0
    assert [entry["error"] for entry in logs if entry["event"] == events.RUNTIME_UNAVAILABLE] == [AWAY]
    assert stage.runtime.tries < 6


def test_an_engine_that_is_back_is_used_within_ten_seconds(stage: Stage) -> None:
    stage.runtime.is_away = True
    for _ in range(20):
        stage.turn()
    stage.runtime.is_away = False
    for _ in range(3):
        stage.turn()
    assert len(stage.runtime.live) == 2


def test_workers_are_believed_in_while_their_engine_is_away(stage: Stage) -> None:
    stage.turn()
    live = set(stage.runtime.live)
    assert len(live) == 2
    stage.runtime.is_away = True
    stage.reconciler.set_pools({"resize": a_pool(least=4, spawn_parallelism=4)})
    for _ in range(5):
        stage.turn()
    assert set(stage.reconciler.workers) == live


# -- several runtimes ---------------------------------------------------------------------------------------------


def a_request(pool: PoolSpec, worker: str) -> SpawnRequest:
    return SpawnRequest(worker, pool, {"TOWLINE_SPEC": pool.digest()})


class Kinds:
    """Runtimes of kinds that are made when they are asked for."""

    def __init__(self, *pools: PoolSpec) -> None:
        self.processes = FakeRuntime()
        self.made: dict[str, FakeRuntime] = {}
        self.several = CompositeRuntime(self.processes, {"docker": self._docker}, pools=pools)

    def _docker(self, engine: str | None, _pool: PoolSpec | None) -> Runtime:
        return self.made.setdefault(engine or "", FakeRuntime())


IN_PROCESSES = a_pool("resize")
IN_CONTAINERS = a_pool("crop", runtime={"docker": {"image": "a"}})
ELSEWHERE = a_pool("scan", runtime={"docker": {"image": "a", "engine": "tcp://scanner:2376"}})


def test_each_worker_is_started_asked_and_collected_by_the_runtime_of_its_pool() -> None:
    kinds = Kinds()
    for pool in (IN_PROCESSES, IN_CONTAINERS, ELSEWHERE):
        kinds.several.spawn(a_request(pool, f"{pool.name}-1"), now=NOW)
        kinds.several.drain(f"{pool.name}-1")
    assert list(kinds.processes.live) == ["resize-1"]
    assert {engine: list(made.live) for engine, made in kinds.made.items()} == {
        "": ["crop-1"],
        "tcp://scanner:2376": ["scan-1"],
    }
    kinds.made[""].end("crop-1", now=NOW, code=0)
    assert kinds.several.wait_for_exit(timeout_seconds=0) is True
    assert [ended.worker for ended in kinds.several.reap(now=NOW)] == ["crop-1"]
    assert kinds.several.usage().keys() == {"resize-1", "scan-1"}


def test_a_kind_that_no_pool_needs_is_not_made() -> None:
    kinds = Kinds(IN_PROCESSES)
    kinds.several.adopt_own(now=NOW)
    assert kinds.made == {}


def test_workers_are_looked_for_where_the_settings_and_memory_say() -> None:
    kinds = Kinds(IN_CONTAINERS)
    known = WorkerHandle("scan-1", "scan", "docker:tcp://scanner:2376#c1", "d", NOW)
    kinds.several.adopt_own(remembered=[known], now=NOW)
    assert kinds.made.keys() == {"", "tcp://scanner:2376"}
    assert kinds.made["tcp://scanner:2376"].remembered == [known]
    assert kinds.made[""].remembered == []


def test_what_an_earlier_supervisor_left_on_an_engine_that_a_reload_brings_back_is_ended() -> None:
    kinds = Kinds(IN_PROCESSES)
    kinds.several.adopt_own(now=NOW)
    made = kinds.made[""] = FakeRuntime()
    made.left_running = [WorkerHandle("crop-0", "crop", "docker:c0", "d", NOW)]
    kinds.several.spawn(a_request(IN_CONTAINERS, "crop-1"), now=NOW)
    assert made.calls == [("kill", "crop-0"), ("spawn", "crop-1")]


@pytest.mark.parametrize(
    ("pool", "ref", "key"),
    [
        (IN_PROCESSES, "pid:1@2/3", "process"),
        (IN_CONTAINERS, "docker:c1", "docker"),
        (ELSEWHERE, "docker:tcp://scanner:2376#c1", "docker at tcp://scanner:2376"),
    ],
)
def test_a_pool_and_its_workers_belong_to_one_runtime(pool: PoolSpec, ref: str, key: str) -> None:
    assert key_of(pool) == key_of_ref(ref) == key
