"""Replicas are lowered only as far as none goes but who may, whatever Swarm chooses among equals."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runtimes.swarm.slots import expendable, is_settled, lowered, slots
from orchestrator.runtimes.swarm.tasks import SwarmTask


def tasks(told: str) -> list[SwarmTask]:
    """From "A:running A:complete -:pending", one slot each; "B:running!remove" is being removed."""
    made = []
    for number, each in enumerate(told.split(), start=1):
        node, _, rest = each.partition(":")
        state, _, desired = rest.partition("!")
        default = "running" if state in {"running", "starting", "pending"} else "shutdown"
        made.append(SwarmTask(f"t{number}", "svc", number, node.strip("-"), state, desired or default, 0.0))
    return made


def removed(given_tasks: list[SwarmTask], fewer: int, *, luck: random.Random) -> list[SwarmTask]:
    """Whom Swarm takes away, with its ties broken by luck."""
    left = list(given_tasks)
    luck.shuffle(left)
    left.sort(key=lambda task: not task.is_running)
    counted: dict[str, int] = {}
    numbered = []
    for task in left:
        counted[task.node] = counted.get(task.node, 0) + 1
        numbered.append((counted[task.node] if task.node else 10**6, luck.random(), task))
    numbered.sort(key=lambda each: each[:2])
    return [task for *_, task in numbered[len(left) - fewer :]]


@pytest.mark.parametrize(
    ("told", "going", "fewer"),
    [
        pytest.param("", "", 0, id="nobody"),
        pytest.param("A:running A:running", "", 0, id="nobody has ended"),
        pytest.param("A:complete", "", 1, id="the last has ended"),
        pytest.param("A:running A:complete A:failed", "", 2, id="ended ones come last on their node"),
        pytest.param("A:running A:running B:complete", "", 0, id="but a running one of a fuller node would go first"),
        pytest.param("A:running A:running B:complete B:complete B:complete", "", 1, id="beyond the fuller node's last"),
        pytest.param("A:running B:running A:complete B:complete", "", 2, id="balanced"),
        pytest.param("A:starting A:complete", "", 0, id="who starts is told from the ended by luck"),
        pytest.param("A:starting A:complete B:complete B:complete B:complete", "", 1, id="or by the number"),
        pytest.param("-:pending A:complete", "", 0, id="who has no node goes first"),
        pytest.param("-:pending A:running", "t1", 1, id="as he shall"),
        pytest.param("-:pending -:pending A:running", "t1", 0, id="one of two without a node may be the other"),
        pytest.param("A:running B:running", "t1", 0, id="one of two running may be the other"),
        pytest.param("A:running B:running", "t1 t2", 2, id="all may go"),
        pytest.param("A:running A:running B:running", "t1 t2", 1, id="one of two on a node, and both may"),
        pytest.param("A:running A:complete!remove", "", 0, id="a slot is being removed"),
    ],
)
def test_replicas_are_lowered_by_as_many_as_surely_may_go(told: str, going: str, fewer: int) -> None:
    assert expendable(tasks(told), going=going.split()) == fewer


@pytest.mark.parametrize(
    ("replicas", "by", "wanted"),
    [
        pytest.param(3, 1, 2, id="as many as there are slots"),
        pytest.param(4, 1, None, id="a slot was not seen"),
        pytest.param(2, 1, 2, id="lowered before, and Swarm did not look: told again"),
        pytest.param(2, 2, 1, id="and one more may go now"),
        pytest.param(1, 1, None, id="lowered by more than may go: Swarm would take another's"),
    ],
)
def test_a_service_that_was_lowered_in_vain_is_told_again(replicas: int, by: int, wanted: int | None) -> None:
    assert lowered(tasks("A:running A:running -:pending"), replicas=replicas, by=by) == wanted


NODES = st.sampled_from(["A", "B", "C", "-"])
STATES = st.sampled_from(["running", "running", "starting", "complete", "failed"])


@given(
    told=st.lists(st.tuples(NODES, STATES), max_size=12),
    going=st.sets(st.integers(1, 12)),
    ends=st.sets(st.integers(1, 12)),
    seed=st.integers(0, 2**32),
)
def test_whoever_is_chosen_and_whoever_ends_meanwhile_nobody_goes_who_may_not(
    told: list[tuple[str, str]], going: set[int], ends: set[int], seed: int
) -> None:
    given_tasks = tasks(" ".join(f"{node}:{'pending' if node == '-' else state}" for node, state in told))
    may_go = {f"t{number}" for number in going}
    fewer = expendable(given_tasks, going=may_go)
    later = [
        SwarmTask(task.id, "svc", task.slot, task.node, "complete", "shutdown", 0.0)
        if task.slot in ends and task.node
        else task
        for task in given_tasks
    ]
    gone = removed(later, fewer, luck=random.Random(seed))
    assert len(gone) == fewer
    assert all(task.is_ended or task.id in may_go for task in gone)


def test_slots_are_counted_once_however_many_tasks_they_had() -> None:
    twice = [*tasks("A:running"), SwarmTask("t9", "svc", 1, "A", "failed", "shutdown", 0.0)]
    assert slots(twice) == 1


def test_a_service_is_settled_when_no_slot_is_being_removed() -> None:
    assert is_settled(tasks("A:running A:complete"))
    assert not is_settled(tasks("A:running A:running!remove"))
