"""Turns over a fake source and a fake runtime: what is done, in which order, and what is told."""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from orchestrator import events
from orchestrator.clock import ManualClock, Monotonic
from orchestrator.config import PoolSpec
from orchestrator.fleet import Memory
from orchestrator.launch import Launch
from orchestrator.metrics import QueueSample
from orchestrator.reconcile import Reconciler
from orchestrator.runtime import WorkerHandle
from orchestrator.state import StateDir
from tests.support.fakes import FakeRuntime, FakeSource
from tests.support.fleet_builders import a_pool


@dataclass
class Stage:
    """A reconciler between fakes, with a clock that a test moves."""

    files: StateDir
    logs: list[EventDict]
    source: FakeSource = field(default_factory=FakeSource)
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    clock: ManualClock = field(default_factory=ManualClock)
    names: int = 0
    leads: bool = True

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            source=self.source,
            runtime=self.runtime,
            clock=self.clock,
            files=self.files,
            launch=Launch("memory:", str(self.files.path), "lock", 60.0),
            identify=self._identify,
            may_act=lambda: self.leads,
        )

    def _identify(self, pool: str) -> str:
        self.names += 1
        return f"{pool}-{self.names}"

    def set_pools(self, *pools: PoolSpec, learned: Mapping[str, object] | None = None) -> None:
        self.reconciler.set_pools({pool.name: pool for pool in pools}, learned=learned)

    def turn(self, *, after: float = 5.0) -> None:
        """Let `after` seconds pass, collect who ended, and do the turns that are due."""
        self.clock.advance(after)
        self.reconciler.reap()
        self.reconciler.turns()

    def with_workers(self, count: int, **settings: object) -> list[str]:
        """A pool whose minimum of workers is up and idle."""
        self.set_pools(a_pool(least=count, spawn_parallelism=count, **settings))
        self.turn()
        names = list(self.runtime.live)
        self.source.seen.update(names)
        self.turn()
        self.runtime.asked.clear()
        return names

    def told(self, event: str) -> list[EventDict]:
        return [entry for entry in self.logs if entry["event"] == event]

    def state_of(self, worker: str) -> str:
        pools = self.reconciler.pools.values()
        return next(pool.fleet.workers[worker].state for pool in pools if worker in pool.fleet.workers)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with capture_logs() as logs:
        yield Stage(StateDir(tmp_path), logs)


def test_a_pool_with_nothing_to_do_stays_empty_and_silent(stage: Stage) -> None:
    stage.set_pools(a_pool())
    for _ in range(5):
        stage.turn()
    assert stage.runtime.asked == []
    assert stage.logs == []


def test_work_for_an_empty_pool_starts_a_worker_and_says_why(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.source.ready = 1
    stage.turn()
    assert stage.runtime.asked == [("spawn", "resize-1")]
    (told,) = stage.told(events.POOL_DECIDED)
    assert (told["current"], told["target"], told["ready"]) == (0, 1, 1)
    assert stage.files.read_decisions(limit=10)[0]["why"] == told["why"]


def test_a_supervisor_whose_lead_ended_while_it_looked_does_not_act(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.source.ready, stage.source.age_seconds = 1, 40.0
    stage.leads = False
    stage.turn()
    assert stage.runtime.asked == []
    stage.leads = True
    stage.turn()
    assert [verb for verb, _ in stage.runtime.asked] == ["spawn"]


def test_a_worker_is_told_all_it_needs(stage: Stage) -> None:
    stage.set_pools(a_pool(least=1, tags=["a", "b"], recycle={"tasks": 100}))
    stage.turn()
    told = stage.runtime.requests["resize-1"].environment
    assert told["TOWLINE_WORKER"] == "resize-1"
    assert told["TOWLINE_TAGS"] == '["a", "b"]'
    assert told["TOWLINE_APP"] == "tasks:app"
    assert told["TOWLINE_RECYCLE"] == '{"tasks": 126}'
    assert told["TOWLINE_STATE_DIR"] == str(stage.files.path)


def test_an_idle_worker_is_fenced_before_it_is_asked_to_finish(stage: Stage) -> None:
    (worker,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=0, churn=0, grace=3600))
    for _ in range(10):
        stage.turn()
    assert stage.source.retired == {worker}
    assert stage.runtime.asked == [("drain", worker)]
    assert stage.told(events.WORKER_RETIRED)[0]["worker"] == worker


def test_a_worker_that_turns_out_to_hold_a_lease_is_not_touched(stage: Stage) -> None:
    (worker,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=0, churn=0))
    for _ in range(10):
        stage.clock.advance(5)
        # It leases between the sample and the fence.
        sample = stage.source.sample
        stage.source.sample = lambda pool, *, workers, now, sample=sample: _then(  # type: ignore[method-assign]
            sample(pool, workers=workers, now=now), lambda: stage.source.held.update({worker: ["t1"]})
        )
        stage.reconciler.turns()
        stage.source.sample = sample  # type: ignore[method-assign]
        stage.source.held.clear()
    assert stage.runtime.asked == []
    assert stage.state_of(worker) == "idle"


