"""A supervisor that begins to lead takes over workers and knowledge; one that no longer leads gives way."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.config.overrides import Moment, Overrides, with_size
from orchestrator.fleet.workers import RememberedWorker
from orchestrator.runtime import WorkerHandle
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.snapshot import WallTime
from orchestrator.supervisor.succession import MAX_BYTES, FleetIdentity, Legacy, legacy_in, legacy_text
from orchestrator.supervisor.supervisor import CLUSTER_VARIABLE, Supervisor
from tests.support.eventually import eventually
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.supervisor_stage import CLOCK, SupervisorStage

BOOT = "this boot"


@pytest.fixture
def stage(tmp_path: Path) -> SupervisorStage:
    return SupervisorStage(tmp_path / "own")


def a_handle(worker: str, ref: str) -> WorkerHandle:
    return WorkerHandle(worker, "resize", ref, a_pool().digest(), CLOCK.monotonic())


def kept(by: str, *workers: str, **more: object) -> str:
    """Return what a leader of this name keeps, with containers of these names."""
    rows = [
        {"worker": name, "pool": "resize", "ref": f"docker:{name}", "spec_digest": "d", "spawned_at": 1.0}
        for name in workers
    ]
    return json.dumps({"version": 1, "fleet": "f1", "by": by, "names": list(workers), "workers": rows, **more})


def text_of(source: FakeSource) -> Mapping[str, object]:
    found = json.loads(source.text or "{}")
    assert isinstance(found, dict)
    return found


def phase(supervisor: Supervisor) -> object:
    return supervisor.snapshot().get("phase")


def led_by_another(stage: SupervisorStage, supervisor: Supervisor) -> None:
    """Have another supervisor lead from now on."""
    stage.source.leader = "another"
    supervisor._election._due_at = CLOCK.monotonic()  # it asks again now
    eventually(lambda: phase(supervisor) == "standby")


def read(text: str | None) -> Legacy | None:
    return legacy_in(text, boot=BOOT, wall=WallTime(wall_seconds=1_000.0, monotonic=Monotonic(0.0)))


def test_a_standby_that_begins_to_lead_adopts_the_workers_that_are_there_and_starts_none(
    stage: SupervisorStage,
) -> None:
    stage.pools = [a_pool(least=1, most=1)]
    stage.source.leader = "another"
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: phase(supervisor) == "standby")
        stage.runtime.in_fleet.append(a_handle("resize-old", "docker:1"))
        stage.source.seen.add("resize-old")
        stage.source.leader = None
        eventually(lambda: phase(supervisor) == "leading" and bool(stage.runtime.live))
        eventually(lambda: text_of(stage.source).get("names") == ["resize-old"])
        assert stage.acts == []
    (began,) = [entry for entry in logs if entry["event"] == events.SUPERVISOR_LEADING]
    assert began["adopted"] == 1


def test_workers_that_the_next_leader_has_adopted_are_let_go_and_not_ended(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    stage.runtime.kind = "docker"
    with stage.running() as supervisor:
        eventually(lambda: len(stage.runtime.live) == 1 and bool(stage.source.text))
        (worker,) = stage.runtime.live
        led_by_another(stage, supervisor)
        stage.source.text = kept("another", worker)
        eventually(lambda: ("let go", worker) in stage.runtime.calls)
        assert "drain" not in stage.acts
    assert stage.codes == [0]
    assert "drain" not in stage.acts


def test_workers_out_of_the_next_leaders_reach_finish(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    stage.runtime.kind = "docker"
    with stage.running() as supervisor:
        eventually(lambda: len(stage.runtime.live) == 1 and bool(stage.source.text))
        led_by_another(stage, supervisor)
        stage.source.text = kept("another", "resize-of-another")
        eventually(lambda: "drain" in stage.acts)


def test_until_the_next_leader_says_whose_they_are_no_shared_worker_is_touched(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    stage.runtime.kind = "kubernetes"
    with stage.running() as supervisor:
        eventually(lambda: len(stage.runtime.live) == 1 and bool(stage.source.text))
        (worker,) = stage.runtime.live
        led_by_another(stage, supervisor)
        moment = Moment(CLOCK.wall_seconds(), CLOCK.monotonic(), "")
        StateDir(stage.folder).change_worker_requests(
            lambda known: known.with_worker(worker, "kill", by="p", now=moment)
        )
        supervisor.request_stop()
        eventually(lambda: bool(stage.codes))
    assert {"drain", "kill"}.isdisjoint(stage.acts)
    assert ("let go", worker) in stage.runtime.calls


@pytest.mark.parametrize(("cluster", "acts"), [({CLUSTER_VARIABLE: "10.0.0.1"}, "let go"), ({}, "drain")])
def test_a_supervisor_that_is_stopped_in_a_cluster_leaves_its_pods(
    stage: SupervisorStage, cluster: Mapping[str, str], acts: str
) -> None:
    stage.pools = [a_pool(least=1)]
    stage.runtime.kind = "kubernetes"
    stage.environment = cluster
    with stage.running() as supervisor:
        eventually(lambda: len(stage.runtime.live) == 1 and bool(stage.source.text))
        (worker,) = stage.runtime.live
        supervisor.request_stop()
        eventually(lambda: (acts, worker) in stage.runtime.calls)
    assert {"drain", "let go"} & set(stage.acts) == {acts}
    assert stage.source.leads_given_up == 1  # the next one need not wait
    assert text_of(stage.source)["names"] == [worker]


def test_processes_end_with_their_supervisor_in_a_cluster_too(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    stage.runtime.kind = "pid"
    stage.environment = {CLUSTER_VARIABLE: "10.0.0.1"}
    with stage.running() as supervisor:
        eventually(lambda: len(stage.runtime.live) == 1)
        supervisor.request_stop()
        eventually(lambda: "drain" in stage.acts)


def test_a_supervisor_without_a_disk_begins_with_what_the_last_leader_knew(tmp_path: Path) -> None:
    source = FakeSource()
    first = SupervisorStage(tmp_path / "first", source=source, pools=[a_pool(least=1)])
    with first.running() as leader:
        eventually(lambda: first.acts == ["spawn"])
        moment = Moment(CLOCK.wall_seconds(), CLOCK.monotonic(), "")
        StateDir(first.folder).change_overrides("resize", lambda one: with_size(one, 3, seconds=600, now=moment))
        eventually(lambda: len(first.runtime.live) == 3)
        leader.request_stop()
    state = leader._reconciler.pools["resize"].state
    second = SupervisorStage(tmp_path / "second", source=source, pools=[a_pool(least=1)])
    with second.running():
        eventually(lambda: len(second.runtime.live) == 3)
        assert StateDir(second.folder).read_overrides()["resize"].scale is not None
    assert {one["why"] for one in StateDir(first.folder).read_decisions(limit=50)} <= {
        one["why"] for one in StateDir(second.folder).read_decisions(limit=50)
    }
    assert text_of(source)["fleet"] == json.loads(source.text or "{}")["fleet"]
    assert state.to_json() != {}


def test_an_order_given_here_after_the_last_leaders_own_stays(tmp_path: Path, stage: SupervisorStage) -> None:
    stage.source.text = kept("another", orders={"version": 1, "pools": {}}, orders_at=1.0)
    StateDir(stage.folder).change_overrides("resize", lambda _: Overrides(paused="both"))
    with stage.running() as supervisor:
        eventually(lambda: phase(supervisor) == "leading")
    assert StateDir(stage.folder).read_overrides()["resize"].paused == "both"


def test_an_order_that_the_last_leader_lifted_is_lifted_here_too(stage: SupervisorStage) -> None:
    StateDir(stage.folder).change_overrides("resize", lambda _: Overrides(paused="both"))
    later = CLOCK.wall_seconds() + 60
    stage.source.text = kept("another", orders={"version": 1, "pools": {}}, orders_at=later)
    with stage.running() as supervisor:
        eventually(lambda: phase(supervisor) == "leading")
    assert StateDir(stage.folder).read_overrides() == {}


def test_workers_that_can_not_be_adopted_are_named(stage: SupervisorStage) -> None:
    stage.source.text = kept("host2:5f", "resize-there")
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: phase(supervisor) == "leading")
    (logged,) = [entry for entry in logs if entry["event"] == events.WORKER_ELSEWHERE]
    assert (logged["supervisor"], logged["workers"]) == ("host2:5f", ["resize-there"])
    assert stage.source.released == []  # it may live, and work


def test_a_leader_whose_store_is_read_only_for_a_while_goes_on(stage: SupervisorStage) -> None:
    class Forgetful(FakeSource):
        def keep(self, text: str) -> None:
            self.is_down = True
            try:
                self._answer()
            finally:
                self.is_down = False

    stage.source = Forgetful()
    stage.pools = [a_pool(least=1)]
    with capture_logs() as logs, stage.running():
        eventually(lambda: stage.acts == ["spawn"])
    assert any(entry["event"] == events.STATE_NOT_WRITTEN for entry in logs)


def test_a_kept_text_has_no_more_than_its_size_and_loses_the_oldest_decisions_first() -> None:
    decisions = [{"at": float(number), "why": "x" * 4_000} for number in range(200, 0, -1)]
    text = legacy_text({**json.loads(kept("a", "w")), "decisions": decisions, "learned": {"resize": {"version": 1}}})
    assert len(text.encode()) <= MAX_BYTES
    found = read(text)
    assert found is not None
    assert [one["at"] for one in found.decisions] == [float(number) for number in range(200, 150, -1)]
    assert (found.names, found.learned) == ({"w"}, {"resize": {"version": 1}})


def test_what_a_leader_was_doing_with_its_workers_is_known_to_the_next() -> None:
    row = {"worker": "w", "pool": "resize", "ref": "docker:tcp://e:1#c", "spec_digest": "d", "spawned_at": 990.0}
    found = read(kept("a", workers=[{**row, "ends_at": 1_005.0, "state": "draining"}]))
    assert found is not None
    assert found.handles == [WorkerHandle("w", "resize", "docker:tcp://e:1#c", "d", Monotonic(-10.0))]
    assert found.memories == {"w": RememberedWorker(leaves_by=Monotonic(5.0))}


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", '{"version": 2, "fleet": "f", "by": "a"}', '{"version": 1, "fleet": "", "by": "a"}'],
)
def test_a_text_of_another_version_is_no_legacy(text: str | None) -> None:
    assert read(text) is None


def test_parts_that_make_no_sense_are_left_out() -> None:
    odd = {"learned": [], "usage": 1, "orders": "x", "orders_at": "y", "names": {}, "workers": [1], "decisions": [2]}
    assert read(json.dumps({"version": 1, "fleet": "f", "by": "a", **odd})) == Legacy(
        "f", "a", handles=[], decisions=[]
    )


def test_a_fleets_identity_is_the_first_leaders_for_good(stage: SupervisorStage) -> None:
    with stage.running() as supervisor:
        eventually(lambda: phase(supervisor) == "leading")
    first = text_of(stage.source)["fleet"]
    with stage.running() as supervisor:
        eventually(lambda: phase(supervisor) == "leading")
    assert first
    assert text_of(stage.source)["fleet"] == first
    assert FleetIdentity().id == ""
