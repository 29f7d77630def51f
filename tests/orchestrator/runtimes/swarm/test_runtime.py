"""What a runtime promises, asked of tasks on a real swarm of two engines: their lives, slots, services and adoption."""

import signal
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from tests.support.docker.swarm_bench import CLOCK, SwarmBench, swarm_bench
from tests.support.docker.swarms import IMAGE, VOLUMES, Swarm
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import exits_of

STUBBORN = "trap '' TERM; while :; do sleep 600; done"
FAIL = "echo about to fail; sleep 0.1; echo the reason >&2; exit 3"
GREEDY = f"exec {sys.executable} -c 'bytearray(200 * 2**20)'"


@pytest.fixture
def bench(two_nodes: Swarm, request: pytest.FixtureRequest) -> Iterator[SwarmBench]:
    with swarm_bench(two_nodes, request.node.name) as bench:
        yield bench


def test_a_worker_is_named_by_its_task_and_told_so(bench: SwarmBench) -> None:
    handle = bench.spawn('echo "$TOWLINE_WORKER $COLOUR"; exit 7', env={"COLOUR": "{{blue}}"})
    (ended,) = bench.exits()
    assert handle.ref.startswith("swarm:")
    assert handle.worker == f"resize.1.{handle.ref.removeprefix('swarm:')}"
    assert (ended.worker, ended.ref, ended.code) == (handle.worker, handle.ref, 7)
    assert ended.last_lines == (f"{handle.worker} {{{{blue}}}}",)
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []


def test_an_exit_code_and_the_last_words_are_told(bench: SwarmBench) -> None:
    bench.spawn(FAIL)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal, ended.out_of_memory) == (3, None, False)
    assert ended.last_lines == ("about to fail", "the reason")


def test_a_worker_over_its_memory_limit_is_told_as_such(bench: SwarmBench) -> None:
    handle = bench.spawn(GREEDY, swarm={"memory": "32MiB", "init": False})
    (ended,) = bench.exits()
    assert (ended.signal, ended.memory_limit_bytes) == (signal.SIGKILL, 32 * 2**20)
    assert ended.out_of_memory == bench.node_of(handle).engine.noticed_out_of_memory(bench.container_of(handle))
    assert ended.out_of_memory != ("perhaps it was out of memory" in ended.reason)


def test_a_kill_that_was_asked_for_is_not_taken_for_want_of_memory(bench: SwarmBench) -> None:
    handle = bench.spawn(STUBBORN, swarm={"memory": "32MiB"})
    bench.all_run(1)
    bench.runtime.kill(handle.worker)
    (ended,) = bench.exits()
    assert (ended.signal, ended.out_of_memory, ended.reason) == (signal.SIGKILL, False, "")


def test_an_image_that_is_nowhere_is_an_end_with_its_reason(bench: SwarmBench) -> None:
    bench.spawn(swarm={"image": "no-such-image:1"})
    (ended,) = bench.exits()
    assert (ended.code, ended.signal) == (None, None)
    assert "no-such-image:1" in ended.reason


def test_workers_in_reach_are_asked_and_ended_one_by_one_and_their_slots_are_given_back(bench: SwarmBench) -> None:
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


def test_a_slot_that_was_given_back_is_given_out_again(bench: SwarmBench) -> None:
    first = bench.spawn("exit 0")
    bench.exits()
    eventually(lambda: bench.replicas() == [0], seconds=20)
    second = bench.spawn("exit 0")
    assert (first.worker.split(".")[1], second.worker.split(".")[1]) == ("1", "1")
    assert first.worker != second.worker
    assert bench.replicas() == [1]


def test_a_pool_with_other_settings_has_a_service_beside_the_old_one(bench: SwarmBench) -> None:
    old = bench.spawn()
    new = bench.spawn(env={"COLOUR": "blue"})
    assert old.spec_digest != new.spec_digest
    assert bench.replicas() == [1, 1]
    bench.all_run(2)
    bench.runtime.drain(old.worker)
    assert [ended.worker for ended in bench.exits()] == [old.worker]
    eventually(lambda: bench.replicas() == [1], seconds=20)


def test_the_next_leader_adopts_the_workers_of_another_folder_and_the_last_one_touches_them_no_more(
    bench: SwarmBench,
) -> None:
    fleet = f"fleet of {bench.state}"
    bench.runtime.close()
    bench.runtime = bench.make(fleet=fleet)
    handle = bench.spawn()
    bench.all_run(1)
    with closing(bench.make(state="another", fleet=fleet)) as successor:
        (found,) = successor.adopt(now=CLOCK.monotonic())
        assert found.worker == handle.worker
        bench.runtime.let_go([handle.worker])
        bench.runtime.drain(handle.worker)
        bench.runtime.kill(handle.worker)
        bench.runtime._watch.poll()
        assert bench.running() == 1
        successor.drain(handle.worker)
        assert [ended.worker for ended in exits_of(successor, 1, seconds=30.0)] == [handle.worker]
        assert bench.runtime.reap(now=CLOCK.monotonic()) == []
        eventually(lambda: bench.replicas() in ([], [0]), seconds=30)


def test_workers_left_running_are_adopted_as_they_are_and_told_of_when_they_end(bench: SwarmBench) -> None:
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


def test_workers_of_another_state_are_left_alone(bench: SwarmBench) -> None:
    bench.spawn()
    stranger = bench.make(state="theirs")
    assert stranger.adopt(now=CLOCK.monotonic()) == []
    stranger.close()


def test_a_task_that_swarm_made_unasked_is_the_next_worker(bench: SwarmBench) -> None:
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


def test_a_secret_and_a_token_are_files_in_the_container(bench: SwarmBench) -> None:
    with bench.swarm.nodes[0].engine.client() as client:
        client.create_secret("thumbs-key", b"a key", {})
    command = ["sh", "-c", "cat /run/secrets/key; echo; cat $TOWLINE_TOKEN_FILE; echo; exit 1"]
    settings = {"image": IMAGE, "network": "host", "volumes": VOLUMES, "secrets": {"key": "thumbs-key"}}
    pool = a_pool(app=None, command=command, runtime={"swarm": settings})
    launch = Launch("http://queue:7878", "/srv/.towline", "/srv/.towline/supervisor.lock", 60.0, token="a token")
    bench.runtime.spawn(SpawnRequest("w", pool, launch.environment("w", pool)), now=CLOCK.monotonic())
    (ended,) = bench.exits()
    assert ended.last_lines == ("a key", "a token")


def test_waiting_for_an_exit_ends_early_when_woken_and_with_the_exit(bench: SwarmBench) -> None:
    bench.runtime.wake()
    assert bench.runtime.wait_for_exit(timeout_seconds=600) is False
    assert bench.runtime.wait_for_exit(timeout_seconds=0) is False
    bench.spawn("exit 0")
    assert bench.runtime.wait_for_exit(timeout_seconds=60) is True


def test_verbs_on_an_unknown_worker_have_no_effect(bench: SwarmBench) -> None:
    bench.runtime.drain("nobody")
    bench.runtime.kill("nobody")
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []
    assert bench.runtime.usage() == {}
