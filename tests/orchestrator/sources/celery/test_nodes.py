"""Nodes of a fleet from heartbeats, events and answers: what began, what ended and how long it ran, about."""

from orchestrator.base.clock import Monotonic
from orchestrator.sources.celery.messages import ActiveTask, NodeSignal
from orchestrator.sources.celery.nodes import (
    GONE_SECONDS,
    CeleryNode,
    TaskRun,
    after_answer,
    after_signal,
    present_nodes,
)

NODE = "shop-1@h"


def beat(active: int, processed: int, *, pid: int = 5, kind: str = "heartbeat") -> NodeSignal:
    return NodeSignal(kind, NODE, active, processed, pid)  # type: ignore[arg-type]


def heard(signals: list[tuple[float, NodeSignal]], node: CeleryNode | None = None) -> tuple[CeleryNode, list[TaskRun]]:
    runs: list[TaskRun] = []
    for at, signal in signals:
        node, ended = after_signal(node, signal, at=Monotonic(at))
        runs += ended
    assert node is not None
    return node, runs


def test_a_long_task_shows_its_run_to_a_heartbeat() -> None:
    beats = [(0.0, beat(0, 0, kind="online"))]
    beats += [(float(at), beat(1, 1)) for at in range(2, 62, 2)]
    beats += [(62.0, beat(0, 1))]
    node, runs = heard(beats)
    assert (node.begun, node.active, len(runs)) == (1, 0, 1)
    assert abs(runs[0].seconds - 60.0) <= 2.0


def test_short_tasks_show_their_mean() -> None:
    # 0.5 s tasks one after the other on one process: half of all heartbeats see one.
    beats = [(float(at), beat(at // 2 % 2, 4 * at // 2)) for at in range(0, 400, 2)]
    _, runs = heard(beats)
    mean = sum(run.seconds for run in runs) / len(runs)
    assert 0.2 < mean < 0.5  # at a utilisation of a half, 2 s x 0.5 / 4


def test_a_restart_under_the_same_name_counts_again_from_zero() -> None:
    node, _ = heard([(0.0, beat(1, 10)), (2.0, beat(1, 12)), (9.0, beat(0, 3, pid=6))])
    assert node.begun == 2 + 3
    assert node.pid == 6


def test_the_first_heartbeat_tells_nothing_of_what_was_before() -> None:
    node, runs = heard([(0.0, beat(2, 1_000))])
    assert (node.begun, node.active, runs) == (0, 2, [])
    assert len(node.started_ats(at=Monotonic(1.0), wall_seconds=0.0)) == 2


def test_events_of_tasks_are_exact_and_not_counted_twice() -> None:
    node, runs = heard(
        [
            (0.0, beat(0, 0)),
            (1.0, NodeSignal("started", NODE, task="a")),
            (2.0, beat(1, 1)),
            (3.25, NodeSignal("succeeded", NODE, task="a", run_seconds=2.25)),
            (4.0, beat(0, 1)),
            (5.0, NodeSignal("started", NODE, task="b")),
            (6.0, NodeSignal("failed", NODE, task="b")),
        ]
    )
    assert [(run.seconds, run.outcome, run.is_exact) for run in runs] == [
        (2.25, "deleted", True),
        (1.0, "released", True),
    ]
    assert node.task_ids == ()


def test_an_answer_tells_starts_until_another_task_begins() -> None:
    node, _ = heard([(0.0, beat(0, 0)), (2.0, beat(1, 1))])
    node, _ = after_answer(node, NODE, at=Monotonic(3.0), active=(ActiveTask("a", 101.5),), reserved=4)
    assert node.started_ats(at=Monotonic(4.0), wall_seconds=104.0) == [1.5]
    assert (node.task_ids, node.reserved_at(Monotonic(4.0)), node.reserved_at(Monotonic(40.0))) == (("a",), 4, None)
    node, _ = heard([(6.0, beat(1, 2))], node)
    assert node.started_ats(at=Monotonic(6.0), wall_seconds=106.0) == [4.0]


def test_a_node_without_heartbeats_is_known_by_its_answers() -> None:
    node, _ = after_answer(None, NODE, at=Monotonic(0.0), active=(), totals=(5, 100))
    node, _ = after_answer(node, NODE, at=Monotonic(4.0), totals=(5, 101))
    node, runs = after_answer(node, NODE, at=Monotonic(4.0), active=(ActiveTask("a"),))
    assert (node.begun, node.active, node.heard_at, node.has_heartbeats) == (1, 1, 4.0, False)
    node, runs = after_answer(node, NODE, at=Monotonic(8.0), active=())
    node, runs = after_answer(node, NODE, at=Monotonic(9.0), totals=(5, 103))
    assert node.begun == 3
    assert len(runs) >= 1


def test_a_goodbye_is_no_end_of_a_worker_of_ours() -> None:
    node, _ = heard([(0.0, beat(1, 1)), (1.0, beat(1, 1, kind="offline"))])
    assert (node.is_offline, node.active) == (True, 1)
    nodes = {NODE: node}
    assert present_nodes(nodes, workers=frozenset({"shop-1"}), at=Monotonic(500.0)) == nodes
    assert present_nodes(nodes, workers=frozenset(), at=Monotonic(2.0)) == {}
    silent, _ = heard([(0.0, beat(1, 1))])
    assert present_nodes({NODE: silent}, workers=frozenset(), at=Monotonic(GONE_SECONDS)) == {NODE: silent}
    assert present_nodes({NODE: silent}, workers=frozenset(), at=Monotonic(GONE_SECONDS + 1)) == {}
