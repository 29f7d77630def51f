"""The image of `deploy/Dockerfile` and the stack of `deploy/compose.yaml`, on an engine and images made here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import docker
import pytest

from tests.support.deployed import Compose, build_towline, compose_program, local_base, local_postgres
from tests.support.docker_engine import DockerEngine, EngineUnavailableError, docker_engine
from tests.support.engines import memory_directory
from tests.support.eventually import eventually

Json = dict[str, object]
HEALTHY_SECONDS = 60.0
NOBODY = "10001:10001"
COMPILED = """\
import sys, pathlib, orchestrator.cli
print([m.__name__ for m in list(sys.modules.values())
       if getattr(m, "__cached__", None) and not pathlib.Path(m.__cached__).exists()])
"""


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    try:
        with docker_engine(parent=memory_directory()) as running:
            yield running
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def test_the_image_builds_and_runs_read_only_as_nobody_and_compose_brings_up_the_demo(
    engine: DockerEngine, tmp_path: Path
) -> None:
    """One story, since the image is built once: it takes most of the time."""
    image = build_towline(engine, base=local_base(engine))
    with engine.client() as client:
        it_says_what_it_is(client, image)
        it_runs_read_only_and_is_healthy(client, image)
    try:
        environment = {
            "DOCKER_HOST": engine.url,
            "TOWLINE_IMAGE": image,
            "POSTGRES_IMAGE": local_postgres(engine),
            "TOWLINE_PORT": "0",
            "TOWLINE_SUPERVISOR_PORT": "0",
        }
        compose = Compose(compose_program(), engine.home.name.lower(), environment)
    except EngineUnavailableError as error:
        pytest.skip(f"the image was built and is healthy; {error}")
    try:
        compose("up", "--detach", "--no-build")
        the_demo_is_done(engine, compose)
    finally:
        compose("down", "--volumes", "--timeout", "20")


def it_says_what_it_is(client: docker.APIClient, image: str) -> None:
    config = client.inspect_image(image)["Config"]
    assert (config["User"], config["Entrypoint"], config["StopSignal"]) == (NOBODY, ["towline"], "SIGTERM")
    assert config["Healthcheck"]["Test"] == ["CMD", "towline", "health"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.revision"] == "0123abc"


def it_runs_read_only_and_is_healthy(client: docker.APIClient, image: str) -> None:
    hardened = client.create_host_config(
        read_only=True,
        tmpfs={"/var/lib/towline": ""},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        network_mode="none",
    )
    impatient = {"interval": 500_000_000, "timeout": 10_000_000_000, "retries": 3}
    container = client.create_container(image, host_config=hardened, healthcheck=impatient)["Id"]
    try:
        client.start(container)
        eventually(lambda: health(client, container) == "healthy", seconds=HEALTHY_SECONDS)
        assert run_in(client, container, "id", "-u") == "10001"
        assert "Read-only file system" in run_in(client, container, "touch", "/opt/towline/x", code=1)
        assert run_in(client, container, "python3", "-c", COMPILED) == "[]"
        client.stop(container, timeout=30)
        assert client.inspect_container(container)["State"]["ExitCode"] == 0
    finally:
        client.remove_container(container, force=True, v=True)


def the_demo_is_done(engine: DockerEngine, compose: Compose) -> None:
    with engine.client() as client:
        eventually(lambda: state_of(client, "demo") == "exited", seconds=HEALTHY_SECONDS)
        assert exit_code(client, "demo") == 0, compose("logs", "--no-color")
        added = cast("int", stats(compose)["added_total"])
        assert added > 50
        eventually(lambda: stats(compose)["deleted_total"] == added, seconds=HEALTHY_SECONDS)
        for service in ("postgres", "queue", "supervisor"):
            eventually(lambda service=service: health(client, found(client, service)) == "healthy", seconds=30)  # type: ignore[misc]
            facts = client.inspect_container(found(client, service))["HostConfig"]
            assert facts["ReadonlyRootfs"] and facts["CapDrop"] == ["ALL"] and facts["Memory"] > 0, service
            bound = [place["HostIp"] for places in (facts["PortBindings"] or {}).values() for place in places]
            assert set(bound) <= {"127.0.0.1"}


def stats(compose: Compose) -> Json:
    return cast("Json", json.loads(compose("exec", "-T", "queue", "towline", "stats", "files", "--json")))


def health(client: docker.APIClient, container: str) -> str:
    state = client.inspect_container(container)["State"]
    assert state["Running"], client.logs(container).decode()
    return str(state["Health"]["Status"])


def found(client: docker.APIClient, service: str) -> str:
    (only,) = client.containers(all=True, filters={"label": f"com.docker.compose.service={service}"})
    return str(only["Id"])


def state_of(client: docker.APIClient, service: str) -> str:
    return str(client.inspect_container(found(client, service))["State"]["Status"])


def exit_code(client: docker.APIClient, service: str) -> int:
    return int(client.inspect_container(found(client, service))["State"]["ExitCode"])


def run_in(client: docker.APIClient, container: str, *command: str, code: int = 0) -> str:
    run = client.exec_create(container, list(command))
    told = client.exec_start(run["Id"]).decode().strip()
    assert client.exec_inspect(run["Id"])["ExitCode"] == code, told
    return str(told)
