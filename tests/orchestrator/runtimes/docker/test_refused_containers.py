"""Containers that a real engine refuses to make or start are told in the engine's own words, never by a guess."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.errors import SpawnError
from orchestrator.fleet.exits import Cause, cause_of
from tests.support.docker.bench import DockerBench, docker_bench
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.eventually import eventually


@pytest.fixture
def bench(docker_engine: PrivateDockerEngine, tmp_path: Path) -> Iterator[DockerBench]:
    with docker_bench(docker_engine, tmp_path) as bench:
        yield bench
    docker_engine.remove_containers()


def refusal(bench: DockerBench, **settings: object) -> str:
    """Return how a start with these settings is told, whether it fails at once or a moment later."""
    try:
        bench.spawn("exec sleep 600", settings=settings)
    except SpawnError as error:
        return str(error)
    (ended,) = bench.exits()
    cause, detail = cause_of(ended, drained=False, overdue=False)
    assert cause is Cause.CRASHED
    assert not ended.is_removed
    return detail


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param({"network": "nonet"}, "network nonet not found", id="no such network"),
        pytest.param({"network": "container:nobody"}, "No such container: nobody", id="no such other container"),
        pytest.param(
            {"volumes": ["/no/such/folder:/data"]}, "bind source path does not exist: /no/such/folder", id="no folder"
        ),
    ],
)
def test_what_the_engine_refuses_is_told_in_its_own_words(
    bench: DockerBench, settings: dict[str, object], told: str
) -> None:
    found = refusal(bench, **settings)
    assert told in found
    assert "can't start a worker of pool" in found
    eventually(lambda: bench.engine.containers() == [])
