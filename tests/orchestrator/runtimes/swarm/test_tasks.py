"""What Swarm tells of a task is read as a worker, and as its end."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.runtime import Exit, WorkerHandle
from orchestrator.runtimes.swarm.tasks import (
    SwarmService,
    SwarmTask,
    down_nodes,
    exit_of,
    handle_of,
    lost,
    read_service,
    read_task,
    vanished,
)

AT = Monotonic(50.0)
HANDLE = WorkerHandle("resize.3.abc", "resize", "swarm:abc", "0123456789ab", Monotonic(10.0))
BY_SWARM = "by Swarm, as when its node is drained"
TOLD = {
    "ID": "abc",
    "CreatedAt": "2026-11-22T04:00:04.183425652Z",
    "Spec": {
        "ContainerSpec": {
            "Image": "thumbs:1",
            "StopSignal": "SIGINT",
            "Labels": {"towline.pool": "resize", "towline.spec": "0123456789ab"},
        }
    },
    "ServiceID": "svc",
    "Slot": 3,
    "NodeID": "node-1",
    "Status": {
        "State": "failed",
        "Message": "started",
        "Err": "task: non-zero exit (3)",
        "ContainerStatus": {"ContainerID": "5a78", "PID": 0, "ExitCode": 3},
    },
    "DesiredState": "shutdown",
}


def a_task(
    state: str, *, desired: str = "running", container: str = "5a78", code: int = 0, error: str = ""
) -> SwarmTask:
    return SwarmTask("abc", "svc", 3, "node-1", state, desired, 0.0, container=container, code=code, error=error)


def test_a_task_is_read_with_all_that_is_told_of_it() -> None:
    labels = {"towline.pool": "resize", "towline.spec": "0123456789ab"}
    assert read_task(TOLD) == SwarmTask(
        "abc",
        "svc",
        3,
        "node-1",
        "failed",
        "shutdown",
        pytest.approx(1_795_320_004.183425),
        container="5a78",
        code=3,
        message="started",
        error="task: non-zero exit (3)",
        stop_signal="SIGINT",
        labels=labels,
    )


@pytest.mark.parametrize(
    "data", [{}, None, [], {"Status": None, "Spec": 3}, {"Slot": "3", "CreatedAt": "yesterday", "ID": 7}]
)
def test_what_is_missing_or_of_another_kind_is_empty(data: object) -> None:
    assert read_task(data) == SwarmTask("", "", 0, "", "", "", 0.0, labels={})


def test_a_service_is_read_with_its_version_and_pool() -> None:
    spec = {
        "Name": "towline-1",
        "Labels": {"towline.pool": "resize", "towline.spec": "0123"},
        "Mode": {"Replicated": {"Replicas": 4}},
    }
    read = read_service({"ID": "svc", "Version": {"Index": 17}, "Spec": spec})
    assert read == SwarmService("svc", "towline-1", 17, 4, "resize", "0123", spec)


def test_a_service_that_never_had_a_replica_has_none() -> None:
    assert read_service({"ID": "svc", "Spec": {"Mode": {"Replicated": {}}}}).replicas == 0


def test_nodes_that_are_down_are_told_by_their_names() -> None:
    nodes = [
        {"ID": "a", "Description": {"Hostname": "one"}, "Status": {"State": "ready"}},
        {"ID": "b", "Description": {"Hostname": "two"}, "Status": {"State": "down"}},
        {"ID": "c", "Status": {"State": "disconnected"}},
    ]
    assert down_nodes(nodes) == {"b": "two"}


def test_a_task_is_a_worker_whose_name_says_its_pool_slot_and_task() -> None:
    handle = handle_of(read_task(TOLD), now=Monotonic(100.0), wall_seconds=1_795_320_034.183425)
    assert handle == WorkerHandle("resize.3.abc", "resize", "swarm:abc", "0123456789ab", Monotonic(pytest.approx(70.0)))


def test_a_task_that_was_made_in_our_future_was_spawned_now() -> None:
    handle = handle_of(read_task(TOLD), now=Monotonic(100.0), wall_seconds=0.0)
    assert handle is not None
    assert handle.spawned_at == 100.0


def test_a_task_without_our_labels_is_nobody() -> None:
    assert handle_of(read_task({"ID": "abc"}), now=AT, wall_seconds=0.0) is None


@pytest.mark.parametrize(
    ("state", "desired", "ended"),
    [
        pytest.param("new", "running", False, id="new"),
        pytest.param("pending", "running", False, id="no node has room for it yet"),
        pytest.param("pending", "shutdown", True, id="never placed, and no longer wanted"),
        pytest.param("pending", "remove", True, id="never placed, and its slot removed"),
        pytest.param("preparing", "running", False, id="its image is being pulled"),
        pytest.param("preparing", "shutdown", False, id="placed: it may still come up"),
        pytest.param("running", "running", False, id="running"),
        pytest.param("running", "shutdown", False, id="asked to end by Swarm"),
        pytest.param("complete", "shutdown", True, id="exit code 0"),
        pytest.param("failed", "shutdown", True, id="another exit code"),
        pytest.param("shutdown", "shutdown", True, id="ended by Swarm"),
        pytest.param("rejected", "shutdown", True, id="its node could not start it"),
        pytest.param("orphaned", "shutdown", True, id="its node was away for a day"),
    ],
)
def test_a_task_has_ended_when_its_container_has_or_will_never_be(state: str, desired: str, *, ended: bool) -> None:
    assert a_task(state, desired=desired).is_ended is ended


@pytest.mark.parametrize(
    ("task", "code", "number", "reason"),
    [
        pytest.param(a_task("complete"), 0, None, "", id="finished"),
        pytest.param(a_task("shutdown"), 0, None, BY_SWARM, id="finished when Swarm asked it to"),
        pytest.param(a_task("failed", code=3, error="task: non-zero exit (3)"), 3, None, "", id="an exit code"),
        pytest.param(a_task("failed", code=137, error="task: non-zero exit (137)"), None, 9, "", id="SIGKILL"),
        pytest.param(a_task("failed", code=143, error="task: non-zero exit (143)"), None, 15, "", id="SIGTERM"),
        pytest.param(a_task("shutdown", code=137), None, 9, BY_SWARM, id="overdue when Swarm asked it to finish"),
        pytest.param(a_task("failed", code=255, error="task: non-zero exit (255)"), 255, None, "", id="no signal"),
        pytest.param(a_task("failed", code=128), 128, None, "", id="no signal either"),
        pytest.param(
            a_task("failed", code=127, error="starting container failed: no such file"),
            127,
            None,
            "starting container failed: no such file",
            id="no such command",
        ),
        pytest.param(
            a_task("failed", code=0, error="starting container failed: no such mount"),
            None,
            None,
            "starting container failed: no such mount",
            id="it was made and never ran",
        ),
        pytest.param(
            a_task("rejected", container="", error="No such image: nope:1"),
            None,
            None,
            "No such image: nope:1",
            id="no such image",
        ),
        pytest.param(a_task("orphaned"), None, None, "its node was unavailable for too long", id="orphaned"),
        pytest.param(
            a_task("pending", desired="shutdown", container=""),
            None,
            None,
            "it was never placed on a node",
            id="never placed",
        ),
    ],
)
def test_an_ended_task_tells_its_exit_code_or_signal(
    task: SwarmTask, code: int | None, number: int | None, reason: str
) -> None:
    assert exit_of(HANDLE, task, at=AT) == Exit(
        "resize.3.abc",
        "resize",
        "swarm:abc",
        AT,
        code=code,
        signal=number,
        reason=reason,
        is_stopped=task.state == "shutdown",
    )


def test_a_task_that_is_gone_and_a_node_that_is_down_are_ends_of_unknown_code() -> None:
    assert vanished(HANDLE, at=AT).reason == "its task is gone from the swarm"
    ended = lost(HANDLE, "two", at=AT)
    assert (ended.code, ended.signal, ended.reason) == (None, None, "its node two is down")
