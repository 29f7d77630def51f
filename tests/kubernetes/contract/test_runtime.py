"""What the runtime promises of a worker that is a Pod, on a real control plane and on its stand-in alike.

The test plays the scheduler and the kubelet: it says where a Pod goes, and what becomes of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.base.errors import OrchestratorError
from tests.support.eventually import eventually
from tests.support.kubernetes.bench import CLOCK, PodBench, pod_bench
from tests.support.kubernetes.cluster import Json
from tests.support.kubernetes.objects import now_text
from tests.support.kubernetes.stage import NODE, Stage, disruption, ended, failed, running, scheduler_says, waiting


@pytest.fixture
def bench(stage: Stage, tmp_path: Path) -> Iterator[PodBench]:
    with pod_bench(stage, tmp_path) as made:
        yield made


def body_of(bench: PodBench, worker: str) -> Json:
    found = bench.stage.pod(worker)
    assert found is not None
    return found


# -- a start -----------------------------------------------------------------------------------------------------------


def test_a_worker_is_a_bare_pod_of_the_fleet(bench: PodBench) -> None:
    handle = bench.spawn()
    metadata = body_of(bench, handle.worker)["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ConfigMap", bench.stage.anchor_uid, True)
    assert metadata["labels"]["towline.fleet"] == bench.stage.anchor_uid
    assert metadata["labels"]["towline.pool"] == "resize"
    assert metadata["labels"]["towline.spec"] == handle.spec_digest == bench.pool().digest()
    assert not metadata.get("finalizers")


def test_a_pod_is_never_started_again_by_the_cluster_and_has_its_pools_grace(bench: PodBench) -> None:
    # PrefectHQ/prefect#12988 and others: one party retries.
    spec = body_of(bench, bench.spawn().worker)["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 35)


def test_autoscalers_are_told_to_leave_a_pod_alone_from_its_creation_on(bench: PodBench) -> None:
    # kubernetes-sigs/karpenter#70, kubernetes/autoscaler#3300
    annotations = body_of(bench, bench.spawn().worker)["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_no_secret_is_in_a_pods_environment_and_no_account_in_the_pod(bench: PodBench) -> None:
    found = body_of(bench, bench.spawn().worker)
    assert found["spec"]["automountServiceAccountToken"] is False
    assert "secret" not in [variable.get("value") for variable in found["spec"]["containers"][0]["env"]]


def test_a_worker_is_named_by_its_context_its_namespace_and_its_pod(bench: PodBench) -> None:
    handle = bench.spawn()
    name = body_of(bench, handle.worker)["metadata"]["name"]
    assert handle.ref == f"kubernetes:tests/{bench.stage.namespace}#{name}"


def test_a_quota_that_is_used_up_is_told_in_the_apiservers_words(bench: PodBench) -> None:
    bench.stage.set_quota(1)
    bench.spawn()
    with pytest.raises(OrchestratorError, match="exceeded quota: quota"):
        bench.spawn()
    assert len(bench.stage.pods()) == 1


def test_a_quota_below_the_fleet_ends_nobody(bench: PodBench) -> None:
    first, second = bench.up(), bench.up()
    bench.stage.set_quota(1)
    assert {first.worker, second.worker} <= bench.living()
    assert bench.reap() == []


# -- an end ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """A last status, and what the exit says of it."""

    status: Json
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False


ENDS = {
    "finished": End(ended(0), code=0),
    "failed": End(ended(3), code=3),
    "killed by a signal of its own": End(ended(139), signal=11),
    "out of memory": End(ended(137, reason="OOMKilled"), signal=9, out_of_memory=True),
    "killed, and not out of memory": End(ended(137, reason="Error"), signal=9),
    "ended beside a sidecar that runs on": End(ended(0, phase="Running"), code=0),
}


@pytest.mark.parametrize("case", ENDS)
def test_an_end_is_told_once_with_what_the_kubelet_reported(bench: PodBench, case: str) -> None:
    # dagster-io/dagster#34207: out of memory, evicted and failed are told apart.
    end = ENDS[case]
    handle = bench.up()
    bench.stage.report(handle.worker, end.status)
    (told,) = bench.exits()
    assert (told.worker, told.ref) == (handle.worker, handle.ref)
    assert (told.code, told.signal, told.out_of_memory) == (end.code, end.signal, end.out_of_memory)
    assert bench.reap() == []


def test_the_last_lines_and_the_memory_limit_are_told(bench: PodBench) -> None:
    handle = bench.up(bench.pool(pod={"memory": "64MiB"}))
    bench.stage.end(handle.worker, code=137, reason="OOMKilled", message="line one\nline two\n")
    (told,) = bench.exits()
    assert told.memory_limit_bytes == 64 << 20
    assert told.last_lines == ("line one", "line two")


def test_the_object_of_a_pod_that_has_ended_is_removed_by_whoever_made_it(bench: PodBench) -> None:
    # ray-project/kuberay#942, apache/airflow#22612
    handle = bench.up()
    bench.stage.end(handle.worker)
    bench.exits()
    eventually(lambda: bench.stage.pod(handle.worker) is None)
    assert bench.reap() == []


def test_a_pod_that_was_removed_without_a_last_word_has_ended(bench: PodBench) -> None:
    # apache/airflow#17693: ADDED, MODIFIED, DELETED, and no terminal phase.
    handle = bench.up()
    bench.stage.remove(handle.worker)
    (told,) = bench.exits()
    assert (told.worker, told.code, told.fate) == (handle.worker, None, "removed")


def test_an_end_is_read_from_the_last_state_of_a_pod_that_is_gone(bench: PodBench) -> None:
    # argoproj/argo-workflows#7994: the cluster's own collector may be first.
    handle = bench.up()
    bench.stage.end(handle.worker, code=3, message="why")
    bench.stage.remove(handle.worker)
    (told,) = bench.exits()
    assert (told.code, told.last_lines) == (3, ("why",))


@pytest.mark.parametrize("reason", ["ErrImageNeverPull", "InvalidImageName", "CreateContainerError"])
def test_a_container_that_can_never_start_is_a_failed_start_in_the_kubelets_words(bench: PodBench, reason: str) -> None:
    # kubernetes/kubernetes#122300, buildkite/agent-stack-k8s#143
    handle = bench.spawn()
    bench.stage.schedule(handle.worker)
    bench.stage.report(handle.worker, waiting(reason, "the kubelet says why"))
    (told,) = bench.exits()
    assert "the kubelet says why" in told.reason
    eventually(lambda: bench.stage.is_leaving(handle.worker))


def test_an_image_that_cant_be_pulled_is_a_failed_start_after_the_pools_patience(bench: PodBench) -> None:
    handle = bench.spawn(bench.pool(pod={"image_patience": "1s"}))
    bench.stage.schedule(handle.worker)
    bench.stage.report(handle.worker, waiting("ImagePullBackOff", "Back-off pulling image: not found"))
    (told,) = bench.exits()
    assert "Back-off pulling image: not found" in told.reason


@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfpods", "UnexpectedAdmissionError"])
def test_a_pod_that_its_node_refused_is_told_and_removed(bench: PodBench, reason: str) -> None:
    # actions-runner-controller#4168: refused after scheduling, with neither container nor condition.
    handle = bench.spawn()
    bench.stage.schedule(handle.worker)
    bench.stage.report(handle.worker, failed(reason, "the node was full"))
    (told,) = bench.exits()
    assert told.worker == handle.worker
    eventually(lambda: bench.stage.pod(handle.worker) is None)


def test_a_pod_that_was_evicted_is_told_with_the_kubelets_words(bench: PodBench) -> None:
    # dagster-io/dagster#3705: evicted, and for ever "started".
    handle = bench.up()
    bench.stage.report(handle.worker, failed("Evicted", "The node was low on resource: memory."))
    (told,) = bench.exits()
    assert "The node was low on resource: memory." in told.reason


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"])
def test_a_pod_that_the_cluster_takes_away_is_told_as_stopped_from_outside(bench: PodBench, reason: str) -> None:
    handle = bench.up()
    status = ended(143)
    status["conditions"].append(disruption(reason, "the cluster says why"))
    bench.stage.cluster.delete(bench.stage.pod_name(handle.worker), bench.stage.namespace)
    bench.stage.report(handle.worker, status)
    (told,) = bench.exits()
    assert told.fate == "disrupted"
    assert "the cluster says why" in told.reason


def test_a_worker_of_a_lost_node_is_given_up_once_and_its_object_is_left_alone(bench: PodBench) -> None:
    # kubernetes/kubernetes#55713: on a dead node a Pod is leaving for ever.
    handle = bench.up()
    status = running()
    status["conditions"] = [*without_ready(status), not_ready("Unknown"), disruption("DeletionByTaintManager", "gone")]
    bench.stage.cluster.delete(bench.stage.pod_name(handle.worker), bench.stage.namespace)
    bench.stage.report(handle.worker, status)
    (told,) = bench.exits()
    assert (told.worker, told.fate) == (handle.worker, "node lost")
    assert bench.disowned == [handle.worker]
    assert bench.stage.pod(handle.worker) is not None
    assert bench.reap() == []


# -- what a worker waits for -------------------------------------------------------------------------------------------


def test_a_pod_that_no_node_takes_waits_in_the_schedulers_words(bench: PodBench) -> None:
    handle = bench.spawn()
    eventually(lambda: bench.place(handle.worker).words)
    place = bench.place(handle.worker)
    assert (place.waits_for, place.is_unplaced) == ("node", True)
    assert place.words == scheduler_says(body_of(bench, handle.worker))


def test_a_pod_with_a_gate_waits_for_its_admission(bench: PodBench) -> None:
    # kubernetes-sigs/kueue#1648
    gated = {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    handle = bench.spawn(bench.pool(pod={"template": gated}))
    eventually(lambda: bench.place(handle.worker).waits_for == "admission")
    assert "kueue.x-k8s.io/admission" in bench.place(handle.worker).words


def test_a_pod_whose_image_is_pulled_waits_for_its_start(bench: PodBench) -> None:
    handle = bench.spawn()
    bench.stage.schedule(handle.worker)
    bench.stage.report(handle.worker, waiting("ContainerCreating"))
    eventually(lambda: bench.place(handle.worker).waits_for == "start")
    assert bench.place(handle.worker).node == NODE


def test_a_pod_that_somebody_deletes_leaves_from_the_first_moment_on(bench: PodBench) -> None:
    handle = bench.up()
    eventually(lambda: bench.place(handle.worker).node == NODE)
    assert not bench.place(handle.worker).is_leaving
    bench.stage.cluster.delete(bench.stage.pod_name(handle.worker), bench.stage.namespace)
    eventually(lambda: bench.place(handle.worker).is_leaving)
    assert bench.reap() == []


def test_a_worker_whose_node_does_not_answer_is_silent_and_not_ended(bench: PodBench) -> None:
    handle = bench.up()
    status = running()
    status["conditions"] = [*without_ready(status), not_ready("False")]
    bench.stage.report(handle.worker, status)
    eventually(lambda: bench.place(handle.worker).is_silent)
    assert bench.reap() == []


def without_ready(status: Json) -> list[Json]:
    return [one for one in status["conditions"] if one["type"] != "Ready"]


def not_ready(state: str) -> Json:
    """What the cluster says in place of a node that has not answered."""
    return {"type": "Ready", "status": state, "lastTransitionTime": now_text()}


# -- who may act -------------------------------------------------------------------------------------------------------


def test_only_a_leader_makes_pods(bench: PodBench) -> None:
    bench.leads = False
    with pytest.raises(OrchestratorError):
        bench.runtime.spawn(bench.request(), now=CLOCK.monotonic())
    assert bench.stage.pods() == []


def test_only_a_leader_ends_pods_and_what_a_standby_asked_for_is_not_sent_later(bench: PodBench) -> None:
    handle, mark = bench.up(), bench.up()
    bench.leads = False
    bench.runtime.drain(handle.worker)
    bench.runtime.kill(handle.worker)
    bench.reap()
    bench.leads = True
    bench.runtime.drain(mark.worker)
    eventually(lambda: bench.reap() or bench.stage.is_leaving(mark.worker))
    assert not bench.stage.is_leaving(handle.worker)


def test_what_a_leader_asked_for_goes_on_after_it_has_given_up_the_lead(bench: PodBench) -> None:
    # A supervisor that stops drains its workers and gives up the lead at once, so that another may begin.
    drained, killed = bench.up(), bench.up()
    bench.runtime.drain(drained.worker)
    bench.runtime.drain(killed.worker)
    bench.leads = False
    eventually(lambda: bench.reap() or bench.stage.is_leaving(drained.worker))
    bench.runtime.kill(killed.worker)
    eventually(lambda: bench.reap() or bench.stage.grace_of(killed.worker) == 1)


def test_a_start_that_failed_is_ended_once_the_queue_has_fenced_it(bench: PodBench) -> None:
    # apache/spark#31513, ray-project/ray#35560: the "pending" Pod that is deleted has become a worker.
    handle = bench.spawn()
    bench.busy.add(handle.worker)
    bench.stage.schedule(handle.worker)
    bench.stage.report(handle.worker, waiting("CreateContainerError", "why"))
    eventually(lambda: bench.reap() or handle.worker in bench.retired)
    assert not bench.stage.is_leaving(handle.worker)
    bench.busy.clear()
    (told,) = bench.exits()
    assert told.worker == handle.worker


# -- a stop ------------------------------------------------------------------------------------------------------------


def test_a_drain_gives_a_pod_its_grace_and_says_nothing_until_it_has_ended(bench: PodBench) -> None:
    handle = bench.up()
    bench.runtime.drain(handle.worker)
    eventually(lambda: bench.stage.grace_of(handle.worker) == 35)
    assert bench.reap() == []
    bench.stage.end(handle.worker)
    (told,) = bench.exits()
    assert told.code == 0


def test_a_kill_shortens_the_grace_to_a_second_and_never_to_none(bench: PodBench) -> None:
    # A grace of 0 removes the object while the process runs on.
    handle = bench.up()
    bench.runtime.drain(handle.worker)
    eventually(lambda: bench.stage.grace_of(handle.worker) == 35)
    bench.runtime.kill(handle.worker)
    eventually(lambda: bench.stage.grace_of(handle.worker) == 1)


def test_a_pod_that_no_node_has_goes_at_once(bench: PodBench) -> None:
    handle = bench.spawn()
    bench.runtime.drain(handle.worker)
    (told,) = bench.exits()
    assert told.worker == handle.worker
    assert bench.stage.pods() == []


def test_a_pod_that_somebody_deletes_drains_and_is_told_as_stopped_from_outside(bench: PodBench) -> None:
    handle = bench.up()
    bench.stage.cluster.delete(bench.stage.pod_name(handle.worker), bench.stage.namespace)
    bench.stage.end(handle.worker)
    bench.stage.remove(handle.worker)
    (told,) = bench.exits()
    assert (told.worker, told.code) == (handle.worker, 0)


def test_nobody_elses_pod_is_touched(bench: PodBench) -> None:
    bench.stage.stranger("a-stranger", labels={"app": "something"})
    handle = bench.up()
    bench.runtime.kill(handle.worker)
    bench.runtime.kill("a-stranger")
    bench.stage.end(handle.worker)
    bench.exits()
    bench.stage.remove(handle.worker)
    eventually(lambda: [pod["metadata"]["name"] for pod in bench.stage.pods()] == ["a-stranger"])


def test_a_wait_ends_with_the_exit(bench: PodBench) -> None:
    handle = bench.up()
    eventually(lambda: handle.worker in bench.living())
    bench.stage.end(handle.worker)
    assert bench.runtime.wait_for_exit(timeout_seconds=60) is True


# -- another supervisor ------------------------------------------------------------------------------------------------


def test_a_supervisor_that_starts_finds_the_workers_of_its_fleet_by_their_label(bench: PodBench) -> None:
    first, second = bench.up(), bench.spawn()
    bench.reopen()
    found = {handle.worker: handle for handle in bench.adopt(first, second)}
    assert set(found) == {first.worker, second.worker}
    assert (found[first.worker].ref, found[first.worker].spec_digest) == (first.ref, first.spec_digest)
    assert found[first.worker].spawned_at <= CLOCK.monotonic()


def test_a_supervisor_without_a_memory_finds_them_as_well(bench: PodBench) -> None:
    handle = bench.up()
    bench.reopen()
    assert [found.worker for found in bench.adopt()] == [handle.worker]


def test_a_worker_that_ended_meanwhile_is_told_or_not_adopted(bench: PodBench) -> None:
    handle = bench.up()
    bench.runtime.close()
    bench.stage.remove(handle.worker)
    bench.reopen()
    assert bench.adopt(handle) == []


def test_another_fleets_pods_are_not_adopted(bench: PodBench) -> None:
    labels = {"towline.fleet": "another", "towline.pool": "resize", "towline.worker": "resize-9", "towline.spec": "x"}
    bench.stage.stranger("towline-resize-9", labels=labels)
    bench.reopen()
    assert bench.adopt() == []


def test_an_anchor_that_is_deleted_ends_all_and_starts_none(bench: PodBench) -> None:
    handle = bench.up()
    bench.stage.delete_anchor()
    eventually(lambda: bench.stage.is_leaving(handle.worker))
    bench.stage.end(handle.worker)
    bench.stage.remove(handle.worker)
    bench.exits()

    def refused() -> bool:
        try:
            bench.runtime.spawn(bench.request(), now=CLOCK.monotonic())
        except OrchestratorError as error:
            return "towline-fleet" in str(error)
        return False

    eventually(refused)
    eventually(lambda: not bench.stage.pods())
