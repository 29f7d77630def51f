"""Pools whose workers others start, turn by turn: what is wanted is told, nobody is spawned, fenced or ended."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.base.samples import PresentWorker
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import Runtime, WorkerHandle
from orchestrator.runtimes.external import ExternalRuntime
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.reconciler import Reconciler
from tests.support.fleet.fakes import FakeRuntime, FakeSource
from tests.support.fleet.fleet_builders import a_pool

OURS = Launch("memory:", "/tmp", "/tmp/lock", 60.0)


@dataclass
class Scene:
    """A reconciler in manual time."""

    folder: Path
    runtime: Runtime
    pool: PoolSpec
    clock: ManualMonotonicClock = field(default_factory=ManualMonotonicClock)
    source: FakeSource = field(default_factory=FakeSource)
    made: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.reconciler = self.another()

    def another(self) -> Reconciler:
        reconciler = Reconciler(
            source=self.source,
            runtime=self.runtime,
            clock=self.clock,
            files=StateDir(self.folder),
            launch=OURS,
            identify=self.identify,
        )
        reconciler.set_pools({self.pool.name: self.pool})
        return reconciler

    def identify(self, pool: str) -> str:
        self.made += 1
        return f"{pool}-{self.made}"

    def turn(self, seconds: float = 3.0) -> tuple[int, int]:
        """Time passes, then a turn: how many workers there are for the pool, and how many there should be."""
        self.clock.advance(seconds)
        self.reconciler.arrived(self.pool.name)
        assert self.reconciler.turns()
        decision = self.reconciler.pools[self.pool.name].decision
        assert decision is not None
        return decision.current, decision.target

    def come(self, *workers: str) -> None:
        """Workers were started by somebody, and ask."""
        for worker in workers:
            self.source.seen.add(worker)
            self.source.heard.append(PresentWorker(worker, 0.0, waits=True))

    def leave(self, *workers: str) -> None:
        self.source.heard = [one for one in self.source.heard if one.worker not in workers]

    def hold(self, worker: str, *tasks: str) -> None:
        self.source.held[worker] = list(tasks)

    def states(self) -> dict[str, str]:
        return {name: w.state for name, w in self.reconciler.pools[self.pool.name].fleet.workers.items()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, ExternalRuntime(), a_pool(runtime="external", app=None, slo=30))


def test_what_is_wanted_is_told_and_whoever_comes_is_counted(scene: Scene) -> None:
    scene.source.ready = 3
    scene.source.age_seconds = 29.0
    current, target = scene.turn()
    assert (current, target > 0) == (0, True)
    assert set(scene.states().values()) == {"starting"}
    assert scene.turn()[0] == target
    scene.come("resize/a")
    scene.hold("resize/a", "t1")
    scene.source.ready = 0
    assert scene.turn()[0] == target
    assert scene.states()["resize/a"] == "busy"
    assert scene.reconciler.pools["resize"].counters.starts == 1


def test_nobody_is_fenced_drained_or_given_up_for_dead(scene: Scene) -> None:
    scene.come("resize/a", "resize/b")
    scene.turn()
    for _ in range(400):
        scene.turn()
    pool = scene.reconciler.pools["resize"]
    assert pool.decision is not None
    assert pool.decision.target == 0
    assert scene.source.retired == set()
    assert scene.source.released == []
    assert set(scene.states().values()) == {"draining"}
    scene.leave("resize/a")
    scene.turn()
    scene.leave("resize/b")
    scene.turn()
    assert scene.states() == {}
    assert {cause.value for cause in pool.counters.deaths} == {"drained"}


def test_a_worker_that_vanished_is_wanted_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ExternalRuntime(), a_pool(least=2, runtime="external"))
    scene.turn()
    scene.come("resize/a", "resize/b")
    assert scene.turn() == (2, 2)
    scene.leave("resize/a")
    with capture_logs() as logs:
        assert scene.turn() == (1, 2)
    assert [entry["event"] for entry in logs if entry["event"].startswith("worker.")] == [
        events.WORKER_LEFT,
        events.WORKER_EXPECTED,
    ]
    scene.come("resize/c")
    assert scene.turn() == (2, 2)


def test_more_workers_than_the_pool_may_have_are_too_many(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ExternalRuntime(), a_pool(most=2, runtime="external"))
    scene.come(*[f"resize/{name}" for name in "abcde"])
    for name in "abcde":
        scene.hold(f"resize/{name}", f"t-{name}")
    scene.source.ready = 50
    scene.source.age_seconds = 60.0
    scene.turn()
    assert scene.turn() == (2, 2)
    assert sorted(scene.states().values()) == ["busy", "busy", "draining", "draining", "draining"]


def test_a_stop_leaves_them_alone_and_waits_for_nobody(scene: Scene) -> None:
    scene.come("resize/a")
    scene.turn()
    assert scene.reconciler.workers == {}
    scene.reconciler.drain_all(why="the supervisor stops")
    scene.reconciler.kill_all(why="asked twice to stop")
    assert scene.states() == {"resize/a": "idle"}


def test_the_next_supervisor_finds_them_and_keeps_expecting_who_was_wanted(scene: Scene) -> None:
    now = scene.clock.monotonic()
    roster = [
        WorkerHandle("resize/a", "resize", "external:resize/a", scene.pool.digest(), now),
        WorkerHandle("resize-9", "resize", "external:?resize-9", scene.pool.digest(), now),
    ]
    scene.reconciler.adopt_own(roster)
    scene.source.ready = 1
    assert scene.turn()[0] == 2
    assert scene.source.released == []
    scene.come("resize/a", "resize/b")
    scene.turn()
    assert scene.states() == {"resize/a": "idle", "resize/b": "idle"}


def test_a_pool_that_is_gone_is_forgotten_at_once(scene: Scene) -> None:
    scene.come("resize/a")
    scene.turn()
    scene.reconciler.set_pools({})
    assert scene.reconciler.pools == {}


def test_a_pool_that_becomes_our_own_forgets_whom_others_started(scene: Scene) -> None:
    scene.come("resize/a")
    scene.turn()
    scene.reconciler.set_pools({"resize": a_pool()})
    assert scene.states() == {}


def test_while_the_queue_is_away_nothing_changes(scene: Scene) -> None:
    scene.come("resize/a")
    scene.hold("resize/a", "t")
    scene.turn()
    scene.source.is_down = True
    assert scene.turn(60.0) == (1, 1)
    assert scene.states() == {"resize/a": "busy"}


def test_a_dry_run_expects_nobody(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ExternalRuntime(), a_pool(runtime="external", dry_run=True))
    scene.source.ready = 1
    scene.turn()
    scene.turn()
    assert scene.states() == {}


ASKS_ALWAYS = Monotonic(math.inf)


def starts(scene: Scene) -> Iterator[tuple[int, int]]:
    """A burst, its end, and the quiet after it; workers start two turns after they are wanted."""
    come: Callable[[list[str]], None]
    if isinstance(scene.runtime, FakeRuntime):
        fake = scene.runtime

        def come(workers: list[str]) -> None:
            scene.source.seen.update(workers)
            scene.source.asked_at.update(dict.fromkeys(workers, ASKS_ALWAYS))

        def wanted() -> list[str]:
            return [name for name in fake.live if name not in scene.source.seen]

        def end() -> None:
            for verb, worker in fake.calls:
                if verb in {"drain", "kill"} and worker in fake.live:
                    fake.end(worker, now=scene.clock.monotonic(), code=0)
            scene.reconciler.reap()
    else:

        def come(workers: list[str]) -> None:
            scene.come(*workers)

        def wanted() -> list[str]:
            count = sum(
                1 for w in scene.reconciler.pools["resize"].fleet.workers.values() if w.ref.startswith("external:?")
            )
            return [f"resize/{scene.made - n}" for n in range(count)]

        def end() -> None:
            scene.leave(*[name for name, state in scene.states().items() if state == "draining"])

    scene.source.ready, scene.source.age_seconds = 60, 25.0
    yield scene.turn()
    yield scene.turn()
    come(wanted())
    yield scene.turn()
    for number, worker in enumerate(sorted(scene.source.seen)):
        scene.hold(worker, f"t{number}")
    scene.source.ready = 0
    yield scene.turn()
    scene.source.held.clear()
    for _ in range(300):
        yield scene.turn()
        end()


def test_decisions_are_the_same_as_over_processes_of_our_own(tmp_path: Path) -> None:
    settings = {"spawn_parallelism": 8, "slo": 30.0}
    folder = tmp_path / "ours"
    folder.mkdir()
    known = {"memory_bytes": 1, "cores": 0.0, "start_seconds": None}  # so that nobody has to be tried
    StateDir(folder).write_usage({"appetites": {"resize": known}})
    ours = Scene(folder, FakeRuntime(), a_pool(**settings))
    theirs = Scene(tmp_path / "theirs", ExternalRuntime(), a_pool(runtime="external", **settings))
    told = list(starts(theirs))
    assert told == list(starts(ours))
    assert max(target for _, target in told) >= 2
    assert told[-1] == (0, 0)