def _then(value: QueueSample, act: Callable[[], None]) -> QueueSample:
    act()
    return value


def test_the_leases_of_a_dead_worker_are_given_back_before_anything_else(stage: Stage) -> None:
    dead, _ = stage.with_workers(2)
    stage.source.held[dead] = ["t1", "t2"]
    stage.turn()
    stage.runtime.end(dead, now=stage.clock.monotonic(), signal=signal.SIGKILL, last_lines=["bye"])
    stage.reconciler.reap()
    assert stage.source.released == [dead]
    assert stage.told(events.LEASES_RELEASED)[0]["tasks"] == ["t1", "t2"]
    (death,) = stage.files.read_deaths(limit=10)
    assert (death["worker"], death["cause"], death["signal"]) == (dead, "signalled", 9)
    assert [task["task"] for task in death["held"]] == ["t1", "t2"]  # type: ignore[attr-defined,index]
    assert death["last_lines"] == ["bye"]


def test_a_worker_that_ended_is_replaced_at_once(stage: Stage) -> None:
    dead, _ = stage.with_workers(2)
    stage.runtime.end(dead, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.turn(after=0)
    assert stage.runtime.asked == [("spawn", "resize-3")]


def test_leases_that_could_not_be_given_back_are_given_back_later(stage: Stage) -> None:
    dead, _ = stage.with_workers(2)
    stage.source.held[dead] = ["t1"]
    stage.source.is_down = True
    stage.runtime.end(dead, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.turn()
    assert stage.source.released == []
    stage.source.is_down = False
    stage.turn()
    assert stage.source.released == [dead]


def test_a_pool_whose_last_worker_is_leaving_watches_for_arrivals(stage: Stage) -> None:
    [worker] = stage.with_workers(1)
    assert stage.reconciler.waiting_pools() == []
    [pool] = stage.reconciler.pools.values()
    stage.reconciler.drain_pool(pool, why="a test", now=stage.clock.monotonic())
    assert stage.state_of(worker) == "draining"
    assert [spec.name for spec in stage.reconciler.waiting_pools()] == [pool.name]


def test_a_source_that_is_down_is_told_once_and_nothing_is_let_go(stage: Stage) -> None:
    stage.with_workers(3)
    stage.set_pools(a_pool(least=0, churn=0))
    stage.source.is_down = True
    for _ in range(20):
        stage.turn()
    assert stage.runtime.asked == []
    assert len(stage.told(events.SOURCE_UNAVAILABLE)) == 1
    stage.source.is_down = False
    stage.turn()
    assert len(stage.told(events.SOURCE_RECOVERED)) == 1


def test_a_worker_that_does_not_finish_in_time_is_ended_after_its_grace(stage: Stage) -> None:
    (worker,) = stage.with_workers(1, grace=10)
    stage.source.held[worker] = ["t1"]
    stage.turn()
    stage.set_pools()
    assert stage.runtime.asked == [("drain", worker)]
    stage.turn(after=9)
    assert stage.runtime.asked == [("drain", worker)]
    stage.turn(after=4)
    assert stage.runtime.asked == [("drain", worker), ("kill", worker)]


def test_a_start_that_fails_holds_the_next_one_back(stage: Stage) -> None:
    stage.set_pools(a_pool(least=3))
    stage.runtime.refuses = "no such command: x"
    for _ in range(30):
        stage.turn(after=1)
    failures = stage.told(events.WORKER_SPAWN_FAILED)
    assert 2 <= len(failures) <= 5
    assert failures[0]["error"] == "no such command: x"


def test_a_worker_that_ends_while_it_starts_backs_off(stage: Stage) -> None:
    stage.set_pools(a_pool(least=1))
    spawned = 0
    for _ in range(60):
        stage.turn(after=1)
        for worker in list(stage.runtime.live):
            spawned += 1
            stage.runtime.end(worker, now=stage.clock.monotonic(), code=1)
    assert 3 <= spawned <= 7


def test_a_reload_leaves_pools_that_did_not_change_alone(stage: Stage) -> None:
    stage.with_workers(2)
    before = stage.reconciler.pools["resize"]
    stage.set_pools(a_pool(least=2, spawn_parallelism=2), a_pool("encode"))
    stage.turn()
    assert stage.reconciler.pools["resize"] is before
    assert stage.runtime.asked == []
    assert set(stage.reconciler.pools) == {"resize", "encode"}


def test_a_removed_pool_lets_its_workers_finish_and_is_gone(stage: Stage) -> None:
    workers = stage.with_workers(2)
    stage.set_pools()
    assert stage.runtime.asked == [("drain", worker) for worker in workers]
    for worker in workers:
        stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert stage.reconciler.pools == {}


def test_a_removed_pool_without_workers_is_gone_at_once(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.set_pools()
    assert stage.reconciler.pools == {}


def test_a_pool_that_comes_back_counts_the_workers_that_still_leave(stage: Stage) -> None:
    workers = stage.with_workers(2)
    stage.set_pools()
    stage.set_pools(a_pool(least=2, most=2))
    stage.turn()
    assert ("spawn", "resize-3") not in stage.runtime.asked
    stage.runtime.end(workers[0], now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert ("spawn", "resize-3") in stage.runtime.asked


def test_changed_settings_replace_workers_new_before_old(stage: Stage) -> None:
    (old,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=1, env={"COLOUR": "blue"}))
    stage.turn()
    assert stage.runtime.asked == [("spawn", "resize-2")]
    stage.source.seen.add("resize-2")
    stage.turn()
    assert stage.runtime.asked == [("spawn", "resize-2"), ("drain", old)]
    assert stage.source.retired == {old}


def adopted_worker(stage: Stage, worker: str, *, pool: PoolSpec) -> WorkerHandle:
    handle = WorkerHandle(worker, pool.name, "fake:1", pool.digest(), Monotonic(stage.clock.monotonic() - 100))
    stage.runtime.left_running.append(handle)
    return handle


def test_workers_that_an_earlier_supervisor_left_are_adopted_and_not_touched(stage: Stage) -> None:
    pool = a_pool(least=1)
    left = adopted_worker(stage, "resize-old", pool=pool)
    stage.source.seen.add("resize-old")
    stage.set_pools(pool)
    stage.reconciler.adopt([left])
    stage.turn()
    assert stage.runtime.asked == []
    assert stage.told(events.WORKER_ADOPTED)[0]["worker"] == "resize-old"


def test_adopted_workers_with_other_settings_are_replaced(stage: Stage) -> None:
    adopted_worker(stage, "resize-old", pool=a_pool(env={"COLOUR": "red"}))
    stage.source.seen.add("resize-old")
    stage.set_pools(a_pool(least=1))
    stage.reconciler.adopt(())
    stage.turn()
    assert stage.runtime.asked == [("spawn", "resize-1")]


def test_adopted_workers_of_a_pool_that_is_gone_finish(stage: Stage) -> None:
    adopted_worker(stage, "gone-old", pool=a_pool("gone"))
    stage.set_pools(a_pool())
    stage.reconciler.adopt(())
    assert stage.runtime.asked == [("drain", "gone-old")]


def test_what_an_earlier_supervisor_asked_of_workers_is_not_asked_again(stage: Stage) -> None:
    changed, gone = a_pool(least=2, env={"COLOUR": "red"}), a_pool("gone")
    for name, pool in (
        ("resize-old", changed),
        ("resize-new", a_pool()),
        ("resize-other", changed),
        ("gone-old", gone),
    ):
        adopted_worker(stage, name, pool=pool)
        stage.source.seen.add(name)
    leaves_by = Monotonic(stage.clock.monotonic() + 8.0)
    memories = {
        "resize-old": Memory(replaced_by="resize-new", leaves_by=leaves_by),
        "resize-other": Memory(replaced_by="resize-dead"),
        "gone-old": Memory(leaves_by=leaves_by),
        "resize-dead": Memory(leaves_by=leaves_by),
    }
    stage.set_pools(a_pool(least=2, most=2))
    stage.reconciler.adopt((), memories=memories)
    stage.turn()
    assert stage.runtime.asked == []
    stage.turn()
    assert sorted(stage.runtime.asked) == [("kill", "gone-old"), ("kill", "resize-old")]


def test_leases_of_workers_that_died_unseen_are_given_back(stage: Stage) -> None:
    stage.source.held["resize-lost"] = ["t1"]
    stage.set_pools(a_pool())
    stage.reconciler.adopt([WorkerHandle("resize-lost", "resize", "fake:1", "digest", stage.clock.monotonic())])
    assert stage.source.released == ["resize-lost"]
    (death,) = stage.files.read_deaths(limit=1)
    assert (death["worker"], death["detail"]) == ("resize-lost", "ended while no supervisor was there")


def test_what_was_learned_is_taken_up_again(stage: Stage) -> None:
    stage.set_pools(a_pool())
    state = stage.reconciler.pools["resize"].state
    stage.reconciler.set_pools({})
    stage.set_pools(a_pool("other"), learned={"other": state.to_json()})
    assert stage.reconciler.pools["other"].state == state
    assert stage.told(events.STATE_DISCARDED) == []


def test_what_was_learned_is_left_out_with_a_warning_when_it_makes_no_sense(stage: Stage) -> None:
    stage.set_pools(a_pool(), learned={"resize": {"version": 99}})
    assert stage.told(events.STATE_DISCARDED)[0]["pool"] == "resize"


def test_a_turn_that_fails_is_told_and_the_other_pools_have_theirs(stage: Stage) -> None:
    class Broken(FakeSource):
        def sample(self, pool: PoolSpec, **_: object) -> object:  # type: ignore[override]
            if pool.name == "broken":
                raise RuntimeError("a bug")
            return super().sample(pool, workers=(), now=stage.clock.monotonic())

    stage.source = Broken(ready=1)
    stage.__post_init__()
    stage.set_pools(a_pool("broken"), a_pool("sound"))
    assert stage.reconciler.turns() is False
    assert stage.runtime.asked == [("spawn", "sound-1")]
    assert stage.told(events.TURN_FAILED)[0]["pool"] == "broken"
