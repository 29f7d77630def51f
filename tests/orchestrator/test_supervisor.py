"""The supervisor's loop around fakes: what wakes it, what it waits for, and how it ends."""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator import events
from orchestrator.arrivals import ArrivalWatch
from orchestrator.clock import Monotonic, SystemClock
from orchestrator.config import PoolSpec, SupervisorSettings
from orchestrator.errors import ReloadRefusedError
from orchestrator.lead import LEAD_SECONDS, MARGIN_SECONDS, RENEWAL_SECONDS, STANDBY_SECONDS, Lead, holder_of
from orchestrator.orders import HostOrder
from orchestrator.reload import Loaded, Reloads
from orchestrator.state import StateDir
from orchestrator.supervisor import Supervisor, fresh_identity
from queue_core.sd_notify import ServiceManager
from tests.support.eventually import eventually
from tests.support.fakes import FakeRuntime, FakeSource
from tests.support.fleet_builders import NOW, a_pool

CLOCK = SystemClock()


@dataclass
class Stage:
    """A supervisor over fakes, in a thread of its own."""

    folder: Path
    source: FakeSource = field(default_factory=FakeSource)
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    pools: list[PoolSpec] = field(default_factory=lambda: [a_pool()])
    environment: Mapping[str, str] = field(default_factory=dict)
    load: Callable[[], Mapping[str, PoolSpec]] | None = None
    codes: list[int] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[Supervisor]:
        supervisor = Supervisor(
            SupervisorSettings(),
            {pool.name: pool for pool in self.pools},
            source=self.source,
            runtime=self.runtime,
            files=StateDir(self.folder),
            url="memory:",
            load=self.load,
            environment=self.environment,
        )
        thread = threading.Thread(target=lambda: self.codes.append(supervisor.run()))
        thread.start()
        try:
            yield supervisor
        finally:
            supervisor.request_stop()
            while thread.is_alive():
                self.end_those_asked()
                thread.join(timeout=0.01)

    def end_those_asked(self) -> None:
        """Workers that were asked to finish, or ended, do so."""
        for _, worker in [entry for entry in self.runtime.asked if entry[0] in {"drain", "kill"}]:
            if worker in self.runtime.live:
                self.runtime.end(worker, now=CLOCK.monotonic(), code=0)

    @property
    def acts(self) -> list[str]:
        return [verb for verb, _ in self.runtime.asked]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_stop_drains_every_worker_and_ends_with_0(stage: Stage) -> None:
    stage.pools = [a_pool(least=2)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn", "spawn"])
    assert stage.acts == ["spawn", "spawn", "drain", "drain"]
    assert stage.codes == [0]
    assert supervisor.snapshot()["phase"] == "stopped"
    assert supervisor.snapshot() == StateDir(stage.folder).read_snapshot()


def test_a_supervisor_remembers_the_workers_of_the_one_before(stage: Stage) -> None:
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


def test_a_second_request_to_stop_ends_workers_at_once(stage: Stage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_stop()
        eventually(lambda: stage.acts == ["spawn", "drain"])
        supervisor.request_stop()
        eventually(lambda: stage.acts == ["spawn", "drain", "kill"])


def test_the_end_of_a_worker_is_acted_upon_between_turns(stage: Stage) -> None:
    stage.pools = [a_pool(least=1, slo="50s")]  # a turn every 5 s
    with stage.running():
        (worker,) = eventually(lambda: list(stage.runtime.live))
        stage.source.seen.add(worker)
        stage.source.held[worker] = ["t1"]
        stage.runtime.end(worker, now=CLOCK.monotonic(), signal=9)
        eventually(lambda: stage.source.released == [worker], seconds=2)


def test_an_arrival_for_an_empty_pool_is_acted_upon_between_turns(stage: Stage) -> None:
    stage.pools = [a_pool(slo="50s")]
    with stage.running() as supervisor:
        eventually(lambda: supervisor.snapshot().get("phase") == "leading")
        stage.source.ready = 1
        stage.source.arrival.set()
        eventually(lambda: stage.acts == ["spawn"], seconds=2)


def test_a_supervisor_that_does_not_lead_does_nothing_until_it_does(stage: Stage) -> None:
    stage.pools = [a_pool(least=1)]
    stage.source.leader = "another"
    with capture_logs() as logs, stage.running():
        eventually(lambda: any(entry["event"] == events.SUPERVISOR_STANDBY for entry in logs))
        assert stage.acts == []
        stage.source.leader = None
        eventually(lambda: stage.acts == ["spawn"])


def test_pools_can_be_exchanged_while_it_runs(stage: Stage) -> None:
    stage.pools = [a_pool(least=1)]
    with stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_reload({"encode": a_pool("encode", least=1)})
        eventually(lambda: stage.acts == ["spawn", "drain", "spawn"])


def test_a_refused_reload_is_told_with_every_mistake_and_changes_nothing(stage: Stage) -> None:
    def load() -> Mapping[str, PoolSpec]:
        raise ReloadRefusedError(["towline.yaml:1:1: pools: ...", "towline.yaml:2:1: queues: ..."])

    stage.pools, stage.load = [a_pool(least=1)], load
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        supervisor.request_reload()
        (told,) = eventually(lambda: [e for e in logs if e["event"] == events.SUPERVISOR_RELOAD_REFUSED])
        assert len(told["mistakes"]) == 2
        assert stage.acts == ["spawn"]


@contextmanager
def a_service_manager(folder: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """What systemd would listen at, and how it tells where."""
    address = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(10)
        yield manager, {"NOTIFY_SOCKET": str(address)}


def heard(manager: socket.socket, wanted: str) -> list[str]:
    """The next message with this state; others are passed over."""
    while True:
        message = manager.recv(4000).decode().split("\n")
        if any(state.startswith(wanted) for state in message):
            return message


def test_the_service_manager_is_told_of_start_life_and_end(stage: Stage, tmp_path: Path) -> None:
    with a_service_manager(tmp_path) as (manager, environment):
        stage.environment = {**environment, "WATCHDOG_USEC": "100000"}
        stage.pools = [a_pool(least=1)]
        with stage.running() as supervisor:
            ready = manager.recv(1000).decode().split("\n")
            assert ready == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=starting: 1 pool, 0 workers"]
            heard(manager, "STATUS=leading: 1 pool, 1 worker")
            heard(manager, "WATCHDOG=1")
            supervisor.request_stop()
            assert heard(manager, "STOPPING=1")[1].startswith("STATUS=stopping")
            heard(manager, "STATUS=stopping: 1 pool, 1 worker, 1 of them leaving")
            assert heard(manager, "EXTEND_TIMEOUT_USEC") == ["EXTEND_TIMEOUT_USEC=15000000"]
            heard(manager, "WATCHDOG=1")


def test_the_service_manager_is_told_when_settings_are_read_again(stage: Stage, tmp_path: Path) -> None:
    wrong = [False]

    def load() -> Mapping[str, PoolSpec]:
        if wrong[0]:
            raise ReloadRefusedError(["towline.yaml:1:1: wrong"])
        return {"resize": a_pool()}

    with a_service_manager(tmp_path) as (manager, stage.environment):
        stage.load = load
        with stage.running() as supervisor:
            heard(manager, "READY=1")
            for is_wrong, status in ((False, "STATUS=leading"), (True, "STATUS=settings refused, as before; leading")):
                wrong[0] = is_wrong
                supervisor.request_reload()
                before = CLOCK.monotonic()
                _, at = heard(manager, "RELOADING=1")
                assert abs(int(at.removeprefix("MONOTONIC_USEC=")) / 1e6 - before) < 5.0
                assert heard(manager, "READY=1")[2].startswith(status)


def test_turns_that_fail_do_not_feed_the_watchdog(stage: Stage, tmp_path: Path) -> None:
    with a_service_manager(tmp_path) as (manager, environment):
        stage.environment = {**environment, "WATCHDOG_USEC": "100000"}
        with stage.running(), capture_logs() as logs:
            heard(manager, "WATCHDOG=1")
            stage.source.sample = None  # type: ignore[assignment,method-assign]
            eventually(lambda: any(entry["event"] == events.TURN_FAILED for entry in logs))
            manager.settimeout(0.2)
            with pytest.raises(TimeoutError):
                while True:
                    manager.recv(4000)
                    manager.settimeout(0.9)


def test_a_supervisor_that_leaves_asks_its_workers_nothing(stage: Stage) -> None:
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


def test_a_drained_host_has_no_workers_until_it_is_not_any_more(stage: Stage) -> None:
    stage.pools = [a_pool(least=2)]
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn", "spawn"])
        StateDir(stage.folder).order_host(HostOrder(1_700_000_000.0))
        eventually(lambda: stage.acts == ["spawn", "spawn", "drain", "drain"])
        assert any(entry["event"] == events.SUPERVISOR_DRAINING for entry in logs)
        stage.end_those_asked()
        eventually(lambda: (supervisor.snapshot()["phase"], supervisor.snapshot()["workers"]) == ("draining", []))
        assert stage.source.leads_given_up
        assert supervisor.snapshot()["pools"]["resize"]["target"] is None  # type: ignore[index]
    with stage.running() as supervisor:  # it survives a restart
        eventually(lambda: supervisor.snapshot().get("phase") == "draining")
        assert stage.acts[4:] == []
        StateDir(stage.folder).order_host(HostOrder())
        eventually(lambda: stage.acts[4:] == ["spawn", "spawn"])


def test_without_a_service_manager_nothing_is_said() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "100000"})
    assert manager.watchdog_seconds is None
    manager.tell("READY=1")
    ServiceManager({"NOTIFY_SOCKET": "/nobody/listens"}).tell("READY=1")


def test_a_watchdog_that_is_for_another_process_is_not_fed() -> None:
    environment = {"NOTIFY_SOCKET": "/nobody/listens", "WATCHDOG_USEC": "100000"}
    assert ServiceManager(environment).watchdog_seconds == 0.05
    assert ServiceManager({**environment, "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 0.05
    assert ServiceManager({**environment, "WATCHDOG_PID": "1"}).watchdog_seconds is None


def test_the_lead_is_renewed_now_and_then_and_asked_for_often_while_another_has_it() -> None:
    source = FakeSource(leader="another")
    lead = Lead(source, holder="me")
    assert lead.hold(now=NOW) is False
    assert lead.is_anothers
    source.leader = None
    assert lead.hold(now=NOW) is False  # not asked again at once
    assert lead.hold(now=Monotonic(NOW + STANDBY_SECONDS)) is True
    source.leader = "another"
    assert lead.hold(now=Monotonic(NOW + RENEWAL_SECONDS)) is True
    assert lead.hold(now=Monotonic(NOW + STANDBY_SECONDS + RENEWAL_SECONDS)) is False


def test_a_lead_lasts_while_its_store_does_not_answer_but_ends_before_another_may_take_it() -> None:
    source = FakeSource()
    lead = Lead(source, holder="me")
    assert lead.hold(now=NOW) is True
    source.is_down = True
    ends_at = NOW + LEAD_SECONDS - MARGIN_SECONDS
    assert lead.hold(now=Monotonic(ends_at - 0.1)) is True
    assert lead.is_live(now=Monotonic(ends_at)) is False
    assert lead.hold(now=Monotonic(ends_at)) is False
    assert not lead.is_anothers
    source.is_down = False
    assert lead.hold(now=Monotonic(ends_at + STANDBY_SECONDS)) is True
    lead.give_up()


def test_whoever_led_last_asks_first_when_the_store_is_back() -> None:
    source, other_source = FakeSource(), FakeSource(leader="me")
    lead, other = Lead(source, holder="me"), Lead(other_source, holder="other")
    assert (lead.hold(now=NOW), other.hold(now=NOW)) == (True, False)
    source.is_down = other_source.is_down = True
    later = Monotonic(NOW + LEAD_SECONDS)
    assert (lead.hold(now=later), other.hold(now=later)) == (False, False)
    source.is_down = other_source.is_down = False
    other_source.leader = None
    soon = Monotonic(later + STANDBY_SECONDS)
    assert (lead.hold(now=soon), other.hold(now=soon)) == (True, False)


def test_a_leader_without_its_store_lets_its_workers_be_and_starts_none(stage: Stage) -> None:
    stage.pools = [a_pool(least=1)]
    with capture_logs() as logs, stage.running() as supervisor:
        eventually(lambda: stage.acts == ["spawn"])
        (worker,) = stage.runtime.live
        stage.source.is_down = True
        supervisor._lead._ends_at = CLOCK.monotonic()  # its time is up
        eventually(lambda: any(entry["event"] == events.SUPERVISOR_STANDBY for entry in logs))
        assert list(stage.runtime.live) == [worker]
        stage.runtime.end(worker, now=CLOCK.monotonic(), code=1)
        eventually(lambda: not stage.runtime.live)
        assert stage.acts == ["spawn"]
        stage.source.is_down = False
        eventually(lambda: stage.acts == ["spawn", "spawn"])


def test_a_restarted_supervisor_is_the_same_holder_of_the_lead(tmp_path: Path) -> None:
    assert holder_of(tmp_path) == holder_of(tmp_path)
    assert holder_of(tmp_path) != holder_of(tmp_path / "other")


def test_a_file_is_read_again_when_it_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "towline.yaml"
    path.write_text("one")
    reads: list[str] = []

    def load() -> Mapping[str, PoolSpec]:
        reads.append(path.read_text())
        return {}

    reloads = Reloads(load=load, watched=path)
    assert not reloads.is_due(now=NOW)
    path.write_text("another")
    assert not reloads.is_due(now=Monotonic(NOW + 0.5))  # looked at once a second
    assert reloads.is_due(now=Monotonic(NOW + 1))
    assert reloads.outcome() == Loaded({})
    path.unlink()  # as an editor does, for a moment
    assert not reloads.is_due(now=Monotonic(NOW + 2))
    path.write_text("third")
    assert reloads.is_due(now=Monotonic(NOW + 3))
    assert reloads.outcome() == Loaded({})
    assert reads == ["another", "third"]


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
