"""An engine that answers each call late: what a pool's first start needs is found out beside the turns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.errors import SpawnError, StartPendingError
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from tests.support.docker.bench import CLOCK, STAY, DockerBench, docker_bench
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.slow_engine import slow_engine
from tests.support.fleet.runtime_bench import spawned_by


@pytest.fixture
def bench(docker_engine: PrivateDockerEngine, tmp_path: Path) -> Iterator[DockerBench]:
    docker_engine.image()
    with (
        slow_engine(docker_engine.socket, tmp_path) as slow,
        docker_bench(docker_engine, tmp_path, url=slow.url) as bench,
    ):
        yield bench
    docker_engine.remove_containers()


def request_of(pool: PoolSpec, worker: str, bench: DockerBench) -> SpawnRequest:
    launch = Launch("memory:", str(bench.state_dir), str(bench.state_dir / "supervisor.lock"), 60.0)
    return SpawnRequest(worker, pool, launch.environment(worker, pool))


def test_a_first_start_does_not_wait_for_all_that_a_slow_engine_is_asked_about_its_image(bench: DockerBench) -> None:
    pool = bench.pool(STAY)
    first, second = (request_of(pool, f"resize-{number}", bench) for number in (1, 2))
    with pytest.raises(StartPendingError, match="is slow: it is still asked about the image"):
        bench.runtime.spawn(first, now=CLOCK.monotonic())
    spawned_by(bench.runtime, first)
    bench.runtime.spawn(second, now=CLOCK.monotonic())  # what is known of an image is not asked again
    assert bench.runtime.usage().keys() == {"resize-1", "resize-2"}


def test_what_a_slow_engine_finds_wrong_with_an_image_is_told_by_a_later_start(bench: DockerBench) -> None:
    request = request_of(bench.pool(STAY, cwd="/nowhere"), "resize-1", bench)
    with pytest.raises(StartPendingError):
        bench.runtime.spawn(request, now=CLOCK.monotonic())
    with pytest.raises(SpawnError, match="its cwd /nowhere is not a folder of its image"):
        spawned_by(bench.runtime, request)
