"""An engine that hangs, is killed, or is not there yet: workers are believed in, and nobody waits for long."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.runtimes.docker.runtime import ANSWER_SECONDS, DockerRuntime
from tests.support.docker.bench import CLOCK, STAY, DockerBench, docker_bench, id_of
from tests.support.docker.engine import EngineUnavailableError, PrivateDockerEngine, docker_engine
from tests.support.eventually import eventually

IN_TIME_SECONDS = ANSWER_SECONDS + 3.0


@pytest.fixture(scope="module")
def own_engine() -> Iterator[PrivateDockerEngine]:
    """An engine whose containers outlive it."""
    try:
        with docker_engine(live_restore=True) as engine:
            engine.image()
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def bench(own_engine: PrivateDockerEngine, tmp_path: Path) -> Iterator[DockerBench]:
    with docker_bench(own_engine, tmp_path) as bench:
        yield bench
    own_engine.remove_containers()


def refused(bench: DockerBench) -> str:
    """Why no worker is started now, told in time; nothing when one is."""
    began = CLOCK.monotonic()
    try:
        bench.spawn(STAY)
    except RuntimeUnavailableError as error:
        assert CLOCK.monotonic() - began < IN_TIME_SECONDS
        return str(error)
    return ""


def test_an_engine_that_hangs_holds_nobody_up_and_loses_nobody(bench: DockerBench) -> None:
    handle = bench.up()
    bench.engine.freeze()
    try:
        assert "has not created a container" in refused(bench)
        began = CLOCK.monotonic()
        assert refused(bench)
        bench.runtime.drain(handle.worker)
        bench.runtime.kill(handle.worker)
        assert handle.worker in bench.runtime.usage()
        assert bench.reap() == []
        assert CLOCK.monotonic() - began < 1.0
    finally:
        bench.engine.thaw()
    (ended,) = bench.exits()
    assert ended.worker == handle.worker
    eventually(lambda: bench.engine.containers() == [], seconds=30)


def test_an_engine_that_is_killed_and_started_again_finds_everyone(bench: DockerBench) -> None:
    stays, goes = bench.up(), bench.up("echo up; sleep 3; echo on the way; exit 4")
    bench.engine.kill()
    eventually(lambda: refused(bench))
    assert bench.reap() == []
    assert {stays.worker, goes.worker} <= bench.runtime.usage().keys()
    bench.engine.start()
    (ended,) = bench.exits()
    assert (ended.worker, ended.code) == (goes.worker, 4)
    assert stays.worker in bench.runtime.usage()
    eventually(lambda: not refused(bench), seconds=30)


def test_one_that_was_killed_while_nobody_could_see_it_is_told_as_that_whatever_its_memory(bench: DockerBench) -> None:
    handle = bench.up(memory="32MiB")
    with bench.engine.client() as client:
        pid = client.inspect_container(id_of(handle))["State"]["Pid"]
    bench.engine.kill()
    eventually(lambda: refused(bench))
    os.kill(pid, signal.SIGKILL)
    bench.engine.start()
    (ended,) = bench.exits()
    assert (ended.signal, ended.reason) == (signal.SIGKILL, "it ended while its engine was unavailable")


def test_a_container_removed_while_nobody_could_see_it_is_told(bench: DockerBench) -> None:
    handle = bench.up()
    bench.reopen()
    with bench.engine.client() as client:
        client.remove_container(id_of(handle), force=True)
    assert bench.adopt(handle) == []


def test_without_an_engine_everyone_remembered_is_believed_in_until_it_answers(bench: DockerBench) -> None:
    stays, goes = bench.up(), bench.up()
    bench.engine.kill()
    bench.reopen()
    assert {found.worker for found in bench.adopt(stays, goes)} == {stays.worker, goes.worker}
    assert bench.reap() == []
    bench.engine.start()
    with bench.engine.client() as client:
        client.remove_container(id_of(goes), force=True)
    (ended,) = bench.exits()
    assert ended.worker == goes.worker
    bench.runtime.kill(stays.worker)
    (ended,) = bench.exits()
    assert (ended.worker, ended.signal) == (stays.worker, 9)


def test_an_engine_that_is_not_there_is_told_with_its_url(tmp_path: Path) -> None:
    runtime = DockerRuntime(tmp_path, engine=f"unix://{tmp_path}/none.sock")
    try:
        bench = DockerBench(None, tmp_path, runtime)  # type: ignore[arg-type]
        assert f"{tmp_path}/none.sock can't be reached" in refused(bench)
        assert bench.adopt() == []
    finally:
        runtime.close()
