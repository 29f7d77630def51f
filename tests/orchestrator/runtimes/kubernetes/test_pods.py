"""What the JSON of a Pod means: what its worker waits for, whether it runs, and how it ended."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.exits import Cause, cause_of
from orchestrator.fleet.placement import Placement
from orchestrator.runtimes.kubernetes.pods import PodEnding, PodState, ending_of_deleted, pod_state, quantity
from tests.support.fleet.fleet_builders import AnExit
from tests.support.fleet.pods import CREATED, a_condition, a_pod_seen, a_status, running, terminated, waiting

UNSCHEDULABLE = a_condition("PodScheduled", "False", "Unschedulable", "0/8 nodes are available: 8 Insufficient cpu.")
GATED = a_condition(
    "PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
)
SCHEDULED = a_condition("PodScheduled", "True", at="2026-11-29T12:01:35Z")


def state_of(pod: dict[str, Any]) -> PodState:
    state = pod_state(pod)
    assert state is not None
    return state


def ending_of(pod: dict[str, Any]) -> PodEnding:
    ending = state_of(pod).ending
    assert ending is not None
    return ending


def cause_in(ending: PodEnding) -> Cause:
    """The cause of a worker's end that had not been asked to finish."""
    ended = AnExit(
        "w",
        Monotonic(1.0),
        code=ending.code,
        signal=ending.signal,
        out_of_memory=ending.out_of_memory,
        fate=ending.fate,
        reason=ending.reason,
    )
    return cause_of(ended, drained=False, overdue=False)[0]


