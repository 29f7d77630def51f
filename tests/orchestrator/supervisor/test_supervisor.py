"""The supervisor's loop around fakes: what wakes it, what it waits for, and how it ends."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import ReloadRefusedError
from orchestrator.config.overrides import HostOverride
from orchestrator.config.pools import PoolSpec
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.reload import ReloadedSettings, ReloadRequests
from orchestrator.supervisor.supervisor import ArrivalWatch, fresh_identity
from tests.support.eventually import eventually
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import NOW, a_pool
from tests.support.fleet.supervisor_stage import CLOCK, SupervisorStage


@pytest.fixture
def stage(tmp_path: Path) -> SupervisorStage:
    return SupervisorStage(tmp_path)


def test_a_stop_drains_every_worker_and_ends_with_0(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=2)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn", "spawn"])
    assert stage.acts == ["spawn", "spawn", "drain", "drain"]
    assert stage.codes == [0]
    assert supervisor.snapshot()["phase"] == "stopped"
    assert supervisor.snapshot() == StateDir(stage.folder).read_snapshot()


def test_a_supervisor_remembers_the_workers_of_the_one_before(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        (left,) = eventually(lambda: list(stage.runtime.live.values()))
        eventually(lambda: supervisor.snapshot().get("workers"))
        left_behind = StateDir(stage.folder).read_snapshot()
    assert left_behind is not None
    StateDir(stage.folder).write_snapshot(left_behind)  # as the first one's kill would have left it
    with stage.running():
        (known,) = eventually(lambda: stage.runtime.remembered)
    assert replace(known, spawned_at=left.spawned_at) == left
    assert abs(known.spawned_at - left.spawned_at) < 1.0


def test_a_second_request_to_stop_ends_workers_at_once(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_stop()
        eventually(lambda: stage.acts == ["spawn", "drain"])
        supervisor.request_stop()
        eventually(lambda: stage.acts == ["spawn", "drain", "kill"])
        stage.runtime.end(next(iter(stage.runtime.live)), now=CLOCK.monotonic(), signal=9)
        (death,) = eventually(lambda: StateDir(stage.folder).read_deaths(limit=1))
    assert (death["cause"], death["detail"]) == ("asked twice", "ended: you asked twice")


def test_a_stop_does_not_wait_for_ever_for_a_worker_that_a_kill_does_not_end(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1, grace="100ms")]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_stop()
        eventually(lambda: stage.codes == [0], seconds=30.0)
        assert len(stage.runtime.live) == 1
    assert stage.acts[:3] == ["spawn", "drain", "kill"]


def test_the_end_of_a_worker_is_acted_upon_between_turns(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1, slo="50s")]  # a turn every 5 s
    with stage.running():
        (worker,) = eventually(lambda: list(stage.runtime.live))
        stage.source.seen.add(worker)
        stage.source.held[worker] = ["t1"]
        stage.runtime.end(worker, now=CLOCK.monotonic(), signal=9)
        eventually(lambda: stage.source.released == [worker], seconds=2)


def test_an_arrival_for_an_empty_pool_is_acted_upon_between_turns(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(slo="50s")]
    with stage.running() as supervisor:
        eventually(lambda: supervisor.snapshot().get("phase") == "leading")
        stage.source.ready = 1
        stage.source.arrival.set()
        eventually(lambda: stage.acts == ["spawn"], seconds=2)


def test_a_supervisor_that_does_not_lead_does_nothing_until_it_does(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    stage.source.leader = "another"
    with capture_logs() as logs, stage.running():
        eventually(lambda: any(entry["event"] == events.SUPERVISOR_STANDBY for entry in logs))
        assert stage.acts == []
        stage.source.leader = None
        eventually(lambda: stage.acts == ["spawn"])


def test_pools_can_be_exchanged_while_it_runs(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_reload({"encode": a_pool("encode", least=1)})
        eventually(lambda: stage.acts == ["spawn", "drain", "spawn"])


def test_a_refused_reload_is_told_with_every_mistake_and_changes_nothing(stage: SupervisorStage) -> None:
    def load() -> Mapping[str, PoolSpec]:
        raise ReloadRefusedError(["towline.yaml:1:1: pools: ...", "towline.yaml:2:1: queues: ..."])

    stage.pools, stage.load = [a_pool(least=1)], load
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_reload()
        (told,) = eventually(lambda: [e for e in logs if e["event"] == events.SUPERVISOR_RELOAD_REFUSED])
        assert len(told["mistakes"]) == 2
        assert stage.acts == ["spawn"]


def test_a_supervisor_that_leaves_asks_its_workers_nothing(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=2)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn", "spawn"])
        supervisor.request_leave(renew=True)
        eventually(lambda: stage.codes == [0])
    assert stage.acts == ["spawn", "spawn"]
    assert supervisor.is_renewed
    assert len(stage.runtime.live) == 2
    shown = StateDir(stage.folder).read_snapshot() or {}
    assert len(shown["workers"]) == 2  # type: ignore[arg-type]


def test_a_supervisor_is_not_renewed_with_settings_that_the_next_one_would_refuse(stage: SupervisorStage) -> None:
    def load() -> dict[str, PoolSpec]:
        raise ReloadRefusedError(["towline.yaml:1:1: pools: ..."])

    stage.pools, stage.load = [a_pool(least=1)], load
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_leave(renew=True)
        (told,) = eventually(lambda: [e for e in logs if e["event"] == events.SUPERVISOR_RELOAD_REFUSED])
        assert told["mistakes"] == ["towline.yaml:1:1: pools: ..."]
        assert not supervisor.is_renewed
        assert stage.codes == []


def test_a_drained_host_has_no_workers_until_it_is_not_any_more(stage: SupervisorStage) -> None:
    stage.pools = [a_pool(least=2)]
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn", "spawn"])
        StateDir(stage.folder).write_host_override(HostOverride(1_700_000_000.0))
        eventually(lambda: stage.acts == ["spawn", "spawn", "drain", "drain"])
        assert any(entry["event"] == events.SUPERVISOR_DRAINING for entry in logs)
        stage.end_those_asked()
        eventually(lambda: (supervisor.snapshot()["phase"], supervisor.snapshot()["workers"]) == ("draining", []))
        assert stage.source.leads_given_up
        assert supervisor.snapshot()["pools"]["resize"]["target"] is None  # type: ignore[index]
    with stage.running() as supervisor:  # it survives a restart
        eventually(lambda: supervisor.snapshot().get("phase") == "draining")
        assert stage.acts[4:] == []
        StateDir(stage.folder).write_host_override(HostOverride())
        eventually(lambda: stage.acts[4:] == ["spawn", "spawn"])


def test_a_file_is_read_again_when_it_is_another_one_and_has_been_so_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "towline.yaml"
    path.write_text("one")
    reads: list[str] = []

    def load() -> Mapping[str, PoolSpec]:
        reads.append(path.read_text())
        return {}

    reloads = ReloadRequests(load=load, watched=path)
    assert not reloads.is_due(now=NOW)
    path.write_text("")  # as by `generate > towline.yaml`
    assert not reloads.is_due(now=Monotonic(NOW + 0.5))  # looked at once a second
    assert not reloads.is_due(now=Monotonic(NOW + 1))
    path.write_text("another")
    assert not reloads.is_due(now=Monotonic(NOW + 2.5))
    assert not reloads.is_due(now=Monotonic(NOW + 4.4))
    assert reloads.is_due(now=Monotonic(NOW + 5.5))
    assert reloads.outcome() == ReloadedSettings({})
    assert not reloads.is_due(now=Monotonic(NOW + 7))
    path.unlink()  # as an editor does, for a moment
    assert not reloads.is_due(now=Monotonic(NOW + 10))
    path.write_text("third")
    assert not reloads.is_due(now=Monotonic(NOW + 12))
    assert reloads.is_due(now=Monotonic(NOW + 14))
    assert reloads.outcome() == ReloadedSettings({})
    assert reads == ["another", "third"]


def test_a_file_in_which_pools_are_missing_is_heeded_later_unless_somebody_asks(tmp_path: Path) -> None:
    path = tmp_path / "towline.yaml"
    path.write_text("resize encode")
    reloads = ReloadRequests(
        load=lambda: {name: a_pool(name) for name in path.read_text().split()}, watched=path, pools=["resize", "encode"]
    )
    path.write_text("resize")  # half of it is written
    assert not reloads.is_due(now=NOW)
    assert reloads.is_due(now=Monotonic(NOW + 2))
    assert reloads.outcome() is None
    path.write_text("resize encode extra")
    assert not reloads.is_due(now=Monotonic(NOW + 3))
    assert reloads.is_due(now=Monotonic(NOW + 5))
    assert reloads.outcome() == ReloadedSettings({name: a_pool(name) for name in ("resize", "encode", "extra")})
    path.write_text("encode")
    assert not reloads.is_due(now=Monotonic(NOW + 6))
    assert reloads.is_due(now=Monotonic(NOW + 10))
    assert reloads.outcome() is None
    assert reloads.is_due(now=Monotonic(NOW + 11))
    assert reloads.outcome() == ReloadedSettings({"encode": a_pool("encode")})
    path.write_text("extra")
    reloads.request()
    assert reloads.is_due(now=Monotonic(NOW + 12))
    assert reloads.outcome() == ReloadedSettings({"extra": a_pool("extra")})
    assert not reloads.is_due(now=Monotonic(NOW + 20))


def test_an_arrival_is_told_once_per_pool_that_waits() -> None:
    source, told = FakeSource(), []
    watch = ArrivalWatch(source, on_arrival=told.append)
    watch.start()
    try:
        watch.wait_for([a_pool("one")])
        source.arrival.set()
        eventually(lambda: told == ["one"])
        watch.wait_for([a_pool("two")])
        eventually(lambda: told == ["one", "two"])
    finally:
        watch.stop()


def test_identities_are_fresh_and_name_their_pool() -> None:
    names = {fresh_identity("resize") for _ in range(1000)}
    assert len(names) == 1000
    assert all(name.startswith("resize-") for name in names)
