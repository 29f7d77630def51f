"""Both tiers have what they promise: nothing in the list is gone, and `make test` has a story of each kind."""

import ast
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

import run
from orchestrator.config.containers import RuntimeKind
from tests import tiers
from tests.support.stores.stores import STORES

ROOT = Path(__file__).resolve().parents[1]
FORKED = "forked"
"""Processes that are forked rather than executed are a runtime of their own, without a name in the settings."""
WAYS_TO_CALL = {
    "App Engine",
    "Celery",
    "Cloud Tasks",
    "HTTP",
    "Task Queue REST API",
    "asyncio",
    "commands",
    "console",
    "library",
}


TOGETHER = [place for places in tiers.TOGETHER.values() for place in places]


@pytest.mark.parametrize("place", [*tiers.SLOW, *tiers.STORIES.values(), *TOGETHER])
def test_a_place_in_the_lists_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert (ROOT / file).exists()
    if name:
        tests = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0] in tests


def test_every_store_runtime_and_way_to_call_has_a_story_that_is_run_between_two_thoughts() -> None:
    assert set(tiers.STORIES) == {*STORES, *get_args(RuntimeKind), FORKED, *WAYS_TO_CALL}
    assert not any(tiers.is_slow(test) for test in tiers.STORIES.values())


def test_a_story_is_left_in_and_what_is_beside_it_left_out() -> None:
    story = tiers.STORIES[FORKED]
    assert not tiers.is_slow(story)
    assert tiers.is_slow(f"{story}_again")
    assert not tiers.is_slow("tests/test_tiers.py::test_a_story_is_left_in_and_what_is_beside_it_left_out")


def test_a_whole_run_begins_with_the_files_that_take_longest_and_ends_with_those_that_are_not_slow() -> None:
    files = [place.partition("::")[0] for place in tiers.SLOW]
    orders = [tiers.order(file) for file in files]
    assert orders == sorted(orders)
    assert tiers.order("tests/test_tiers.py") == len(tiers.SLOW) > max(orders)


def test_files_that_share_an_engine_are_one_unit_and_any_other_file_is_its_own() -> None:
    assert {tiers.unit(f"{file}::test_it[case]") for file in tiers.TOGETHER["docker"]} == {"docker"}
    assert tiers.unit("tests/orchestrator/runtimes/swarm/test_slots.py::test_it") == "swarm"
    assert tiers.unit("tests/test_tiers.py::test_it") == "tests/test_tiers.py"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed (Debian: apt-get install make)")
@pytest.mark.parametrize(
    ("arguments", "command"), [([], "--quick"), (["ARGS=tests/x -k y"], "tests/x -k y"), (["ARGS=--lf"], "--lf")]
)
def test_make_runs_what_is_quick_unless_it_is_told_what_to_run(arguments: list[str], command: str) -> None:
    shown = subprocess.run(["make", "-n", "test", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == f"python3 run.py test {command}\n"


def test_ci_runs_everything_and_a_quick_run_all_but_what_is_slow() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec python3 run.py test"
    assert run.tests_of([]) == run.TESTS
    assert "slow" not in " ".join(run.TESTS)
    assert run.tests_of([run.QUICK]) == [*run.TESTS, "-m", "not slow"]
    assert run.tests_of(["tests/x", "-x"]) == ["-m", "pytest", "tests/x", "-x"]
