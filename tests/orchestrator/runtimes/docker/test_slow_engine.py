"""An engine that answers each call late: what a pool's first start needs is found out beside the turns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import SpawnError, StartPendingError
from orchestrator.runtime import WorkerHandle
from tests.support.docker.bench import STAY, DockerBench, docker_bench
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.slow_engine import slow_engine
from tests.support.eventually import eventually


@pytest.fixture
def bench(docker_engine: PrivateDockerEngine, tmp_path: Path) -> Iterator[DockerBench]:
    docker_engine.image()
    with (
        slow_engine(docker_engine.socket, tmp_path) as slow,
        docker_bench(docker_engine, tmp_path, url=slow.url) as bench,
    ):
        yield bench
    docker_engine.remove_containers()


def test_a_first_start_does_not_wait_for_all_that_a_slow_engine_is_asked_about_its_image(bench: DockerBench) -> None:
    pending: list[str] = []

    def started() -> WorkerHandle | None:
        try:
            return bench.spawn(STAY)
        except StartPendingError as error:
            pending.append(str(error))
            return None

    handle = eventually(started)
    assert pending
    assert "is slow" in pending[0]
    assert bench.spawn(STAY).worker != handle.worker  # what is known of an image is not asked again
    assert {handle.worker} < bench.runtime.usage().keys()


def test_what_a_slow_engine_finds_wrong_with_an_image_is_told_by_a_later_start(bench: DockerBench) -> None:
    pool = bench.pool(STAY, cwd="/nowhere")

    def refused() -> str:
        try:
            bench.start(pool)
        except StartPendingError:
            return ""
        except SpawnError as error:
            return str(error)
        return ""

    assert "its cwd /nowhere is not a folder of its image" in eventually(refused)
