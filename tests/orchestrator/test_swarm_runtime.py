"""What a runtime promises, asked of tasks on a real swarm of two engines; and what Swarm alone brings."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.clock import SystemClock
from orchestrator.config import PoolSpec
from orchestrator.errors import RuntimeUnavailableError, SourceUnavailableError, SpawnError
from orchestrator.launch import Launch
from orchestrator.runtime import Exit, SpawnRequest, WorkerHandle
from orchestrator.runtimes.swarm.runtime import SwarmRuntime
from tests.support.engine_process import EngineUnavailableError
from tests.support.eventually import eventually
from tests.support.fleet_builders import a_pool
from tests.support.swarms import IMAGE, VOLUMES, Node, Swarm, swarm

CLOCK = SystemClock()
LAUNCH = Launch("http://queue:7878", "/srv/.towline", "/srv/.towline/supervisor.lock", 60.0)

STAY = "trap 'exit 0' TERM; sleep 600 & wait"
STUBBORN = "trap '' TERM; while :; do sleep 600; done"
FAIL = "echo about to fail; sleep 0.1; echo the reason >&2; exit 3"
GREEDY = f"exec {sys.executable} -c 'bytearray(200 * 2**20)'"


@dataclass
class Bench:
    """The runtime under test on a swarm; `disowned` are those whose leases it had the queue take back."""

    swarm: Swarm
    state: str
    disowned: list[str] = field(default_factory=list)
    runtime: SwarmRuntime = field(init=False)

    def __post_init__(self) -> None:
        self.runtime = self.make()

    def make(self, *, state: str = "", in_reach: bool = True, timeout_seconds: float = 5.0) -> SwarmRuntime:
        return SwarmRuntime(
            state or self.state,
            engine=self.swarm.url,
            nodes=self.swarm.others if in_reach else None,
            disown=self.disowned.append,
            timeout_seconds=timeout_seconds,
        )

    def tasks(self) -> list[Mapping[str, Any]]:
        return self.swarm.tasks(self.state)

    def replicas(self) -> list[int]:
        """Of the services in the order of their size."""
        return sorted(self.swarm.replicas(self.state).values())

    def reopen(self, *, in_reach: bool = True) -> None:
        """Drop the runtime as a supervisor that ends does, and make another over the same state."""
        self.runtime.close()
        self.runtime = self.make(in_reach=in_reach)

    def spawn(self, script: str = STAY, *, swarm: dict[str, object] | None = None, **settings: object) -> WorkerHandle:
        settings_of_swarm = {"image": IMAGE, "network": "host", "volumes": VOLUMES, **(swarm or {})}
        pool = a_pool(
            app=None, command=["sh", "-c", script], **{"grace": "2s", **settings}, runtime={"swarm": settings_of_swarm}
        )
        return self.start(pool)

    def start(self, pool: PoolSpec) -> WorkerHandle:
        request = SpawnRequest("not-its-name", pool, LAUNCH.environment("not-its-name", pool))
        return self.runtime.spawn(request, now=CLOCK.monotonic())

    def exits(self, count: int = 1) -> list[Exit]:
        collected: list[Exit] = []

        def enough() -> bool:
            self.runtime.wait_for_exit(timeout_seconds=0.1)
            collected.extend(self.runtime.reap(now=CLOCK.monotonic()))
            return len(collected) >= count

        eventually(enough, seconds=30)
        return collected

    def running(self) -> int:
        return sum(1 for task in self.tasks() if task["Status"]["State"] == "running")

    def all_run(self, count: int) -> None:
        eventually(lambda: self.running() == count, seconds=30)

    def node_of(self, handle: WorkerHandle) -> Node:
        def found() -> Node | None:
            ids = {task["ID"]: task.get("NodeID") for task in self.tasks()}
            placed = ids[handle.ref.removeprefix("swarm:")]
            return next((node for node in self.swarm.nodes if node.id == placed), None)

        node = eventually(found)
        assert node is not None
        return node

    def on(self, handles: Sequence[WorkerHandle], node: Node) -> list[WorkerHandle]:
        return [handle for handle in handles if self.node_of(handle) == node]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Swarm | EngineUnavailableError]:
    try:
        with swarm(2) as made:
            yield made
    except EngineUnavailableError as error:
        yield error


@pytest.fixture
def bench(two_nodes: Swarm | EngineUnavailableError, request: pytest.FixtureRequest) -> Iterator[Bench]:
    if isinstance(two_nodes, EngineUnavailableError):
        pytest.skip(str(two_nodes))
    bench = Bench(two_nodes, request.node.name)
    yield bench
    bench.runtime.close()
    two_nodes.remove_services()


def test_a_worker_is_named_by_its_task_and_told_so(bench: Bench) -> None:
    handle = bench.spawn('echo "$TOWLINE_WORKER $COLOUR"; exit 7', env={"COLOUR": "{{blue}}"})
    (ended,) = bench.exits()
    assert handle.ref.startswith("swarm:")
    assert handle.worker == f"resize.1.{handle.ref.removeprefix('swarm:')}"
    assert (ended.worker, ended.ref, ended.code) == (handle.worker, handle.ref, 7)
    assert ended.last_lines == (f"{handle.worker} {{{{blue}}}}",)
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []


def test_an_exit_code_and_the_last_words_are_told(bench: Bench) -> None:
    bench.spawn(FAIL)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal, ended.out_of_memory) == (3, None, False)
    assert ended.last_lines == ("about to fail", "the reason")


def test_a_worker_over_its_memory_limit_is_told_as_such(bench: Bench) -> None:
    bench.spawn(GREEDY, swarm={"memory": "32MiB", "init": False})
    (ended,) = bench.exits()
    assert (ended.signal, ended.out_of_memory, ended.memory_limit_bytes) == (signal.SIGKILL, True, 32 * 2**20)


def test_an_image_that_is_nowhere_is_an_end_with_its_reason(bench: Bench) -> None:
    bench.spawn(swarm={"image": "no-such-image:1"})
    (ended,) = bench.exits()
    assert (ended.code, ended.signal) == (None, None)
    assert "no-such-image:1" in ended.reason


def test_workers_in_reach_are_asked_and_ended_one_by_one_and_their_slots_are_given_back(bench: Bench) -> None:
    handles = [bench.spawn() for _ in range(5)]
    stubborn = bench.spawn(STUBBORN)
    assert bench.replicas() == [1, 5]
    bench.all_run(6)
    leaving = [*bench.on(handles, bench.swarm.nodes[0])[:1], *bench.on(handles, bench.swarm.nodes[1])[:1]]
    for handle in leaving:
        bench.runtime.drain(handle.worker)
    bench.runtime.drain(stubborn.worker)
    assert {(ended.worker, ended.code) for ended in bench.exits(2)} == {(handle.worker, 0) for handle in leaving}
    bench.runtime.kill(stubborn.worker)
    (ended,) = bench.exits()
    assert (ended.worker, ended.signal) == (stubborn.worker, signal.SIGKILL)
    staying = [handle for handle in handles if handle not in leaving]
    # Not to 3 at once: a slot stays where Swarm, asked for fewer, would take a running one of the fuller node.
    eventually(lambda: bench.replicas()[-1] < 5, seconds=20)
    bench.all_run(3)
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []
    assert all(bench.node_of(handle) for handle in staying)


def test_a_slot_that_was_given_back_is_given_out_again(bench: Bench) -> None:
    first = bench.spawn("exit 0")
    bench.exits()
    eventually(lambda: bench.replicas() == [0], seconds=20)
    second = bench.spawn("exit 0")
    assert (first.worker.split(".")[1], second.worker.split(".")[1]) == ("1", "1")
    assert first.worker != second.worker
    assert bench.replicas() == [1]


def test_a_pool_with_other_settings_has_a_service_beside_the_old_one(bench: Bench) -> None:
    old = bench.spawn()
    new = bench.spawn(env={"COLOUR": "blue"})
    assert old.spec_digest != new.spec_digest
    assert bench.replicas() == [1, 1]
    bench.all_run(2)
    bench.runtime.drain(old.worker)
    assert [ended.worker for ended in bench.exits()] == [old.worker]
    eventually(lambda: bench.replicas() == [1], seconds=20)


def test_workers_left_running_are_adopted_as_they_are_and_told_of_when_they_end(bench: Bench) -> None:
    left = bench.spawn()
    gone = bench.spawn("exit 0")
    bench.exits()
    bench.reopen()
    (found,) = bench.runtime.adopt(remembered=[left, gone], now=CLOCK.monotonic())
    assert (found.worker, found.pool, found.ref) == (left.worker, left.pool, left.ref)
    assert found.spec_digest == left.spec_digest
    assert abs(found.spawned_at - left.spawned_at) < 2.0
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    bench.runtime.kill(left.worker)
    assert [ended.worker for ended in bench.exits()] == [left.worker]


def test_workers_of_another_state_are_left_alone(bench: Bench) -> None:
    bench.spawn()
    stranger = bench.make(state="theirs")
    assert stranger.adopt(now=CLOCK.monotonic()) == []
    stranger.close()


def test_a_task_that_swarm_made_unasked_is_the_next_worker(bench: Bench) -> None:
    first = bench.spawn()
    with bench.swarm.nodes[0].engine.client() as client:
        (service,) = client.services(filters={"label": f"towline.state={bench.state}"})
        spec = service["Spec"]
        client.update_service(
            service["ID"],
            service["Version"]["Index"],
            task_template=spec["TaskTemplate"],
            name=spec["Name"],
            labels=spec["Labels"],
            mode={"Replicated": {"Replicas": 2}},
        )
    eventually(lambda: len(bench.tasks()) == 2)
    second = bench.spawn()
    assert second.worker != first.worker
    assert bench.replicas() == [2]


def test_workers_out_of_reach_go_together_when_none_else_would_go(bench: Bench) -> None:
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


def test_an_overdue_worker_out_of_reach_holds_nothing_any_more_and_nobody_else_is_touched(bench: Bench) -> None:
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


def test_a_node_that_is_drained_ends_its_workers_and_they_are_told(bench: Bench) -> None:
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


def test_an_engine_that_is_away_is_no_end_of_anybody(bench: Bench) -> None:
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


def test_an_engine_without_a_swarm_says_what_to_do(bench: Bench) -> None:
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
    bench: Bench, swarm_settings: dict[str, object], told: str
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


def test_a_secret_and_a_token_are_files_in_the_container(bench: Bench) -> None:
    with bench.swarm.nodes[0].engine.client() as client:
        client.create_secret("thumbs-key", b"a key", {})
    command = ["sh", "-c", "cat /run/secrets/key; echo; cat $TOWLINE_TOKEN_FILE; echo; exit 1"]
    settings = {"image": IMAGE, "network": "host", "volumes": VOLUMES, "secrets": {"key": "thumbs-key"}}
    pool = a_pool(app=None, command=command, runtime={"swarm": settings})
    launch = Launch("http://queue:7878", "/srv/.towline", "/srv/.towline/supervisor.lock", 60.0, token="a token")
    bench.runtime.spawn(SpawnRequest("w", pool, launch.environment("w", pool)), now=CLOCK.monotonic())
    (ended,) = bench.exits()
    assert ended.last_lines == ("a key", "a token")


def test_a_queue_that_does_not_answer_is_asked_again_to_take_back(bench: Bench) -> None:
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


def test_waiting_for_an_exit_ends_early_when_woken_and_with_the_exit(bench: Bench) -> None:
    bench.runtime.wake()
    assert bench.runtime.wait_for_exit(timeout_seconds=600) is False
    assert bench.runtime.wait_for_exit(timeout_seconds=0) is False
    bench.spawn("exit 0")
    assert bench.runtime.wait_for_exit(timeout_seconds=60) is True


def test_verbs_on_an_unknown_worker_have_no_effect(bench: Bench) -> None:
    bench.runtime.drain("nobody")
    bench.runtime.kill("nobody")
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []
    assert bench.runtime.usage() == {}
