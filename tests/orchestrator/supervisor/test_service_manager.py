"""What a supervisor tells systemd: that it started, lives, reads its settings again and ends."""

import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.errors import ReloadRefusedError
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.supervisor.supervisor import Supervisor
from queue_core.process.sd_notify import ServiceManager
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.supervisor_stage import CLOCK, SupervisorStage


@pytest.fixture
def stage(tmp_path: Path) -> SupervisorStage:
    return SupervisorStage(tmp_path)


@contextmanager
def a_service_manager(folder: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """What systemd would listen at, and how it tells where."""
    address = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(60)
        yield manager, {"NOTIFY_SOCKET": str(address)}


def heard(manager: socket.socket, wanted: str) -> list[str]:
    """The next message with this state; others are passed over."""
    while True:
        message = manager.recv(4000).decode().split("\n")
        if any(state.startswith(wanted) for state in message):
            return message


def said_until(manager: socket.socket, wanted: str) -> list[str]:
    """All states up to this one."""
    states: list[str] = []
    while wanted not in states:
        states += manager.recv(4000).decode().split("\n")
    return states


def test_the_service_manager_is_told_of_start_life_and_end(stage: SupervisorStage, tmp_path: Path) -> None:
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


def test_the_service_manager_is_told_when_settings_are_read_again(stage: SupervisorStage, tmp_path: Path) -> None:
    wrong = [False]

    def load() -> Mapping[str, PoolSpec]:
        if wrong[0]:
            raise ReloadRefusedError(["towline.yaml:1:1: wrong"])
        return {"resize": a_pool()}

    with a_service_manager(tmp_path) as (manager, stage.environment):
        stage.load = load
        with stage.running() as supervisor:
            heard(manager, "READY=1")
            for is_wrong, status in ((False, "STATUS=leading"), (True, "STATUS=settings refused, the old")):
                wrong[0] = is_wrong
                supervisor.request_reload()
                before = CLOCK.monotonic()
                _, at = heard(manager, "RELOADING=1")
                assert abs(int(at.removeprefix("MONOTONIC_USEC=")) / 1e6 - before) < 5.0
                assert heard(manager, "READY=1")[2].startswith(status)


@pytest.mark.parametrize("fails", [False, True])
def test_a_pass_feeds_the_watchdog_unless_a_turn_failed(stage: SupervisorStage, tmp_path: Path, *, fails: bool) -> None:
    running: Future[Supervisor] = Future()

    class LastSample(FakeSource):
        """A source that stops the supervisor in its first turn."""

        def sample(self, *arguments: object, **options: object) -> QueueSample:
            running.result().request_stop()
            return None if fails else super().sample(*arguments, **options)  # type: ignore[return-value,arg-type]

    stage.source = LastSample()
    with a_service_manager(tmp_path) as (manager, environment):
        stage.environment = {**environment, "WATCHDOG_USEC": "100000"}
        with capture_logs() as logs, stage.running() as supervisor:
            running.set_result(supervisor)
            states = said_until(manager, "STOPPING=1")
        assert ("WATCHDOG=1" in states) is not fails
        assert any(entry["event"] == events.TURN_FAILED for entry in logs) is fails


def test_without_a_service_manager_nothing_is_said() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "100000"})
    assert manager.watchdog_seconds is None
    manager.notify("READY=1")
    ServiceManager({"NOTIFY_SOCKET": "/nobody/listens"}).notify("READY=1")


def test_a_watchdog_that_is_for_another_process_is_not_fed() -> None:
    environment = {"NOTIFY_SOCKET": "/nobody/listens", "WATCHDOG_USEC": "100000"}
    assert ServiceManager(environment).watchdog_seconds == 0.05
    assert ServiceManager({**environment, "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 0.05
    assert ServiceManager({**environment, "WATCHDOG_PID": "1"}).watchdog_seconds is None
