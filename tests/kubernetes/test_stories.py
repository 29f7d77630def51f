"""Pods under a supervisor on real nodes: what happens to the work when something happens to them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.eventually import eventually
from tests.support.kubernetes.cluster import Json, worker_of
from tests.support.kubernetes.images import TOWLINE
from tests.support.kubernetes.judge import cuts, deletions_of, done_twice, leases_of
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.plane import Plane
from tests.support.kubernetes.site import PodSite, pod_site
from tests.support.kubernetes.stage import ACCOUNT, plane_stage

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture
def site(cluster: tuple[Plane, list[Node]], tmp_path: Path) -> Iterator[PodSite]:
    """A queue server that Pods reach, and a namespace in which a Pod may do nothing but work."""
    with pod_site(plane_stage(cluster[0], labels=RESTRICTED), tmp_path) as made:
        yield made


def cut(site: PodSite, *, told: Mapping[str, float] | None = None) -> list[object]:
    """Return what both logs say of workers that a DELETE of the supervisor met at work."""
    assert site.stage.plane is not None
    audit = [one for one in site.stage.plane.audit() if of_namespace(one, site.stage.namespace)]
    return list(cuts(leases_of(site.changes()), deletions_of(audit), user=ACCOUNT, told=told or {}))


def of_namespace(record: Json, namespace: str) -> bool:
    return bool(record["objectRef"].get("namespace") == namespace)


def node_of(site: PodSite, worker: str) -> str:
    found = site.stage.pod(worker)
    assert found is not None
    return str(found["spec"]["nodeName"])


def last_failure(site: PodSite) -> str:
    pools = cast("dict[str, dict[str, Any]]", site.shown().get("pools") or {})
    return str((pools.get("resize", {}).get("last_failure") or {}).get("why", ""))


def test_a_fleet_grows_from_none_does_its_work_and_shrinks_to_none_and_nobody_is_cut(site: PodSite) -> None:
    site.write(resize=site.pool(slo="3s", churn="1s", workers={"min": 0, "max": 4}))
    site.start()
    assert site.pods() == []
    names = site.add(*["rest 0.5"] * 20)
    site.until(site.is_done)
    assert {note.task for note in site.recorder.notes("end")} == set(names)
    site.until(lambda: site.pods() == [])
    site.stop()
    assert cut(site) == []
    assert done_twice(leases_of(site.changes())) == set()
    assert {death["cause"] for death in site.deaths().values()} == {"drained"}


def test_a_new_image_and_a_lowered_max_cut_nobody(site: PodSite, nodes: list[Node]) -> None:
    # kedacore/keda#1021: new settings must not end running work.
    for node in nodes:
        node.tag(TOWLINE, "localhost/towline:2")
    pool: dict[str, Any] = {"grace": "1s", "workers": {"min": 2, "max": 2}}
    site.write(resize=site.pool(**pool))
    site.start()
    site.add("hold go", "hold go")
    old = set(site.begun(2))
    changed = site.pool(**pool, pod={"image": "localhost/towline:2"})
    site.write(resize=changed)
    site.until(lambda: len(site.logged("worker.finishing")) == 2)
    site.write(resize={**changed, "workers": {"min": 1, "max": 1}})
    site.until(lambda: len(site.logged("supervisor.reloaded")) == 2)
    assert old <= site.living()
    site.recorder.let_go("go")
    site.until(site.is_done)
    site.until(lambda: len(site.living()) == 1 and not old & site.living())
    stats = site.queue.stats()
    assert (stats.deleted_total, stats.released_total, stats.expired_total) == (2, 0, 0)
    site.stop()
    assert cut(site) == []


def test_a_worker_that_dies_and_one_over_its_memory_limit_are_told_apart_and_their_tasks_run_again(
    site: PodSite,
) -> None:
    site.write(resize=site.pool(workers={"min": 1, "max": 1}, pod={"memory": "96MiB"}))
    site.start()
    (died,) = site.add("die")
    site.until(site.is_done)
    (eater,) = site.add("eat 200")
    site.until(site.is_done)
    workers = {note.task: note.worker for note in site.recorder.notes() if note.lease == 1}
    again = {note.task: note.worker for note in site.recorder.notes() if note.lease == 2}
    assert again.keys() == {died, eater}
    assert all(again[task] != workers[task] for task in again)
    site.until(lambda: set(workers.values()) <= site.deaths().keys())
    assert site.deaths()[workers[died]]["signal"] == 9
    assert site.deaths()[workers[died]]["cause"] != "out of memory"
    death = site.deaths()[workers[eater]]
    assert (death["cause"], death["memory_limit_bytes"]) == ("out of memory", 96 << 20)
    site.stop()


def test_an_image_that_is_not_there_is_told_in_the_kubelets_words_and_makes_no_storm(site: PodSite) -> None:
    site.write(resize=site.pool(workers={"max": 4}, pod={"image": "localhost/missing:1"}))
    site.start()
    site.add(*["rest 0"] * 8)
    site.until(lambda: "localhost/missing:1" in last_failure(site))
    assert len(site.pods()) <= 4
    site.stop()


def test_a_quota_is_told_and_what_it_leaves_free_is_used(site: PodSite) -> None:
    site.stage.set_quota(1)
    site.write(resize=site.pool(slo="1s", workers={"max": 3}))
    site.start()
    site.add(*["hold go"] * 3)
    site.begun(1)
    site.until(lambda: "exceeded quota" in str(site.shown()))
    assert len(site.pods()) == 1
    site.stage.lift_quota()
    site.recorder.let_go("go")
    site.until(site.is_done)
    site.stop()
    assert cut(site) == []


def test_a_supervisor_that_is_killed_is_followed_by_one_that_knows_its_workers(site: PodSite) -> None:
    site.write(resize=site.pool(workers={"min": 2, "max": 2}))
    first = site.start()
    site.add("hold go", "hold go")
    held = set(site.begun(2))
    first.kill()
    first.wait()
    site.start()
    site.until(lambda: site.believed() == held)
    assert {worker_of(pod) for pod in site.pods()} == held
    site.recorder.let_go("go")
    site.until(site.is_done)
    assert {note.lease for note in site.recorder.notes()} == {1}
    site.stop()


def test_workers_that_are_evicted_or_deleted_by_a_person_finish_in_their_grace_and_successors_come_first(
    site: PodSite,
) -> None:
    site.write(resize=site.pool(grace="60s", workers={"min": 2, "max": 4}))
    site.start()
    site.add("hold go", "hold go")
    evicted, deleted = site.begun(2)
    node = node_of(site, evicted)
    site.stage.cluster.cordon(node)
    try:
        site.stage.cluster.evict(site.stage.pod_name(evicted), site.stage.namespace)
        site.stage.cluster.delete(site.stage.pod_name(deleted), site.stage.namespace)
        site.until(lambda: len(site.living() - {evicted, deleted}) == 2)
        assert site.stage.pod(evicted) is not None
        assert site.stage.pod(deleted) is not None
        site.recorder.let_go("go")
        site.until(site.is_done)
        assert [note.lease for note in site.recorder.notes()] == [1, 1]
        site.until(lambda: not {evicted, deleted} & site.believed())
    finally:
        site.stage.cluster.cordon(node, is_wanted=False)
    site.stop()
    assert cut(site) == []


def test_an_apiserver_that_is_away_costs_no_task_and_no_worker(site: PodSite) -> None:
    assert site.stage.plane is not None
    site.write(resize=site.pool(workers={"min": 2, "max": 2}))
    site.start()
    site.add("hold go", "hold go")
    workers = set(site.begun(2))
    apiserver = site.stage.plane.part("apiserver")
    apiserver.kill()
    site.until(lambda: site.logged("cluster.lost"))
    more = site.add(*["rest 0.1"] * 4)
    site.recorder.let_go("go")
    site.until(site.is_done)
    site.stage.plane.restart("apiserver")
    site.until(lambda: site.logged("cluster.found"))
    assert site.believed() == site.living() == workers
    assert {note.worker for note in site.recorder.notes("end") if note.task in more} <= workers
    assert site.deaths() == {}
    site.stop()


def test_a_worker_that_is_preempted_is_told_as_that_and_its_task_runs_again_uncounted(site: PodSite) -> None:
    site.stage.cluster.ensure(
        "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "important"}, "value": 1000}
    )
    site.write(resize=site.pool(grace="1s", workers={"min": 2, "max": 2}, pod={"cpus": 1.2}))
    site.start()
    site.add("hold go", "hold go")
    site.begun(2)
    container = {
        "name": "worker",
        "image": TOWLINE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "1200m"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec: Json = {"priorityClassName": "important", "containers": [container], "securityContext": security}
    site.stage.stranger("important", labels={}, spec={**spec, "terminationGracePeriodSeconds": 1})
    site.until(lambda: len(site.deaths()) == 1)
    (death,) = site.deaths().values()
    assert death["cause"] == "disrupted"
    assert "reempt" in str(death["detail"])
    site.stage.cluster.delete("important", site.stage.namespace, grace_seconds=1)
    site.recorder.let_go("go")
    site.until(site.is_done)
    assert {note.lease for note in site.recorder.notes()} == {1}
    site.stop()


def test_a_node_that_is_silent_costs_its_workers_and_no_task_and_they_end_when_it_is_back(
    site: PodSite, nodes: list[Node]
) -> None:
    site.write(resize=site.pool(grace="1s", workers={"min": 2, "max": 2}))
    site.start()
    site.add("hold go", "hold go")
    workers = site.begun(2)
    silent = next(node for node in nodes if node.name == node_of(site, workers[0]))
    lost = {worker for worker in workers if node_of(site, worker) == silent.name}
    silent.freeze()
    try:
        site.until(lambda: lost <= site.deaths().keys())
        assert {site.deaths()[worker]["cause"] for worker in lost} == {"node lost"}
        assert all(site.stage.pod(worker) is not None for worker in lost)  # its object is left alone
        site.recorder.let_go("go")
        site.until(site.is_done)
        assert done_twice(leases_of(site.changes())) == set()
    finally:
        silent.thaw()
    site.until(lambda: not any(site.stage.pod(worker) for worker in lost))
    eventually(lambda: site.stage.cluster.is_ready(silent.name))
    site.stop()


def test_a_fleet_whose_anchor_is_deleted_ends_and_is_told(site: PodSite) -> None:
    site.write(resize=site.pool(workers={"min": 2, "max": 2}))
    site.start()
    site.until(lambda: len(site.living()) == 2)
    site.stage.delete_anchor()
    site.until(lambda: site.pods() == [])
    site.until(lambda: "towline-fleet" in str(site.shown()))
    assert site.pods() == []
    site.stop()
