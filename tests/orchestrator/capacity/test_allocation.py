"""What a host has room for, and who gets it; a budget of worker-hours; what workers take."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.capacity.allocation import MOST_AT_A_TIME, CapacityDemand, HostCapacity, WorkerUsage, allocate
from orchestrator.capacity.worker_usage import WorkerUsages
from orchestrator.config.budget import Budget, full_budget
from orchestrator.runtime import Usage
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_worker

GIB = 2**30
MIB = 2**20


def a_host(*, free: float = 8 * GIB, free_cores: float = 8.0) -> HostCapacity:
    return HostCapacity(16 * GIB, free, 8.0, free_cores)


def a_claim(
    pool: str = "a", *, alive: int = 0, more: int = 10, cores: float | None = None, **given: object
) -> CapacityDemand:
    memory = given.pop("memory", 100 * MIB)
    return CapacityDemand(pool, alive, alive + more, WorkerUsage(memory, cores), **given)  # type: ignore[arg-type]


def granted(host: HostCapacity, *claims: CapacityDemand) -> dict[str, int]:
    return {name: room.workers for name, room in allocate(host, claims).items()}


# Of 1 GiB that is free 870 MiB are given away: 8 workers of 100 MiB.
def test_memory_that_is_free_bounds_the_workers_more() -> None:
    room = allocate(a_host(free=GIB), [a_claim(alive=3)])["a"]
    assert (room.workers, room.scarce) == (8, "memory")
    assert room.why == "1,024 of 16,384 MiB are free, and one worker takes 100 MiB"


def test_what_starting_workers_will_still_take_is_promised() -> None:
    assert granted(a_host(free=GIB), a_claim(alive=3, starting=3, promised_bytes=300 * MIB)) == {"a": 5}


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        pytest.param(2.0, 2, id="a core for each"),
        pytest.param(1.6, 2, id="more than half of a core"),
        pytest.param(1.4, 1, id="less than half of one"),
    ],
)
def test_cores_that_are_free_bound_the_workers_more(free: float, expected: int) -> None:
    room = allocate(a_host(free_cores=free), [a_claim(alive=1, cores=1.0)])["a"]
    assert (room.workers, room.scarce) == (expected, "cpu")
    assert room.why == f"{free} of 8 cores are free, and one worker takes 1.0"


def test_until_it_is_known_what_a_worker_takes_there_are_no_more_than_so_many() -> None:
    room = allocate(a_host(), [a_claim(alive=1, untried=2)])["a"]
    assert (room.workers, room.scarce) == (1, "unknown")
    assert room.why == "starting with 2 until the first worker's memory and CPU use is known"
    assert granted(a_host(), a_claim(alive=1, more=1, untried=2)) == {"a": 1}
    assert granted(a_host(), a_claim(alive=5, untried=2)) == {"a": 0}


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        pytest.param(a_claim(alive=1, cores=1.0), 0, id="one-more-has-no-core"),
        pytest.param(a_claim(alive=0, cores=1.0), 1, id="but-a-pool-is-not-denied-its-first"),
        pytest.param(a_claim(alive=1, cores=0.09), 10, id="workers-that-wait-for-something-else"),
        pytest.param(a_claim(alive=1), 10, id="nothing-is-known-yet"),
    ],
)
def test_a_host_without_a_free_core(claim: CapacityDemand, expected: int) -> None:
    assert granted(a_host(free_cores=0.0), claim) == {"a": expected}


def test_a_host_without_memory_denies_even_the_first() -> None:
    assert granted(a_host(free=GIB / 16), a_claim()) == {"a": 0}


def test_equals_share_equally_counting_what_they_have() -> None:
    assert granted(a_host(free=GIB), a_claim("a"), a_claim("b")) == {"a": 4, "b": 4}
    assert granted(a_host(free=GIB), a_claim("a", alive=6), a_claim("b")) == {"a": 1, "b": 7}
    assert granted(a_host(free=GIB), a_claim("a", memory=200 * MIB), a_claim("b")) == {"a": 2, "b": 4}


def test_what_one_does_not_want_is_left_to_the_others() -> None:
    assert granted(a_host(free=GIB), a_claim("a", more=1), a_claim("b"), a_claim("c", more=0)) == {
        "a": 1,
        "b": 7,
        "c": 0,
    }


def test_a_higher_priority_is_served_first() -> None:
    first, second = a_claim("a", more=6), a_claim("b", more=6, priority=1)
    assert granted(a_host(free=GIB), first, second) == {"a": 2, "b": 6}


def test_under_pressure_one_pool_yields_and_nobody_grows() -> None:
    pressed = a_host(free=GIB / 2)
    rooms = allocate(pressed, [a_claim("a", alive=9, idle=2), a_claim("b", alive=9, idle=4, priority=-1), a_claim("c")])
    assert [name for name, room in rooms.items() if room.is_to_yield] == ["b"]
    assert {room.workers for room in rooms.values()} == {0}


claims = st.builds(
    lambda pool, alive, more, memory, cores, priority: CapacityDemand(
        pool, alive, alive + more, WorkerUsage(memory * MIB, cores), priority=priority
    ),
    st.sampled_from("abcdef"),
    st.integers(0, 20),
    st.integers(0, 2 * MOST_AT_A_TIME),
    st.integers(1, 4096),
    st.one_of(st.none(), st.floats(0, 4)),
    st.integers(-2, 2),
)


@given(st.lists(claims, unique_by=lambda claim: claim.pool), st.floats(0, 16), st.floats(0, 8))
def test_no_more_is_given_away_than_is_free_and_nobody_gets_more_than_wanted(
    wanted: list[CapacityDemand], free_gib: float, free_cores: float
) -> None:
    host = a_host(free=free_gib * GIB, free_cores=free_cores)
    rooms = allocate(host, wanted)
    memory = sum(rooms[c.pool].workers * c.usage.memory_bytes for c in wanted)
    beyond_first = [c for c in wanted if c.alive and (c.usage.cores or 0) >= 0.1]
    assert memory <= 0.85 * host.free_memory_bytes + 1
    taken = sum(rooms[c.pool].workers * (c.usage.cores or 0) for c in beyond_first)
    assert taken <= free_cores + max((c.usage.cores or 0 for c in beyond_first), default=0.0) / 2 + 1e-6
    for claim in wanted:
        room = rooms[claim.pool]
        assert 0 <= room.workers <= claim.wanted - claim.alive
        assert room.scarce or room.workers == min(MOST_AT_A_TIME, claim.wanted - claim.alive)


class TestBudget:
    """24 worker-hours a day are one worker, always."""

    def test_it_fills_with_time_up_to_a_day_and_no_further(self) -> None:
        assert full_budget(24).worker_seconds == 86_400
        assert full_budget(24).after(0, elapsed_seconds=1e9, hours_per_day=24) == full_budget(24)
        assert full_budget(24).after(3, elapsed_seconds=100, hours_per_day=24).worker_seconds == 86_400 - 200

    def test_it_is_spent_then_overdrawn_and_needs_time_to_recover(self) -> None:
        budget = Budget(100.0)
        seen = []
        for workers, seconds in ((3, 49), (3, 1), (0, 60), (0, 900), (101, 50), (0, 3600), (0, 900)):
            budget = budget.after(workers, elapsed_seconds=seconds, hours_per_day=24)
            seen.append(budget.state)
        assert seen == ["left", "spent", "spent", "left", "overdrawn", "overdrawn", "left"]

    def test_a_debt_has_a_bottom(self) -> None:
        deep = Budget(0.0).after(1_000, elapsed_seconds=1e6, hours_per_day=24)
        assert deep == Budget(-3600, "overdrawn")

    @given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 10_000)), max_size=50), st.floats(0.1, 1e4))
    def test_it_stays_within_its_bounds_whatever_happens(self, steps: list[tuple[int, float]], hours: float) -> None:
        budget = full_budget(hours)
        for workers, seconds in steps:
            budget = budget.after(workers, elapsed_seconds=seconds, hours_per_day=hours)
            assert -150 * hours - 1e-6 <= budget.worker_seconds <= 3600 * hours + 1e-6
        assert Budget.from_json(json.loads(json.dumps(budget.to_json()))).state == budget.state


class TestAppetites:
    def learned(self, *looks: dict[str, tuple[float, float]], state: str = "busy") -> WorkerUsage:
        usages = WorkerUsages()
        fleet = a_fleet(*(a_worker(name, state) for name in looks[0]), pool="a")  # type: ignore[arg-type]
        for turn, look in enumerate(looks):
            usage = {name: Usage(int(memory * MIB), cpu) for name, (memory, cpu) in look.items()}
            usages.learn([fleet], usage, now=Monotonic(NOW + 5 * turn))
        return usages.of("a")

    def test_nearly_all_workers_need_no_more(self) -> None:
        look = {f"w{n}": (10.0 * n, 0.0) for n in range(1, 21)}
        assert self.learned(look).memory_bytes == 190 * MIB

    def test_memory_is_quick_to_rise_and_slow_to_fall(self) -> None:
        assert self.learned({"w": (100, 0)}, {"w": (300, 0)}).memory_bytes == 300 * MIB
        assert self.learned({"w": (300, 0)}, {"w": (100, 0)}).memory_bytes == 280 * MIB

    @pytest.mark.parametrize(
        ("cpu", "waited", "cores"),
        [
            pytest.param(0.25, 4.75, 1.0, id="a thread that always computes, on cores crowded twentyfold"),
            pytest.param(1.0, 19.0, 4.0, id="four of them"),
            pytest.param(0.2, 0.8, 0.2 / 4.2, id="a thread that mostly sleeps"),
            pytest.param(2.5, 0.0, 0.5, id="cores that nobody else wants"),
        ],
    )
    def test_cores_are_what_a_worker_would_take_if_it_never_waited_for_one(
        self, cpu: float, waited: float, cores: float
    ) -> None:
        usages, fleet = WorkerUsages(), a_fleet(a_worker("w", "busy"), pool="a")
        usages.learn([fleet], {"w": Usage(MIB, 10.0, 7.0)}, now=NOW)
        usages.learn([fleet], {"w": Usage(MIB, 10.0 + cpu, 7.0 + waited)}, now=Monotonic(NOW + 5))
        assert usages.of("a").cores == pytest.approx(cores)

    def test_less_than_a_second_of_work_says_little(self) -> None:
        usages, fleet = WorkerUsages(), a_fleet(a_worker("w1", "busy"), a_worker("w2", "busy"), pool="a")
        seen = []
        for look in range(4):
            usage = {name: Usage(MIB, 0.2 * look) for name in fleet.workers}
            usages.learn([fleet], usage, now=Monotonic(NOW + 0.25 * look))
            seen.append(usages.of("a").cores)
        assert seen == [None, None, pytest.approx(0.8), pytest.approx(0.8)]

    @pytest.mark.parametrize(
        ("cpu", "took", "seconds"),
        [pytest.param(0.35, 2.0, 0.35, id="it waited"), pytest.param(1.2, 0.4, 0.4, id="it has worked since")],
    )
    def test_a_start_takes_what_a_worker_has_used_when_it_is_up(self, cpu: float, took: float, seconds: float) -> None:
        worker = replace(a_worker("w", "busy", spawned_at=NOW - 9), started_at=Monotonic(NOW - 9 + took))
        usages, fleet = WorkerUsages(), a_fleet(worker, pool="a")
        usages.learn([fleet], {"w": Usage(MIB, cpu)}, now=NOW)
        usages.learn([fleet], {"w": Usage(MIB, cpu + 5)}, now=Monotonic(NOW + 5))
        assert usages.of("a").start_seconds == pytest.approx(seconds)
        assert usages.of("new").start_seconds == pytest.approx(seconds)

    def test_cores_are_what_busy_workers_take(self) -> None:
        assert self.learned({"w": (1, 10)}, {"w": (1, 12.5)}).cores == pytest.approx(0.5)
        assert self.learned({"w": (1, 10)}).cores is None
        assert self.learned({"w": (1, 10)}, {"w": (1, 12.5)}, state="idle").cores is None

    def test_workers_that_start_tell_nothing(self) -> None:
        assert self.learned({"w": (900, 0)}, state="starting") == WorkerUsage()

    @pytest.mark.parametrize(
        ("forked", "usage"),
        [
            pytest.param((), (0.875, None), id="executed ones, on average"),
            pytest.param(("w1",), (1.5, 0.25), id="each kind by itself"),
            pytest.param(("w1", "w2"), (None, 0.25), id="forked ones, of which one has computed since"),
        ],
    )
    def test_the_cpu_of_starts_is_learned_by_kind(
        self, forked: tuple[str, ...], usage: tuple[float | None, float | None]
    ) -> None:
        taken = {"w1": (0.25, 0.5), "w2": (9.0, 1.5)}  # CPU seconds so far, and what the start took
        usages = WorkerUsages()
        workers = [
            a_worker(
                name,
                spawned_at=NOW - 50,
                started_at=Monotonic(NOW - 50 + took),
                is_forked=name in forked,
            )
            for name, (_, took) in taken.items()
        ]
        usages.learn(
            [a_fleet(*workers, pool="a")],
            {name: Usage(MIB, cpu) for name, (cpu, _) in taken.items()},
            now=NOW,
        )
        learned = usages.of("a")
        assert (learned.start_seconds, learned.fork_seconds) == usage
        assert usages.is_start_unknown("a", forked=False) == (usage[0] is None)
        assert usages.is_start_unknown("a", forked=True) == (usage[1] is None)

    def test_memory_is_that_of_each_kind_so_that_the_first_worker_does_not_hold_back_the_others(self) -> None:
        usages, forked = WorkerUsages(), a_worker("forked", is_forked=True)
        usages.learn([a_fleet(a_worker("first"), pool="a")], {"first": Usage(300 * MIB, 1.0)}, now=NOW)
        known = usages.of("a")
        assert known.bytes_of(forked=True) == known.bytes_of(forked=False) == 300 * MIB
        usages.learn([a_fleet(forked, pool="a")], {"forked": Usage(8 * MIB, 0.1)}, now=Monotonic(NOW + 5))
        known = usages.of("a")
        assert (known.bytes_of(forked=True), known.bytes_of(forked=False)) == (8 * MIB, 300 * MIB)

    def test_a_new_pool_is_like_the_others(self) -> None:
        usages = WorkerUsages({"a": WorkerUsage(100.0, 1.0), "b": WorkerUsage(300.0)})
        assert usages.of("new") == WorkerUsage(200.0)

    def test_it_survives_a_restart(self) -> None:
        usages = WorkerUsages({"a": WorkerUsage(100.0, 0.25, 0.4, 0.01, 8.0), "b": WorkerUsage(300.0)})
        again = WorkerUsages.from_json(json.loads(json.dumps(usages.to_json())))
        assert (again.of("a"), again.of("b")) == (WorkerUsage(100.0, 0.25, 0.4, 0.01, 8.0), WorkerUsage(300.0))
        of_old = {"a": {"memory_bytes": 100, "cores": 0.25, "start_seconds": 0.4}}
        assert WorkerUsages.from_json(of_old).of("a") == WorkerUsage(100.0, 0.25, 0.4)
        with pytest.raises(ValueError, match="worker usage"):
            WorkerUsages.from_json({"a": {"memory_bytes": "much"}})
        with pytest.raises(ValueError, match="worker usage"):
            WorkerUsages.from_json({"a": {**of_old["a"], "fork_bytes": "few"}})


@pytest.mark.parametrize(
    ("hung", "granted"), [pytest.param(0, 1, id="taken by others"), pytest.param(2, 2, id="taken by workers that hang")]
)
def test_cores_that_workers_that_hang_give_back_are_free_for_those_that_replace_them(hung: int, granted: int) -> None:
    host = HostCapacity(memory_bytes=8e9, free_memory_bytes=4e9, cores=2.0, free_cores=0.1)
    claim = CapacityDemand("resize", 0, 2, WorkerUsage(50e6, 0.9), hung=hung)
    assert allocate(host, [claim])["resize"].workers == granted
