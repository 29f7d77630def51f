"""Pools that take the same tasks do the work together: none is started twice for it, and none is left undone."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.deadline import HelperPool
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.replay import recorded, replayed
from orchestrator.scaling.sharing import MAX_SHARERS, SharingPool, helper, sharers
from orchestrator.sources.pull_queue import QueueSource, tags_of
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue
from queue_core.clock import ManualClock
from queue_core.stores import open_store
from queue_core.task import Lease, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_lease, a_pool, a_sample, learn_and_decide
from tests.support.fleet.reconciler_stage import ReconcilerStage

START_SECONDS = 2.0


@dataclass
class Work:
    """Real decisions over a real queue in virtual time: workers that lease, work for so long and delete."""

    stage: ReconcilerStage
    clock: ManualClock
    queue: Queue
    pools: dict[str, PoolSpec]
    held: dict[str, tuple[float, Lease]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    peak: int = 0
    starts: int = 0
    broken: str = ""

    def add(self, count: int, tag: str | None = None, *, seconds: float = 10.0) -> None:
        self.queue.add([NewTask(str(seconds).encode(), tag=tag)] * count)
        self._work()  # whoever is idle waits for it

    def sizes(self) -> dict[str, int]:
        live = [handle.pool for handle in self.stage.runtime.live.values()]
        return {name: live.count(name) for name in self.pools}

    def run(self, seconds: float) -> None:
        """A turn of every pool and half a second of work, in turns."""
        for _ in range(round(2 * seconds)):
            self.stage.turn(after=0.5)
            self.clock.advance(0.5)
            self._work()
            sizes = self.sizes()
            self.peak = max(self.peak, sum(sizes.values()))
        self.starts = sum(verb == "spawn" for verb, _ in self.stage.runtime.calls)

    def _work(self) -> None:
        now, runtime = self.stage.clock.monotonic(), self.stage.runtime
        for worker in [name for name, (until, _) in self.held.items() if until <= now]:
            self.queue.delete(self.held.pop(worker)[1])
        for worker in [name for verb, name in runtime.calls if verb == "drain" and name in runtime.live]:
            if worker not in self.held:
                runtime.end(worker, now=now, code=0)
        for worker, handle in list(runtime.live.items()):
            if handle.pool == self.broken:
                runtime.end(worker, now=now, code=1)
                continue
            if worker in self.held or now - handle.spawned_at < START_SECONDS:
                continue
            for lease in self.queue.lease(worker=worker, tags=tags_of(self.pools[handle.pool])):
                self.held[worker] = (now + float(lease.payload), lease)
                self.waits.append(lease.waited_seconds)

    @property
    def late(self) -> int:
        slo = next(iter(self.pools.values())).slo
        return sum(waited > slo for waited in self.waits)


@pytest.fixture
def work(stage: ReconcilerStage) -> Iterator[Work]:
    clock = ManualClock()
    queues = LocalQueues(QueueService(open_store("memory:"), clock=clock, jitter=lambda: 0.0))
    queues.put_queue(QueueSpec("thumbs", lease_seconds=600))
    stage.source = QueueSource(queues)  # type: ignore[assignment]
    stage.reconciler = stage.made()
    yield Work(stage, clock, queues.queue("thumbs"), {})
    queues.close()


def let(work: Work, *pools: PoolSpec) -> Work:
    work.pools = {pool.name: pool for pool in pools}
    work.stage.set_pools(*pools)
    return work


def a_sharing_pool(name: str, **settings: object) -> PoolSpec:
    return a_pool(name, **{"slo": 10.0, "most": 40, "spawn_parallelism": 40, **settings})  # type: ignore[arg-type]


def stream(work: Work, *, seconds: float, per_second: int = 2, service: float = 4.5) -> int:
    """Tasks that come evenly; what all workers come to, in worker-seconds."""
    cost = 0
    for _ in range(round(seconds)):
        work.add(per_second, seconds=service)
        work.run(1.0)
        cost += sum(work.sizes().values())
    return cost


def test_two_pools_of_the_same_tags_have_no_more_workers_than_one_would(work: Work) -> None:
    let(work, a_sharing_pool("a"), a_sharing_pool("b"))
    stream(work, seconds=100)  # nine at a time
    assert work.late == 0
    assert 9 <= sum(work.sizes().values()) <= work.peak <= 11


def test_a_task_that_meets_two_empty_pools_starts_one_worker(work: Work) -> None:
    let(work, a_sharing_pool("a"), a_sharing_pool("b"))
    work.add(1)
    work.run(20.0)
    assert (work.starts, work.sizes()["b"], work.late) == (1, 0, 0)


def test_what_one_pool_may_not_start_is_started_by_the_next_in_order(work: Work) -> None:
    let(work, a_sharing_pool("a"), a_sharing_pool("b", most=2, priority=1))
    stream(work, seconds=100)
    assert (work.late, work.sizes()["b"]) == (0, 2)
    assert 9 <= sum(work.sizes().values()) <= work.peak <= 11


def test_a_pool_whose_starts_fail_is_not_waited_for(work: Work) -> None:
    let(work, a_sharing_pool("a"), a_sharing_pool("b"))
    work.broken = "a"
    stream(work, seconds=100)
    assert work.sizes()["b"] >= 9
    assert work.queue.stats().ready <= 10


def test_as_the_work_gets_less_the_pool_that_comes_last_is_the_first_to_shrink(work: Work) -> None:
    let(work, a_sharing_pool("a", spawn_parallelism=4), a_sharing_pool("b", spawn_parallelism=4))
    stream(work, seconds=60, per_second=4)
    assert min(work.sizes().values()) >= 1
    assert sum(work.sizes().values()) <= 22
    stream(work, seconds=120, per_second=1, service=2.5)
    starts = work.starts
    stream(work, seconds=60, per_second=1, service=2.5)
    assert (work.late, work.starts - starts) == (0, 0)
    assert work.sizes()["b"] <= 1
    assert work.sizes()["a"] <= 4


@pytest.mark.parametrize("narrow", ["a", "b"])
def test_a_pool_that_takes_some_of_the_tags_of_another_shares_those(work: Work, narrow: str) -> None:
    wide = "b" if narrow == "a" else "a"
    let(work, a_sharing_pool(narrow, tags=["x"]), a_sharing_pool(wide, tags=["x", "y"]))
    for _ in range(100):
        work.add(1, "x", seconds=4.5)
        work.add(1, "y", seconds=4.5)
        work.run(1.0)
    assert work.late == 0
    assert 9 <= work.peak <= 12


def test_work_that_only_one_of_them_takes_is_not_left_to_the_other(work: Work) -> None:
    let(work, a_sharing_pool("a", tags=["x"]), a_sharing_pool("b"))
    work.add(20, "x", seconds=60.0)
    work.run(30.0)
    work.add(5, "y", seconds=1.0)
    work.run(10.0)
    assert [lease for _, lease in work.held.values() if lease.tag == "y"] == []
    assert work.queue.stats().ready == 0
    assert work.waits[-1] <= 10.0


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        pytest.param({}, {}, True, id="any and any"),
        pytest.param({}, {"untagged": True}, True, id="any and untagged"),
        pytest.param({"tags": ["x", "y"]}, {"tags": ["y"]}, True, id="some of its tags"),
        pytest.param({}, {"queue": "other"}, False, id="another queue"),
        pytest.param({"tags": ["x", "y"]}, {"tags": ["y", "z"]}, False, id="each has some of its own"),
        pytest.param({"tags": ["x"]}, {"untagged": True}, False, id="a tag and untagged"),
    ],
)
def test_pools_share_where_one_takes_all_that_the_other_takes(
    one: dict[str, object], other: dict[str, object], is_shared: bool
) -> None:
    found = sharers([a_pool("a", **one), a_pool("b", **other), a_pool("c", queue="third")])  # type: ignore[arg-type]
    assert found == ({"a": ["b"], "b": ["a"]} if is_shared else {})


def a_helper(
    pool: PoolSpec, other: PoolSpec, *, ready: int, others_ready: int, idle: int = 4, busy: int = 0, held: int = 0
) -> HelperPool:
    """The helper that `other` is, whose busy workers hold so many tasks of this pool."""
    fleet, held_by = a_fleet_of(idle=idle, busy=busy), [f"b{number:04}" for number in range(busy)]
    others = a_sample(ages=[1.0] * others_ready, running=[a_lease(worker) for worker in held_by])
    sample = a_sample(ages=[1.0] * ready, running=[a_lease(worker) for worker in [*held_by[:held], "own"]])
    own = SharingPool(pool, a_fleet_of(), sample, PolicyState())
    return helper(own, SharingPool(other, fleet, others, PolicyState()), now=NOW)


def test_of_a_pool_that_takes_more_a_share_is_counted_and_of_one_that_takes_less_no_more_than_waits_there() -> None:
    narrow, wide = a_pool("narrow", tags=["x"]), a_pool("wide")
    assert a_helper(narrow, wide, ready=2, others_ready=8, busy=3, held=1).slots == 2.0
    assert a_helper(narrow, wide, ready=0, others_ready=0, busy=3, held=1).slots == 5.0
    assert a_helper(wide, narrow, ready=8, others_ready=2).can_start(600.0) == 2.0
    assert a_helper(wide, narrow, ready=8, others_ready=2, busy=3, held=3).slots == 5.0
    assert a_helper(wide, a_pool("other"), ready=8, others_ready=8, busy=3, held=3).slots == 7.0


def test_a_decision_says_whose_places_it_counts_and_is_made_again_from_its_record() -> None:
    pool, other = a_pool("a"), a_pool("b")
    conditions = Conditions(helpers=(a_helper(pool, other, ready=4, others_ready=4),))
    sample, fleet = a_sample(ages=[20.0] * 4), a_fleet_of()
    decision, state = learn_and_decide(
        sample, fleet=fleet, spec=pool, state=PolicyState(), now=NOW, conditions=conditions
    )
    assert (decision.target, decision.notes) == (0, ("counts 4 places of pool b, which takes its tasks",))
    record = recorded(sample, fleet, spec=pool, state=state, now=NOW, conditions=conditions)
    assert replayed(json.loads(json.dumps(record))) == decision


def test_of_very_many_pools_of_the_same_tags_some_are_counted() -> None:
    found = sharers([a_pool(f"p{number:03}") for number in range(200)])
    assert found["p199"] == [f"p{number:03}" for number in range(MAX_SHARERS)]
