"""A small form of `python3 -m tests.celery.chaos`, and what it takes for lost and for published twice."""

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.celery.chaos import FAULTS, ChaosFault, ChaosOutcome, Mode, a_chaos_site, faults, have_chaos
from tests.celery.environments import NEWEST, NoEnvironmentError, packages_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    try:
        packages_of(NEWEST)
    except NoEnvironmentError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("mode", ["one", "two"])
def test_each_call_is_run_and_none_is_published_twice_under_kills_and_stops(tmp_path: Path, mode: Mode) -> None:
    with a_chaos_site(mode, tmp_path) as (site, servers):
        schedule = iter(
            [
                ChaosFault(0.5, "kill server", 0.5, 0),
                ChaosFault(0.5, "kill child", 0.0, 0),
                ChaosFault(0.5, "stop server", 4.0, len(servers) - 1),
                ChaosFault(0.5, "kill worker", 0.0, 0),
                *[ChaosFault(600.0, "kill child", 0.0, 0)] * 10,
            ]
        )
        found = have_chaos(site, servers, schedule, rate=8.0, seconds=6.0)
    assert found.is_right, found
    assert found.returned > 24


RIGHT = ChaosOutcome(returned=3, raised=1, lost=(), twice=(), messages=4, ran=4, runs=6, dead=0)


def test_a_run_is_right_when_each_message_is_a_call_that_ran() -> None:
    assert RIGHT.is_right


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RIGHT, lost=("call-1",)),
        replace(RIGHT, twice=("call-1",)),
        replace(RIGHT, messages=5),
        replace(RIGHT, dead=1),
    ],
    ids=["a call that returned has not run", "two first deliveries", "more messages than calls", "a dead message"],
)
def test_a_run_is_wrong_when_a_call_is_lost_or_there_twice(wrong: ChaosOutcome) -> None:
    assert not wrong.is_right


def test_faults_are_those_of_the_seed_and_of_all_kinds() -> None:
    drawn = [list(islice(faults(random.Random(seed), servers=2), 50)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {one.what for one in drawn[0]} == set(FAULTS)
    assert {one.server for one in drawn[0]} == {0, 1}
    assert all(1.0 <= one.seconds <= 30.0 for one in drawn[0] if one.what == "stop server")
