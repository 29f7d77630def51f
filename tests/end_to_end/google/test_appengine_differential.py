"""Random programs on Google's in-process stub and on our server: every answer the same, or different by a named rule.

The long run is `python3 -m tests.differential`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import queue_core
from queue_core.stores.memory.store import MemoryStore
from tests.differential.answers import TOMBSTONED_TASK, Leased, Modified
from tests.differential.comparison import compare
from tests.differential.facts import RETENTION
from tests.differential.operations import (
    BOUNDED,
    PLAIN,
    Add,
    Delete,
    Eta,
    Given,
    LeaseCall,
    Modify,
    NewOne,
    Pass,
    Picked,
    RetryParameters,
    Stats,
    Step,
    Which,
)
from tests.differential.programs import a_program
from tests.differential.report import REASONS, story
from tests.differential.rules import RULES
from tests.differential.running import EMBEDDED, StoreName, fresh, run, shrunk
from tests.support.stores.engines import EngineUnavailableError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("store", "seeds"),
    [
        ("memory", range(1, 5)),
        ("sqlite", range(5, 8)),
        ("postgresql", range(8, 10)),
        ("redis", range(10, 12)),
    ],
)
def test_random_programs_are_answered_as_by_google(store: StoreName, seeds: range) -> None:
    try:
        outcome = run(store, seeds, 100)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    assert outcome.found == (), "\n\n".join(story(found) for found in outcome.found)
    assert outcome.tally.same.total() > outcome.tally.calls.total() / 2


def test_a_seed_makes_one_program() -> None:
    assert a_program(5, 40) == a_program(5, 40) != a_program(6, 40)


def test_a_difference_is_shrunk_to_what_it_needs() -> None:
    program = a_program(1, 60)
    needed = {program[11], program[42]}
    assert set(shrunk(program, lambda shorter: needed <= set(shorter))) == needed


def a_task(name: str | None = None, *, eta: int = 0, tag: bytes | None = None) -> NewOne:
    return NewOne(None if name is None else Given(name.encode()), tag, Eta("now", eta))


def leased(*, count: int = 10, seconds: float = 10.0, queue: str = PLAIN, by_tag: bool = False) -> LeaseCall:
    return LeaseCall(queue, seconds, count, by_tag=by_tag, tag=None)


RULED: dict[str, tuple[Step, ...]] = {
    "past etas are now": (
        Add(PLAIN, (a_task("second", eta=-1),)),
        Pass(SECOND),
        Add(PLAIN, (a_task("first", eta=-10 * SECOND),)),
        Pass(1),
        leased(count=1),
    ),
    "ties by insertion": (Add(PLAIN, (a_task("b", eta=SECOND), a_task("a", eta=SECOND))), Pass(2 * SECOND), leased()),
    "over at its eta": (Add(PLAIN, (a_task("a"),)), leased()),
    "exhausted is gone": (
        Add(BOUNDED, (a_task("a"),)),
        leased(queue=BOUNDED, seconds=0.0),
        Pass(1),
        leased(queue=BOUNDED, seconds=1.0),
        Pass(SECOND),
        Stats((BOUNDED,)),
    ),
    "a task's own limit": (
        Add(BOUNDED, (replace(a_task("a"), retry=RetryParameters(None, 0)),)),
        *[step for _ in range(3) for step in (Pass(1), leased(queue=BOUNDED, seconds=0.0))],
    ),
    "untagged tasks fill up": (
        Add(PLAIN, (a_task("a", eta=1), a_task("b", eta=2, tag=b"red"), a_task("c", eta=3))),
        Pass(SECOND),
        leased(count=2, by_tag=True),
    ),
    "names come free": (
        Add(PLAIN, (a_task("a"),)),
        Delete(PLAIN, (Given(b"a"),)),
        Pass(RETENTION - 1),
        Add(PLAIN, (a_task("a"),)),
        Pass(1),
        Add(PLAIN, (a_task("a"),)),
    ),
    "no end comes twice": (
        Add(PLAIN, (a_task("a"),)),
        Pass(1),
        leased(),
        Modify(PLAIN, Picked("live", 0.0), "own", 10.0),
    ),
    "whole microseconds": (Add(PLAIN, (a_task("a"),)), Pass(1), leased(seconds=0.0000016)),
}


@pytest.mark.parametrize("rule", RULED)
def test_a_rule_allows_what_its_name_says_and_is_counted(rule: str) -> None:
    tally, difference = compare(RULED[rule], MemoryStore())
    assert difference is None
    assert tally.rules[rule] == 1


@pytest.mark.parametrize("name", [Given(b"a"), Picked("ever", 1.0 - 1e-9)], ids=["given", "chosen"])
def test_a_task_that_used_up_its_leases_is_gone_for_whoever_held_it(name: Which) -> None:
    program = (
        Add(BOUNDED, (a_task("a"), a_task())),
        leased(queue=BOUNDED, seconds=0.0),
        Pass(1),
        leased(queue=BOUNDED, seconds=1.0),
        Pass(2 * SECOND),
        Modify(BOUNDED, name, "own", 10.0),
    )
    tally, difference = compare(program, MemoryStore())
    assert difference is None
    assert tally.kinds[f"refused {TOMBSTONED_TASK}"] == 1


@pytest.mark.parametrize("store", EMBEDDED)
def test_an_add_finds_the_name_of_a_used_up_task_that_nobody_looked_at_to_be_a_deleted_ones(store: StoreName) -> None:
    program = (
        Add(BOUNDED, (a_task("a"),)),
        leased(queue=BOUNDED, seconds=0.0),
        Pass(1),
        leased(queue=BOUNDED, seconds=1.0),
        Pass(2 * SECOND),
        Add(BOUNDED, (a_task("a"), a_task("b"))),
    )
    with fresh(store) as opened:
        _, difference = compare(program, opened)
    assert difference is None


@pytest.mark.parametrize("store", EMBEDDED)
def test_the_lowest_eta_is_that_of_a_task_that_is_still_there(store: StoreName) -> None:
    program = (
        Add(BOUNDED, (a_task("a"), a_task("b", eta=60 * SECOND), a_task("c", eta=30 * SECOND))),
        leased(queue=BOUNDED, seconds=0.0),
        leased(queue=BOUNDED, seconds=1.0),
        Pass(2 * SECOND),
        Stats((BOUNDED,)),
        Delete(BOUNDED, (Given(b"b"), Given(b"c"))),
        Stats((BOUNDED,)),
    )
    with fresh(store) as opened:
        tally, difference = compare(program, opened)
    assert difference is None
    assert tally.calls["FetchQueueStats"] == 2


class WrongStore(MemoryStore):
    """Its leases end a microsecond late."""

    def lease(self, queue, request, *, now):  # type: ignore[no-untyped-def]
        seconds = None if request.seconds is None else request.seconds + 0.000_001
        return super().lease(queue, replace(request, seconds=seconds), now=now)


def test_a_wrong_microsecond_is_found_and_no_rule_explains_it() -> None:
    program = (Add(PLAIN, (a_task("a"),)), Pass(1), leased())
    _, difference = compare(program, WrongStore())
    assert difference is not None
    assert isinstance(difference.google, Leased)
    assert isinstance(difference.ours, Leased)
    assert difference.ours.tasks[0].eta == difference.google.tasks[0].eta + 1


class ForgetfulStore(MemoryStore):
    """Grants leases in no order at all."""

    def lease(self, queue, request, *, now):  # type: ignore[no-untyped-def]
        granted = super().lease(queue, request, now=now)
        return replace(granted, leases=granted.leases[::-1])


def test_another_order_is_found_and_no_rule_explains_it() -> None:
    program = (Add(PLAIN, (a_task("a"), a_task("b"))), Pass(1), leased())
    assert compare(program, MemoryStore())[1] is None
    assert compare(program, ForgetfulStore())[1] is not None


def test_the_page_of_differences_has_every_rule_and_no_other() -> None:
    page = Path(queue_core.__file__).parents[1] / "docs/reference/appengine-differences.md"
    rows = [line.split("|")[1].strip() for line in page.read_text().splitlines() if line.startswith("| ")]
    assert sorted(rows[2:]) == sorted(REASONS)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_modification_is_compared_to_the_microsecond() -> None:
    program = (
        Add(PLAIN, (a_task("a"),)),
        Pass(1),
        leased(),
        Pass(5),
        Modify(PLAIN, Picked("leased", 0.0), "own", 10.0),
    )
    tally, difference = compare(program, MemoryStore())
    assert difference is None
    assert tally.kinds[Modified.__name__.lower()] == 1
