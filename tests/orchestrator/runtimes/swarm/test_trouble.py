"""A swarm in trouble: workers out of reach, nodes that are drained, engines that are away, what Swarm refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base.errors import RuntimeUnavailableError, SourceUnavailableError, SpawnError
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.runtimes.swarm.runtime import SwarmRuntime
from tests.support.docker.swarm_bench import CLOCK, LAUNCH, SwarmBench, swarm_bench
from tests.support.docker.swarms import IMAGE, Swarm
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool


@pytest.fixture
def bench(two_nodes: Swarm, request: pytest.FixtureRequest) -> Iterator[SwarmBench]:
    with swarm_bench(two_nodes, request.node.name) as bench:
        yield bench


def test_workers_out_of_reach_go_together_when_none_else_would_go(bench: SwarmBench) -> None:
    bench.reopen(in_reach=False)
    handles = [bench.spawn() for _ in range(4)]
    bench.all_run(4)
    for handle in handles:
        bench.runtime.drain(handle.worker)
    ended = bench.exits(4)
    assert {each.worker for each in ended} == {handle.worker for handle in handles}
    assert all(each.code in {0, None} for each in ended)
    # While those go the service can't be grown, so the next worker has another one.
    assert bench.spawn().worker not in {handle.worker for handle in handles}


def test_an_overdue_worker_out_of_reach_holds_nothing_any_more_and_nobody_else_is_touched(bench: SwarmBench) -> None:
    bench.reopen(in_reach=False)
    handles = [bench.spawn() for _ in range(4)]
    bench.all_run(4)
    far = bench.on(handles, bench.swarm.nodes[1])
    with capture_logs() as logs:
        bench.runtime.kill(far[0].worker)
        eventually(lambda: bench.runtime.reap(now=CLOCK.monotonic()) or bench.disowned)
    assert bench.disowned == [far[0].worker]
    assert [entry["worker"] for entry in logs if entry["event"] == "worker.out_of_reach"] == [far[0].worker]
    assert bench.running() == 4


def test_a_node_that_is_drained_ends_its_workers_and_they_are_told(bench: SwarmBench) -> None:
    handles = [bench.spawn() for _ in range(4)]
    bench.all_run(4)
    second = bench.swarm.nodes[1]
    there = bench.on(handles, second)
    assert there
    bench.swarm.set_availability(second, "drain")
    try:
        ended = bench.exits(len(there))
        assert {each.worker for each in ended} == {handle.worker for handle in there}
        assert all(each.is_stopped and "node is drained" in each.reason for each in ended)
        assert bench.node_of(bench.spawn()) == bench.swarm.nodes[0]
    finally:
        bench.swarm.set_availability(second, "active")


def test_an_engine_that_is_away_is_no_end_of_anybody(bench: SwarmBench) -> None:
    left = bench.spawn()
    bench.all_run(1)
    bench.runtime.close()
    bench.runtime = bench.make(timeout_seconds=1.0)
    bench.runtime.adopt(now=CLOCK.monotonic())
    engine = bench.swarm.nodes[0].engine
    engine.freeze()
    try:
        with pytest.raises(RuntimeUnavailableError):
            bench.spawn()
        assert bench.runtime.reap(now=CLOCK.monotonic()) == []
    finally:
        engine.thaw()
    bench.runtime.kill(left.worker)
    assert [ended.worker for ended in bench.exits()] == [left.worker]


def test_workers_remembered_are_believed_until_there_is_a_manager_to_ask(tmp_path: Path) -> None:
    left = WorkerHandle("resize.1.abc", "resize", "swarm:abc", "0123456789ab", CLOCK.monotonic())
    elsewhere = WorkerHandle("resize-1", "resize", "pid:1@2/3", "0123456789ab", CLOCK.monotonic())
    runtime = SwarmRuntime("ours", engine=f"unix://{tmp_path}/no.sock")
    assert runtime.adopt(remembered=[left, elsewhere], now=CLOCK.monotonic()) == [left]
    assert runtime.reap(now=CLOCK.monotonic()) == []
    runtime.close()


def test_an_engine_without_a_swarm_says_what_to_do(bench: SwarmBench) -> None:
    worker_node = bench.swarm.nodes[1].engine
    runtime = SwarmRuntime(bench.state, engine=worker_node.url)
    pool = a_pool(runtime={"swarm": {"image": IMAGE, "network": "host"}})
    with pytest.raises(RuntimeUnavailableError, match="docker swarm init"):
        runtime.spawn(SpawnRequest("w", pool, LAUNCH.environment("w", pool)), now=CLOCK.monotonic())
    runtime.close()


@pytest.mark.parametrize(
    ("swarm_settings", "told"),
    [
        pytest.param({"secrets": {"key": "no-such-secret"}}, "docker secret create no-such-secret", id="secret"),
        pytest.param({"network": "no-such-network"}, "no-such-network", id="network"),
        pytest.param({"constraints": ["node.nonsense==1"]}, "", id="a constraint that no node meets is no mistake"),
    ],
)
def test_what_swarm_refuses_is_told_and_nothing_is_left_of_it(
    bench: SwarmBench, swarm_settings: dict[str, object], told: str
) -> None:
    if not told:
        handle = bench.spawn(swarm=swarm_settings)
        bench.runtime.kill(handle.worker)
        assert [ended.worker for ended in bench.exits()] == [handle.worker]
        return
    with pytest.raises(SpawnError, match=told) as raised:
        bench.spawn(swarm=swarm_settings)
    assert not isinstance(raised.value, RuntimeUnavailableError)
    assert bench.replicas() == []


def test_a_queue_that_does_not_answer_is_asked_again_to_take_back(bench: SwarmBench) -> None:
    answers = iter([SourceUnavailableError("away"), None])
    asked: list[str] = []

    def disown(worker: str) -> None:
        asked.append(worker)
        if error := next(answers):
            raise error

    bench.runtime.close()
    bench.runtime = SwarmRuntime(bench.state, engine=bench.swarm.url, disown=disown)
    handles = [bench.spawn() for _ in range(3)]
    bench.all_run(3)
    (far, *_) = bench.on(handles, bench.swarm.nodes[1])
    bench.runtime.kill(far.worker)
    eventually(lambda: bench.runtime.reap(now=CLOCK.monotonic()) or len(asked) == 2)
    assert asked == [far.worker, far.worker]
