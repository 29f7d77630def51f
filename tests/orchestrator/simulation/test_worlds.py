"""Twenty worlds at random: nowhere does a pool do far worse than the best of the rules that others use."""

from collections import Counter

import pytest

from tests.bench.worlds import summary
from tests.support.fleet.worlds import a_world, forking, world_result

WORLDS = range(20)


@pytest.mark.parametrize("number", WORLDS)
def test_a_pool_has_nothing_to_regret(number: int) -> None:
    found = world_result(a_world(number))
    assert not found.regrets, found.line


@pytest.mark.parametrize("number", range(0, 20, 2))
def test_nor_has_one_whose_workers_are_forked(number: int) -> None:
    found = world_result(forking(a_world(number), 0.01))
    assert not found.regrets, found.line


def test_a_world_is_made_from_its_number_alone() -> None:
    assert a_world(3) == a_world(3)
    assert a_world(3) != a_world(4)


def test_worlds_are_of_every_kind_and_within_their_bounds() -> None:
    worlds = [a_world(number) for number in range(200)]
    kinds = Counter(kind for world in worlds for kind in world.description.split(" ", maxsplit=1)[0].split("/"))
    assert set(kinds) == {
        *("poisson", "bursts", "square", "batches", "ramp", "on-off"),
        *("constant", "lognormal", "bimodal", "phases", "heavy-tail", "drift"),
    }
    for world in worlds:
        assert 2.0 <= world.slo_seconds <= 300.0
        assert 0.3 <= world.world.startup_seconds <= 60.0
        assert world.most >= 2
        assert world.workload.last_at <= 2_400.0
        assert min(world.workload.service_seconds) > 0.0


def test_the_bench_sums_worlds_up() -> None:
    told = summary([world_result(a_world(0))])
    assert told.startswith("1 worlds, 0 marked (0.0%)\n")
