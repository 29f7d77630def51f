"""What bears on a pool's size beside its work, as a supervisor finds it: over turns, orders, hours and restarts."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.capacity.allocation import HostCapacity
from orchestrator.capacity.host import HostMeter
from orchestrator.config.overrides import Expiry, FinishOverride, Moment, Overrides, ScaleOverride
from orchestrator.config.pools import PoolSpec
from orchestrator.runtimes.procfs import boot
from orchestrator.scaling.replay import replayed
from orchestrator.state.decisions import pool_record
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.conditions import ConditionsTracker
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage as PlainStage

MIB = 2**20
AMPLE = HostCapacity(64 * 2**30, 60 * 2**30, 1_000.0, 1_000.0)


class StillHost(HostMeter):
    """A host that is as a test says."""

    def __init__(self, host: HostCapacity) -> None:
        self.host = host

    def measure(self, *, now: Monotonic) -> HostCapacity:
        return self.host


@dataclass
class Stage(PlainStage):
    """A reconciler between fakes; `restart` begins anew with what was kept."""

    host: StillHost = field(default_factory=lambda: StillHost(AMPLE))

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, *pools: PoolSpec) -> None:
        self.reconciler = self.made(ConditionsTracker(self.files, clock=self.clock, host=self.host))
        self.runtime.left_running = list(self.runtime.live.values())
        self.set_pools(*pools)
        self.reconciler.adopt_own([])

    def turn(self, *, after: float = 5.0) -> None:
        """Workers that were asked to finish do so, and all others are seen."""
        for worker in [worker for verb, worker in self.runtime.calls if verb == "drain"]:
            if worker in self.runtime.live:
                self.runtime.end(worker, now=Monotonic(self.clock.monotonic() + after), code=0)
        self.source.seen.update(self.runtime.live)
        PlainStage.turn(self, after=after)

    def size(self, name: str = "resize") -> int:
        return len(self.reconciler.pools[name].fleet.alive)

    def order(self, orders: Overrides, name: str = "resize") -> None:
        self.files.change_overrides(name, lambda _: orders)

    def until(self, seconds: float) -> Expiry:
        return Expiry.after(seconds, Moment(self.clock.wall_seconds(), self.clock.monotonic(), boot()))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with capture_logs() as logs:
        yield Stage(StateDir(tmp_path), logs)


def test_a_pool_scaled_by_hand_has_that_size_until_the_time_is_over(stage: Stage) -> None:
    stage.set_pools(a_pool(most=3, churn=0))
    stage.turn()
    stage.order(Overrides(ScaleOverride(5, stage.until(60))))
    stage.turn(after=0.5)
    stage.turn()
    assert stage.size() == 5
    assert stage.logged(events.POOL_DECIDED)[0]["why"] == "at least min 5 (scaled to 5 by hand)"
    assert stage.logged(events.POOL_DECIDED)[0]["notes"] == ["scaled to 5 by hand, for 60 s more"]
    for _ in range(5):
        stage.turn()
    assert stage.size() == 5
    for _ in range(20):
        stage.turn()
    assert stage.size() == 0


def test_a_pool_scaled_to_nothing_stays_empty_though_work_waits(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.order(Overrides(ScaleOverride(0, stage.until(3_600))))
    stage.source.ready, stage.source.age_seconds = 50, 20.0
    for _ in range(3):
        stage.turn()
    assert stage.runtime.calls == []
    assert stage.logged(events.POOL_DECIDED)[0]["limits"] == ["max is 0 (scaled to 0 by hand)"]


def test_a_window_without_workers_shuts_a_pool_whatever_waits_and_why_says_so(stage: Stage) -> None:
    window = {"cron": "* * * * *", "for": "1h", "workers": {"max": 0}}
    stage.set_pools(a_pool(least=1, schedule=[window]))
    stage.source.ready, stage.source.age_seconds = 50, 20.0
    for _ in range(3):
        stage.turn()
    assert stage.runtime.calls == []
    told = stage.logged(events.POOL_DECIDED)[0]
    assert (told["target"], told["limits"]) == (0, ["max is 0 (schedule * * * * *)"])
    assert told["notes"] == ["schedule * * * * *: min 0, max 0"]


def test_busy_workers_beyond_the_size_by_hand_finish_first(stage: Stage) -> None:
    stage.set_pools(a_pool(least=3))
    stage.turn()
    stage.turn()
    stage.source.held = {worker: ["t"] for worker in stage.runtime.live}
    stage.turn()
    stage.order(Overrides(ScaleOverride(1, stage.until(600))))
    stage.turn()
    assert {verb for verb, _ in stage.runtime.calls} == {"spawn"}
    assert len(stage.source.retired) == 2


def test_an_order_survives_a_restart(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.order(Overrides(ScaleOverride(2, stage.until(600))))
    stage.turn()
    assert stage.size() == 2
    stage.restart(a_pool())
    stage.turn()
    assert stage.size() == 2
    stage.clock.advance(600)
    stage.turn()
    stage.turn(after=60)
    assert stage.size() == 0


def test_a_pause_by_hand_holds_and_says_so(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.order(Overrides(paused="up"))
    stage.source.ready = 5
    stage.turn()
    assert stage.size() == 0
    assert stage.logged(events.POOL_DECIDED)[0]["limited_by"] == ["paused"]
    stage.order(Overrides())
    stage.turn()
    assert stage.size() == 1


def test_what_was_requested_is_told_once(stage: Stage) -> None:
    stage.set_pools(a_pool())
    stage.order(Overrides(paused="both"))
    for _ in range(3):
        stage.turn()
    asked = [entry for entry in stage.logs if entry["event"] == events.POOL_OVERRIDDEN]
    assert [(entry["pool"], entry["overrides"]) for entry in asked] == [("resize", {"paused": "both"})]


def test_orders_that_cant_be_read_change_nothing(stage: Stage) -> None:
    stage.set_pools(a_pool())
    (stage.files.path / "orders.json").write_text("{")
    stage.turn()
    assert [entry["event"] for entry in stage.logs] == [events.STATE_DISCARDED]


def test_a_schedule_opens_and_closes_while_turns_go_on(stage: Stage) -> None:
    # The clock begins at 2023-11-14 22:13:20 UTC.
    window = {"cron": "15 22 * * *", "for": "2m", "workers": {"min": 2}}
    stage.set_pools(a_pool(schedule=[window], churn=0))
    sizes = []
    for _ in range(30):
        stage.turn(after=10)
        sizes.append(stage.size())
    assert sizes[:9] == [0] * 9
    assert sizes[10:21] == [2] * 11
    assert sizes[-1] == 0
    assert stage.logged(events.POOL_DECIDED)[0]["why"] == "at least min 2 (schedule 15 22 * * *)"


def test_a_backlog_is_planned_to_be_done_by_the_time_that_was_requested(stage: Stage) -> None:
    stage.set_pools(a_pool(most=100, slo="6h"))
    stage.source.ready = 8
    stage.turn()
    assert stage.size() == 1
    stage.order(Overrides(finish_by=FinishOverride(stage.until(20))))
    stage.turn()
    assert stage.logged(events.POOL_DECIDED)[-1]["rule"] == "finish_by"
    assert stage.size() > 1


def test_a_dry_run_decides_and_records_but_never_acts(stage: Stage) -> None:
    stage.set_pools(a_pool(dry_run=True))
    stage.source.ready, stage.source.age_seconds = 5, 20.0
    for _ in range(4):
        stage.turn()
    assert stage.runtime.calls == []
    (told,) = stage.logged(events.POOL_DECIDED)
    assert told["target"] == stage.reconciler.pools["resize"].decision.target  # type: ignore[union-attr]
    assert "dry run: no worker is started or stopped" in told["notes"]


def test_a_full_host_holds_a_pool_back_and_says_what_is_scarce(stage: Stage) -> None:
    stage.host.host = HostCapacity(1024 * MIB, 160 * MIB, 8.0, 8.0)
    stage.set_pools(a_pool(least=6))
    stage.turn()
    assert stage.size() == 2  # of 64 MiB each, as nothing is known of them
    told = stage.logged(events.POOL_DECIDED)[0]
    assert told["limited_by"] == ["host_headroom"]
    assert told["limits"] == ["the host has room for 2 more (160 of 1,024 MiB are free, and one worker takes 64 MiB)"]
    assert told["would_be_without_guards"] == 6


def test_pools_of_one_host_share_its_room(stage: Stage) -> None:
    stage.host.host = HostCapacity(4096 * MIB, 640 * MIB, 8.0, 8.0)
    stage.runtime.memory_bytes = 0
    stage.set_pools(a_pool("a", least=8, spawn_parallelism=8), a_pool("b", least=8, spawn_parallelism=8))
    stage.turn()
    assert (stage.size("a"), stage.size("b")) == (4, 4)
    stage.turn()
    assert (stage.size("a"), stage.size("b")) == (4, 4)


def grown(stage: Stage, *, cores: float = 0.0, least: int = 0) -> list[int]:
    """The sizes, each quarter of a second, of a new pool with much to do; its busy workers take so many cores each."""
    stage.set_pools(a_pool(least=least, most=12, spawn_parallelism=12))
    stage.host.host = HostCapacity(64 * 2**30, 60 * 2**30, 2.0, 2.0)
    stage.source.ready, stage.source.age_seconds = 150, 18.0
    sizes = []
    for _ in range(24):
        stage.turn(after=0.25)
        sizes.append(stage.size())
        for worker in stage.source.held:
            stage.runtime.cpu_seconds[worker] = stage.runtime.cpu_seconds.get(worker, 0.0) + 0.25 * cores
        stage.source.held = {worker: ["t"] for worker in stage.runtime.live}
        stage.host.host = HostCapacity(64 * 2**30, 60 * 2**30, 2.0, max(0.0, 2.0 - cores * len(stage.source.held)))
    return sizes


def test_a_new_pool_is_tried_on_as_many_workers_as_there_are_cores_for_a_second(stage: Stage) -> None:
    sizes = grown(stage, cores=0.01)
    assert sizes[:4] == [2] * 4
    assert min(sizes[8:]) > 2  # with two workers half a second of each is enough
    unknown = "starting with 2 until the first worker's memory and CPU use is known"
    assert stage.logged(events.POOL_DECIDED)[0]["limits"] == [unknown]


def test_a_new_pool_of_tasks_that_compute_has_a_core_for_each_worker(stage: Stage) -> None:
    assert grown(stage, cores=1.0) == [2] * 24
    stage.reconciler.keep_usage()
    assert stage.files.read_usage()["appetites"]["resize"]["cores"] == pytest.approx(1.0)  # type: ignore[index]


def test_a_new_pool_whose_workers_nobody_can_measure_is_not_held_for_ever(stage: Stage) -> None:
    stage.runtime.is_unreported = True
    sizes = grown(stage)
    assert sizes[:12] == [2] * 12  # for three seconds of work
    assert min(sizes[-4:]) > 2


def test_a_pool_that_was_seldom_looked_at_is_tried_all_the_same(stage: Stage) -> None:
    stage.host.host = HostCapacity(64 * 2**30, 60 * 2**30, 2.0, 2.0)
    stage.set_pools(a_pool(slo="10m"))
    stage.source.ready, stage.source.age_seconds = 1, 5.0
    stage.turn()
    stage.source.held = {worker: ["t"] for worker in stage.runtime.live}
    stage.turn()
    stage.turn()  # busy for longer than it takes to measure it, and measured for the first time
    room = stage.reconciler.pools["resize"].conditions.allocation
    assert room is not None
    assert (room.workers, room.scarce) == (1, "unknown")


def test_a_min_is_had_though_nobody_knows_what_a_worker_takes(stage: Stage) -> None:
    assert grown(stage, cores=1.0, least=5)[0] == 5


def test_room_goes_to_the_higher_priority_first(stage: Stage) -> None:
    stage.host.host = HostCapacity(4096 * MIB, 640 * MIB, 8.0, 8.0)
    first, second = (a_pool(name, least=6, spawn_parallelism=8, priority=n) for n, name in enumerate("ab"))
    stage.set_pools(first, second)
    stage.turn()
    assert (stage.size("a"), stage.size("b")) == (2, 6)


def test_under_memory_pressure_one_idle_worker_goes_per_turn(stage: Stage) -> None:
    stage.set_pools(a_pool(least=4, churn="1h"))
    stage.turn()
    stage.turn()
    stage.set_pools(a_pool(least=0, churn="1h"))
    stage.host.host = HostCapacity(1024 * MIB, 30 * MIB, 8.0, 8.0)
    sizes = []
    for _ in range(3):
        stage.turn()
        sizes.append(stage.size())
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 1


def test_a_budget_is_spent_and_kept_across_a_restart(stage: Stage) -> None:
    pool = a_pool(least=4, budget="24h/day")
    stage.set_pools(pool)
    stage.turn()
    stage.reconciler.keep_usage()
    kept = stage.files.read_usage()["budgets"]
    assert kept["pools"]["resize"]["worker_seconds"] == 86_400  # type: ignore[index]
    stage.clock.advance(3_600)  # nobody looks; the workers are there all the time
    stage.restart(pool)
    stage.turn(after=0)
    stage.reconciler.keep_usage()
    kept = stage.files.read_usage()["budgets"]
    assert kept["pools"]["resize"]["worker_seconds"] == pytest.approx(86_400 - 3 * 3_600, abs=60)  # type: ignore[index]


def test_with_its_budget_spent_a_pool_grows_no_further(stage: Stage) -> None:
    pool = a_pool(most=8, budget="24h/day")
    stage.set_pools(pool)
    stage.turn()
    usage = {"at": stage.clock.wall_seconds(), "pools": {"resize": {"worker_seconds": -1.0, "state": "spent"}}}
    stage.files.write_usage({"budgets": usage, "appetites": {}})
    stage.restart(pool)
    stage.source.ready, stage.source.age_seconds = 50, 20.0
    stage.turn(after=0)
    assert "budget" in stage.logged(events.POOL_DECIDED)[-1]["limited_by"]


def test_a_usage_file_that_cant_be_read_is_told_and_passed_over(stage: Stage) -> None:
    stage.files.write_usage({"budgets": [], "appetites": {}})
    stage.restart(a_pool())
    stage.turn()
    stage.turn()
    assert [entry["event"] for entry in stage.logs] == [events.STATE_DISCARDED]


def test_every_change_has_a_record_that_makes_the_same_decision_again(stage: Stage) -> None:
    stage.set_pools(a_pool(most=6))
    for ready, age in ((1, 0.0), (40, 9.0), (90, 25.0), (0, 0.0), (0, 0.0)):
        stage.source.ready, stage.source.age_seconds = ready, age
        stage.turn()
        stage.turn(after=30)
    decisions, replays = stage.files.read_decisions(limit=100), stage.files.read_replays(limit=100)
    assert len(decisions) == len(replays) == len(stage.logged(events.POOL_DECIDED)) >= 3
    for decision, record in zip(decisions, replays, strict=True):
        assert (decision["at"], decision["target"]) == (record["at"], record["target"])
        again = replayed(record["inputs"])
        assert again.target == decision["target"]
        assert json.loads(json.dumps(again.record())) == {k: v for k, v in decision.items() if k != "at"}


class RunningClock(ManualMonotonicClock):
    """A clock that goes on with each reading, as that of a busy host does."""

    def wall_seconds(self) -> float:
        self.advance(0.5)
        return super().wall_seconds()


def test_a_decision_and_its_inputs_are_found_together_on_a_busy_host(stage: Stage) -> None:
    busy = PlainStage(stage.files, stage.logs, clock=RunningClock())
    busy.set_pools(a_pool(most=6))
    busy.source.ready, busy.source.age_seconds = 40, 9.0
    busy.turn()
    record = pool_record(busy.files, "resize", at=None, last=1, full=True)
    assert record.decisions
    assert record.inputs is not None


def test_an_idle_pool_leaves_no_record(stage: Stage) -> None:
    stage.set_pools(a_pool(), replace_name(a_pool(least=1)))
    for _ in range(10):
        stage.turn()
    assert len(stage.logged(events.POOL_DECIDED)) == 1


def replace_name(pool: PoolSpec) -> PoolSpec:
    return pool.model_copy(update={"name": "other"})


def test_instants_are_not_mixed_up() -> None:
    until = Expiry.after(60, Moment(1_000.0, 50.0, "a"))
    assert replace(until, boot="b").left_seconds(Moment(1_030.0, 9_999.0, "a")) == 30.0
