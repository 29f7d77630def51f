"""Containers without a supervisor: what is due to them, and that it is done."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.docker import watchdog as docker_watchdog
from orchestrator.runtimes.docker.container_state import KnownContainer, Phase
from orchestrator.runtimes.docker.identity import identity_of
from orchestrator.runtimes.docker.orphans import MARGIN_SECONDS, OrphanJudge, Supervision, supervision_of
from orchestrator.runtimes.docker.runtime import DockerRuntime
from tests.support.docker.bench import DockerBench, id_of
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.eventually import eventually
from tests.support.fleet.runtime_bench import spawned_by

OURS, THEIRS = "1:/ours", "2:/theirs"


def a_container(state: str = THEIRS, *, phase: Phase = "running", host: str = "here") -> KnownContainer:
    return KnownContainer("c1", state, "w1", "resize", "d1", 0.0, phase, host, 60.0)


def verdicts(
    container: KnownContainer, how: Supervision, *, after_seconds: float, back_at: float | None = None
) -> list[tuple[str, str]]:
    """What a judge says who looks at 0 s, perhaps sees the supervisor at `back_at`, and looks again."""
    seen = {"how": how}
    judge = OrphanJudge(lambda _state: seen["how"])
    judge.verdicts([container], own_state=OURS, host="here", now=Monotonic(0.0))
    if back_at is not None:
        seen["how"] = "alive"
        judge.verdicts([container], own_state=OURS, host="here", now=Monotonic(back_at))
        seen["how"] = how
    found = judge.verdicts([container], own_state=OURS, host="here", now=Monotonic(after_seconds))
    return [(sentence.container.worker, sentence.action) for sentence in found]


LONG = 60.0 + MARGIN_SECONDS


@pytest.mark.parametrize(
    ("container", "how", "after_seconds", "done"),
    [
        pytest.param(a_container(), "away", LONG, [("w1", "kill")], id="away for long"),
        pytest.param(a_container(), "away", LONG - 0.001, [], id="not for long enough"),
        pytest.param(a_container(phase="paused"), "away", LONG, [("w1", "kill")], id="paused"),
        pytest.param(a_container(phase="ended"), "away", LONG, [], id="ended: its supervisor tells of it one day"),
        pytest.param(a_container(phase="ended"), "gone", LONG, [("w1", "remove")], id="the folder is gone"),
        pytest.param(a_container(), "gone", LONG, [("w1", "remove")], id="running, and the folder is gone"),
        pytest.param(a_container(), "alive", LONG, [], id="supervised"),
        pytest.param(a_container(), "unknown", LONG, [], id="nobody can look"),
        pytest.param(a_container(OURS), "away", LONG, [], id="our own"),
        pytest.param(a_container(host="there"), "gone", LONG, [], id="of another host"),
    ],
)
def test_only_what_has_been_alone_for_its_own_bound_is_ended(
    container: KnownContainer, how: Supervision, after_seconds: float, done: list[tuple[str, str]]
) -> None:
    assert verdicts(container, how, after_seconds=after_seconds) == done


def test_a_supervisor_that_was_back_meanwhile_is_waited_for_anew() -> None:
    assert verdicts(a_container(), "away", after_seconds=LONG, back_at=30.0) == []


@contextmanager
def supervised(state_dir: Path) -> Iterator[Path]:
    """The lock of a supervisor that lives as long as the block."""
    lock = state_dir / "supervisor.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(descriptor)


def test_a_supervisor_is_alive_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    state = identity_of(tmp_path)
    assert supervision_of(state) == "away"
    with supervised(tmp_path):
        assert supervision_of(state) == "alive"
    assert supervision_of(state) == "away"
    assert supervision_of(f"0{state}") == "gone"
    assert supervision_of(f"{state}/missing") == "gone"


PROGRAM = {"towline.orphan_grace": "60", "towline.orphan_seconds": "90"}


@pytest.mark.parametrize(
    ("labels", "lost_seconds", "due"),
    [
        pytest.param(PROGRAM, 59.9, "", id="within its grace"),
        pytest.param(PROGRAM, 60.0, "STOP", id="asked"),
        pytest.param({**PROGRAM, "towline.app": "tasks:app"}, 60.0, "", id="an app asks itself"),
        pytest.param({**PROGRAM, "towline.app": "tasks:app"}, 95.0, "KILL", id="an app that did not"),
        pytest.param(PROGRAM, 94.9, "STOP", id="still asked"),
        pytest.param(PROGRAM, 95.0, "KILL", id="ended"),
        pytest.param({"towline.orphan_grace": "soon"}, 59.9, "", id="labels that nobody can read"),
    ],
)
def test_a_watchdog_asks_first_and_then_ends(labels: dict[str, str], lost_seconds: float, due: str) -> None:
    assert docker_watchdog.verdict(labels, lost_seconds=lost_seconds) == due


def test_containers_of_a_supervisor_that_was_killed_are_asked_to_finish(
    docker_engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    with supervised(tmp_path) as lock:
        runtime = DockerRuntime(tmp_path, lock=lock, engine=docker_engine.url)
        bench = DockerBench(docker_engine, tmp_path, runtime)
        pool = bench.pool("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done")
        launch = Launch("memory:", str(tmp_path), str(lock), 0.5)
        request = SpawnRequest("resize-1", pool, launch.environment("resize-1", pool))
        handle = spawned_by(runtime, request)
        eventually(lambda: "up" in bench.output(handle))
        runtime.close()
    with docker_engine.client() as client:
        eventually(lambda: not client.inspect_container(id_of(handle))["State"]["Running"], seconds=30)
        assert client.inspect_container(id_of(handle))["State"]["ExitCode"] == 0


def test_a_watchdog_goes_when_its_engine_and_its_folder_are_gone(tmp_path: Path) -> None:
    duty, lock = tmp_path / "state" / "containers.lock", tmp_path / "supervisor.lock"
    duty.parent.mkdir()
    ended = threading.Event()

    def watch() -> None:
        docker_watchdog.watch(str(tmp_path / "none.sock"), "1:/state", str(duty), str(lock))
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    eventually(duty.exists)
    duty.unlink()
    assert ended.wait(30)


def test_the_watchdog_of_the_supervisor_before_stays_on_duty(
    docker_engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    with supervised(tmp_path) as lock:
        first = DockerRuntime(tmp_path, lock=lock, engine=docker_engine.url)
        bench = DockerBench(docker_engine, tmp_path, first)
        handle = bench.up()
        eventually(lambda: len(watchdogs_of(tmp_path)) == 1)
        first.close()
        (before,) = watchdogs_of(tmp_path)
        bench.runtime = DockerRuntime(tmp_path, lock=lock, engine=docker_engine.url)
        bench.adopt(handle)
        bench.reap()
        bench.up()
        assert watchdogs_of(tmp_path) == {before}
        for worker in bench.runtime.usage():
            bench.runtime.kill(worker)
        bench.exits(2)
        bench.runtime.close()
    eventually(lambda: not watchdogs_of(tmp_path))


def watchdogs_of(state_dir: Path) -> set[int]:
    """Pids of the watchdogs of this state directory's containers."""
    found = set()
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if f"{state_dir}/containers.lock" in words:
            found.add(process.info["pid"])
    return found
