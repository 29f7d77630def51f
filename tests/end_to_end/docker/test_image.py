"""The private Docker Engine of the tests, and the image it runs: what other stories on containers stand on."""

from pathlib import Path

import pytest
from docker.errors import NotFound

from tests.support.docker.engine import EngineUnavailableError, PrivateDockerEngine, docker_engine

IMPORTS = (
    "import ssl, sqlite3, ctypes, apsw, orchestrator.cli, queue_core.worker.__main__, tests.support.fleet.recording_app"
)


def test_a_container_of_the_image_needs_nothing_from_outside_and_is_anybody(docker_engine: PrivateDockerEngine) -> None:
    said = _run(docker_engine, ["python3", "-c", f"{IMPORTS}; print('all there')"], user="65534:65534")

    assert said == (0, "all there\n")


def test_a_container_of_the_image_has_a_shell_and_the_command(docker_engine: PrivateDockerEngine) -> None:
    code, said = _run(docker_engine, ["/bin/sh", "-c", "towline --version && sleep 0 && exit 7"])

    assert (code, said.split()[0]) == (7, "towline")


def test_an_engine_that_is_killed_comes_back_with_its_containers_and_leaves_nothing_in_the_end() -> None:
    try:
        with docker_engine() as engine:
            engine.restart()
            with engine.client() as client, pytest.raises(NotFound):
                client.inspect_image("towline-test:latest")
            home = engine.home
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    assert not home.exists()


def test_an_engine_with_a_network_has_it_in_a_namespace_of_its_own() -> None:
    bridge = Path("/sys/class/net/docker0")
    was_there = bridge.exists()  # that of the system's own engine
    try:
        with docker_engine(has_network=True) as engine, engine.client() as client:
            assert "bridge" in {network["Name"] for network in client.networks()}
            assert bridge.exists() == was_there
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def _run(engine: PrivateDockerEngine, command: list[str], *, user: str = "root") -> tuple[int, str]:
    """A container's exit code and all it said; it has no network and may not write."""
    with engine.client() as client:
        limits = client.create_host_config(network_mode="none", read_only=True)
        made = client.create_container(engine.image(), command, user=user, host_config=limits)
        client.start(made["Id"])
        return int(client.wait(made["Id"])["StatusCode"]), engine.logs(made["Id"])