@pytest.mark.parametrize(
    ("pod", "place"),
    [
        pytest.param(
            a_pod_seen(node=None, conditions=[GATED], gates=["kueue.x-k8s.io/admission"]),
            Placement("", "admission", "by kueue.x-k8s.io/admission"),
            id="a gated Pod waits for admission",
        ),
        pytest.param(
            a_pod_seen(node=None, conditions=[UNSCHEDULABLE]),
            Placement("", "node", "0/8 nodes are available: 8 Insufficient cpu."),
            id="one that no node takes has the scheduler's sentence",
        ),
        pytest.param(a_pod_seen(node=None), Placement("", "node"), id="one that the scheduler has not seen yet"),
        pytest.param(
            a_pod_seen(waiting("ContainerCreating"), conditions=[SCHEDULED]),
            Placement("node-1", "start", "", 95.0),
            id="one with a node has its containers made, and knows how long it waited",
        ),
        pytest.param(
            a_pod_seen(waiting("PodInitializing"), inits=[a_status("fetch", running())]),
            Placement("node-1", "start", "its init container fetch runs"),
            id="an init container runs",
        ),
        pytest.param(
            a_pod_seen(waiting("PodInitializing"), inits=[{**a_status("proxy", running()), "started": True}]),
            Placement("node-1", "start"),
            id="a helper that runs on is no init container to wait for",
        ),
        pytest.param(
            a_pod_seen(waiting("ImagePullBackOff", 'Back-off pulling image "thmubs:1"')),
            Placement("node-1", "image", 'ImagePullBackOff: Back-off pulling image "thmubs:1"'),
            id="its image can't be pulled, in the kubelet's words",
        ),
        pytest.param(a_pod_seen(running()), Placement("node-1"), id="it runs"),
        pytest.param(
            a_pod_seen(
                running(),
                conditions=[a_condition("Ready", "False"), a_condition("ContainersReady", "True")],
            ),
            Placement("node-1", words="its node does not answer", is_silent=True),
            id="its node does not answer",
        ),
        pytest.param(
            a_pod_seen(running(), conditions=[a_condition("Ready", "False", "ContainersNotReady")]),
            Placement("node-1"),
            id="a helper that is not ready says nothing about its node",
        ),
        pytest.param(
            a_pod_seen(
                running(),
                leaving=True,
                conditions=[a_condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")],
            ),
            Placement("node-1", words="EvictionByEvictionAPI: Eviction API: evicting", is_leaving=True),
            id="an evicted one is leaving",
        ),
    ],
)
def test_a_pod_tells_where_it_is_and_what_it_waits_for(pod: dict[str, Any], place: Placement) -> None:
    state = state_of(pod)
    assert state.placement == place
    assert state.ending is None


@pytest.mark.parametrize(
    ("pod", "ending", "cause"),
    [
        pytest.param(a_pod_seen(terminated(0)), PodEnding(code=0), Cause.FINISHED, id="exit code 0"),
        pytest.param(
            a_pod_seen(terminated(3, message="about to fail\nwhy it ended\n")),
            PodEnding(code=3, last_lines=("about to fail", "why it ended")),
            Cause.CRASHED,
            id="an exit code, with its last lines",
        ),
        pytest.param(
            a_pod_seen(terminated(139)), PodEnding(signal=11), Cause.SIGNALLED, id="a signal is 128 + its number"
        ),
        pytest.param(
            a_pod_seen(terminated(137, "OOMKilled"), memory="64Mi"),
            PodEnding(signal=9, out_of_memory=True, memory_limit_bytes=64 * 2**20),
            Cause.OUT_OF_MEMORY,
            id="out of memory, with its limit",
        ),
        pytest.param(
            a_pod_seen(terminated(137), memory="64Mi"),
            PodEnding(signal=9, memory_limit_bytes=64 * 2**20),
            Cause.SIGNALLED,
            id="killed after its grace: only the reason tells it from out of memory",
        ),
        pytest.param(
            a_pod_seen(running(), phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
            PodEnding(fate="disrupted", reason="Evicted: The node was low on resource: memory."),
            Cause.DISRUPTED,
            id="evicted, in the kubelet's words",
        ),
        pytest.param(
            a_pod_seen(
                terminated(143),
                conditions=[a_condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempted")],
            ),
            PodEnding(signal=15, fate="disrupted", reason="PreemptionByScheduler: preempted"),
            Cause.DISRUPTED,
            id="preempted",
        ),
        pytest.param(
            a_pod_seen(
                phase="Failed",
                reason="Terminated",
                message="Pod was terminated in response to imminent node shutdown.",
            ),
            PodEnding(fate="disrupted", reason="Terminated: Pod was terminated in response to imminent node shutdown."),
            Cause.DISRUPTED,
            id="its node was shut down",
        ),
        pytest.param(
            a_pod_seen(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
            PodEnding(fate="disrupted", reason="OutOfcpu: Node didn't have enough resource: cpu", is_refused=True),
            Cause.DISRUPTED,
            id="refused by its node: neither statuses nor conditions",
        ),
        pytest.param(
            a_pod_seen(
                running(),
                phase="Failed",
                conditions=[a_condition("DisruptionTarget", "True", "DeletionByPodGC", "node is gone")],
            ),
            PodEnding(fate="node lost", reason="DeletionByPodGC: node is gone"),
            Cause.NODE_LOST,
            id="its node was removed",
        ),
        pytest.param(
            a_pod_seen(terminated(137), phase="Failed", reason="DeadlineExceeded", message="Pod was active too long"),
            PodEnding(code=124, reason="Pod was active too long (its template's activeDeadlineSeconds)"),
            Cause.CRASHED,
            id="out of the time that its template gives it",
        ),
        pytest.param(
            a_pod_seen(
                waiting("PodInitializing"),
                phase="Failed",
                inits=[a_status("fetch", terminated(2, message="no route"))],
            ),
            PodEnding(
                code=125,
                reason="can't start a worker of pool resize: its init container fetch ended with exit code 2",
                last_lines=("no route",),
            ),
            Cause.CRASHED,
            id="an init container failed",
        ),
        pytest.param(
            a_pod_seen(terminated(0), phase="Running", helpers=[a_status("proxy", running())]),
            PodEnding(code=0),
            Cause.FINISHED,
            id="a helper that runs on holds no worker up",
        ),
    ],
)
def test_a_pod_tells_how_its_worker_ended(pod: dict[str, Any], ending: PodEnding, cause: Cause) -> None:
    assert ending_of(pod) == ending
    assert cause_in(ending) is cause


def test_a_missing_command_is_told_as_that_and_is_a_failed_start() -> None:
    said = 'exec: "python9": executable file not found in $PATH'
    pod = a_pod_seen(terminated(128, "StartError", said, started="1970-01-01T00:00:00Z"))
    pod["spec"]["containers"][0]["command"] = ["python9"]
    ending = ending_of(pod)
    assert (ending.code, cause_in(ending)) == (128, Cause.CRASHED)
    assert ending.reason.endswith("no such command: python9; give its path in the image")


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_an_image_that_cannot_be_pulled_is_waited_for(reason: str) -> None:
    assert state_of(a_pod_seen(waiting(reason, "not found"))).patience == "image"


@pytest.mark.parametrize(
    "reason", ["InvalidImageName", "ErrImageNeverPull", "CreateContainerError", "RunContainerError"]
)
def test_what_can_never_start_is_a_failed_start_at_once(reason: str) -> None:
    state = state_of(a_pod_seen(waiting(reason, "no")))
    assert (state.patience, state.failure) == ("none", f"{reason}: no")


def test_a_pod_of_a_lost_node_is_lost_though_its_phase_says_running() -> None:
    target = a_condition("DisruptionTarget", "True", "DeletionByTaintManager", "Taint manager: deleting")
    assert state_of(a_pod_seen(running(), leaving=True, conditions=[target])).is_lost
    assert state_of(a_pod_seen(running(), leaving=True, conditions=[target, a_condition("Ready", "False")])).is_lost
    assert state_of(a_pod_seen(running(), phase="Unknown")).is_lost


def test_a_node_that_still_says_its_pod_is_ready_is_not_lost_by_a_taint() -> None:
    target = a_condition("DisruptionTarget", "True", "DeletionByTaintManager")
    state = state_of(a_pod_seen(running(), leaving=True, conditions=[target, a_condition("Ready", "True")]))
    assert not state.is_lost
    assert state.placement.is_leaving


def test_a_deleted_pod_ended_as_it_says_or_was_removed_from_outside() -> None:
    def deleted(pod: dict[str, Any]) -> PodEnding:
        return ending_of_deleted(state_of(pod), pod)

    assert deleted(a_pod_seen(terminated(0))) == PodEnding(code=0)
    assert deleted(a_pod_seen(running())) == PodEnding(fate="removed")
    assert deleted(a_pod_seen(None)) == PodEnding(fate="removed", reason="it had not run")
    evicted = a_condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "evicted")
    assert deleted(a_pod_seen(running(), conditions=[evicted])).fate == "disrupted"
    gone = a_condition("DisruptionTarget", "True", "DeletionByPodGC", "node is gone")
    assert deleted(a_pod_seen(running(), conditions=[gone])).fate == "node lost"


def test_a_pod_without_our_labels_is_none_of_ours() -> None:
    pod = a_pod_seen(running())
    pod["metadata"]["labels"] = {"app": "something"}
    assert pod_state(pod) is None


def test_ages_are_by_the_clocks_of_the_cluster_alone() -> None:
    scheduled = a_condition("PodScheduled", "True", at="2026-11-29T12:00:07Z")
    assert state_of(a_pod_seen(running(), conditions=[scheduled])).placement.node_wait_seconds == 7.0
    early = a_condition("PodScheduled", "True", at="2026-11-29T11:59:00Z")
    assert state_of(a_pod_seen(running(), conditions=[early])).placement.node_wait_seconds == 0.0
    assert CREATED == "2026-11-29T12:00:00Z"


@pytest.mark.parametrize(
    ("written", "count"),
    [("64Mi", 64 * 2**20), ("1Gi", 2**30), ("500M", 500_000_000), ("1048576", 2**20), ("", None), ("much", None)],
)
def test_a_quantity_is_read_as_bytes(written: str, count: int | None) -> None:
    assert quantity(written) == count


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses"]


@given(status=st.dictionaries(st.sampled_from(KEYS), JSON), about=st.dictionaries(st.text(max_size=8), JSON))
def test_whatever_a_status_has_it_is_read_and_never_raises(status: dict[str, Any], about: dict[str, Any]) -> None:
    pod = a_pod_seen(running())
    pod["status"] = status
    pod["metadata"] |= {name: found for name, found in about.items() if name not in pod["metadata"]}
    state = state_of(pod)
    assert state.ending is None or not state.is_running


STATES = st.sampled_from(
    [
        None,
        running(),
        waiting("ContainerCreating"),
        waiting("ErrImagePull"),
        terminated(0),
        terminated(1),
        terminated(137),
    ]
)
REASONS = ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC", "Other"]


@given(
    state=STATES,
    leaving=st.booleans(),
    disruption=st.none() | st.sampled_from(REASONS),
    phase=st.sampled_from(["", "Unknown", "Failed", "Running"]),
    reason=st.sampled_from(["", "Evicted", "OutOfpods", "Terminated", "NodeLost"]),
)
def test_a_worker_lives_or_has_ended_and_never_both(
    state: dict[str, Any] | None, leaving: bool, disruption: str | None, phase: str, reason: str
) -> None:
    conditions = [a_condition("DisruptionTarget", "True", disruption)] if disruption else []
    seen = state_of(a_pod_seen(state, leaving=leaving, conditions=conditions, phase=phase, reason=reason))
    ended = seen.ending is not None
    assert not (ended and (seen.is_running or seen.is_lost or seen.failure))
    if state is not None and "terminated" in state:
        assert ended
    if ended and seen.ending is not None and seen.ending.out_of_memory:
        assert seen.ending.signal == 9
