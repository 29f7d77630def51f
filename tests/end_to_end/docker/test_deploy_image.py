"""The image of `deploy/Dockerfile` and the stack of `deploy/compose.yaml`, on an engine and images made here."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.request import Request, urlopen

import docker
import pytest

from queue_core.client.connect import open_queue
from queue_core.client.queue import Queue
from tests.support.commands import ROOT
from tests.support.docker.engine import EngineUnavailableError, PrivateDockerEngine, docker_engine
from tests.support.eventually import eventually
from tests.support.fleet.deploy_comments import taught
from tests.support.fleet.deployed import (
    BASE,
    REVISION,
    Compose,
    build_towline,
    compose_program,
    local_base,
    local_postgres,
)
from tests.support.stores.engines import memory_directory

Json = dict[str, object]
PATIENCE_SECONDS = 120.0
NOBODY = "10001:10001"
IMPATIENT = """\
services:
  postgres: {healthcheck: {interval: 1s}}
  queue: {healthcheck: {interval: 1s}}
  supervisor: {healthcheck: {interval: 1s}}
"""
COMPILED = """\
import sys, pathlib, orchestrator.cli
print([m.__name__ for m in list(sys.modules.values())
       if getattr(m, "__cached__", None) and not pathlib.Path(m.__cached__).exists()])
"""


@pytest.fixture
def engine() -> Iterator[PrivateDockerEngine]:
    try:
        with docker_engine(parent=memory_directory()) as running:
            yield running
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def test_the_image_builds_and_runs_read_only_as_nobody_and_compose_brings_up_the_demo(
    engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    """One story, since the image is built once: it takes most of the time."""
    image = build_towline(engine, base=local_base(engine))
    with engine.client() as client:
        it_says_what_it_is(client, image)
        it_runs_read_only_and_is_healthy(client, image)
    its_own_commands_build_and_run_it(engine)
    try:
        environment = {
            "DOCKER_HOST": engine.url,
            "TOWLINE_IMAGE": image,
            "POSTGRES_IMAGE": local_postgres(engine),
            "TOWLINE_PORT": "0",
            "TOWLINE_SUPERVISOR_PORT": "0",
        }
        override = tmp_path / "impatient.yaml"
        override.write_text(IMPATIENT)
        compose = Compose(compose_program(), engine.home.name.lower(), environment, override)
    except EngineUnavailableError as error:
        pytest.skip(f"the image was built and is healthy; {error}")
    try:
        compose("up", "--detach", "--no-build")
        the_demo_is_done(engine, compose)
        the_commands_of_its_head_work(compose)
    finally:
        compose("down", "--volumes", "--timeout", "5")


def its_own_commands_build_and_run_it(engine: PrivateDockerEngine) -> None:
    """The commands in the head of the Dockerfile, with the options that a machine without a registry needs."""
    if shutil.which("docker") is None:
        pytest.skip("docker: its client is not installed (Debian: apt-get install docker.io)")
    (build,), (run,) = (
        [shlex.split(one.text) for one in taught() if one.text.startswith(start)]
        for start in ("docker build ", "docker run ")
    )
    environment = {**os.environ, "DOCKER_HOST": engine.url, "DOCKER_BUILDKIT": "0"}
    local = ["--network=host", f"--build-arg=BASE_IMAGE={BASE}", f"--build-arg=REVISION={REVISION}"]
    for command in (
        [*build[:2], *local, *build[2:]],
        [*run[:2], "--network=none", "--detach", "--name=as-taught", *run[2:]],
        ["docker", "exec", "as-taught", "sh", "-c", "until towline health; do sleep 0.2; done"],
        ["docker", "stop", "as-taught"],
        ["docker", "rm", "--volumes", "as-taught"],
    ):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def the_commands_of_its_head_work(compose: Compose) -> None:
    """A task that one of them adds is like the demo's."""
    lines = [shlex.split(one.text.partition(" < ")[0]) for one in taught() if one.inside]
    assert len(lines) > 3
    for line in lines:
        told = compose("exec", "-T", *[word for word in line[3:] if word != "-T"], stdin="/etc/passwd\n")
        assert told or "add" in line, line


def it_says_what_it_is(client: docker.APIClient, image: str) -> None:
    config = client.inspect_image(image)["Config"]
    assert (config["User"], config["Entrypoint"], config["StopSignal"]) == (NOBODY, ["towline"], "SIGTERM")
    assert config["Healthcheck"]["Test"] == ["CMD", "towline", "health"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.revision"] == REVISION


def it_runs_read_only_and_is_healthy(client: docker.APIClient, image: str) -> None:
    hardened = client.create_host_config(
        read_only=True,
        tmpfs={"/var/lib/towline": ""},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        network_mode="none",
    )
    impatient = {"interval": 1_000_000_000, "timeout": 10_000_000_000, "retries": 3}
    container = client.create_container(image, host_config=hardened, healthcheck=impatient)["Id"]
    try:
        client.start(container)
        eventually(lambda: health(client, container) == "healthy", seconds=PATIENCE_SECONDS)
        assert run_in(client, container, "id", "-u") == "10001"
        assert "Read-only file system" in run_in(client, container, "touch", "/opt/towline/x", code=1)
        assert run_in(client, container, "python3", "-c", COMPILED) == "[]"
        client.stop(container, timeout=30)
        assert client.inspect_container(container)["State"]["ExitCode"] == 0
    finally:
        client.remove_container(container, force=True, v=True)


def the_demo_is_done(engine: PrivateDockerEngine, compose: Compose) -> None:
    with engine.client() as client:
        eventually(lambda: state_of(client, "demo")["Status"] == "exited", seconds=PATIENCE_SECONDS)
        assert state_of(client, "demo")["ExitCode"] == 0, compose("logs", "--no-color")
        with published_queue(client) as files:
            added = files.stats().added_total
            assert added > 50
            eventually(lambda: files.stats().deleted_total == added, seconds=PATIENCE_SECONDS)
        for service in ("postgres", "queue", "supervisor"):
            container = found(client, service)
            eventually(lambda it=container: health(client, it) == "healthy", seconds=PATIENCE_SECONDS)  # type: ignore[misc]
            facts = client.inspect_container(container)["HostConfig"]
            assert facts["ReadonlyRootfs"], service
            assert facts["CapDrop"] == ["ALL"], service
            assert facts["Memory"] > 0, service
        assert 'towline_pool_leases_total{outcome="deleted",pool="checksums"}' in scraped(client)


@contextmanager
def published_queue(client: docker.APIClient) -> Iterator[Queue]:
    """The queue as the host reaches it, with a token that the stack made up."""
    url, token = published(client, "queue", port=7878), secret(client, "admin_token")
    queue = open_queue(url, "files", token=token)
    try:
        yield queue
    finally:
        queue.close()


def scraped(client: docker.APIClient) -> str:
    """What Prometheus is told of the fleet."""
    bearer = {"Authorization": f"Bearer {secret(client, 'viewer_token')}"}
    with urlopen(
        Request(f"{published(client, 'supervisor', port=7879)}/metrics", headers=bearer), timeout=30
    ) as answer:
        return str(answer.read().decode())


def published(client: docker.APIClient, service: str, *, port: int) -> str:
    (place,) = client.inspect_container(found(client, service))["NetworkSettings"]["Ports"][f"{port}/tcp"]
    assert place["HostIp"] == "127.0.0.1"
    return f"http://127.0.0.1:{place['HostPort']}"


def secret(client: docker.APIClient, name: str) -> str:
    return run_in(client, found(client, "queue"), "cat", f"/run/secrets/{name}")


def health(client: docker.APIClient, container: str) -> str:
    state = client.inspect_container(container)["State"]
    assert state["Running"], client.logs(container).decode()
    return str(state["Health"]["Status"])


def found(client: docker.APIClient, service: str) -> str:
    (only,) = client.containers(all=True, filters={"label": f"com.docker.compose.service={service}"})
    return str(only["Id"])


def state_of(client: docker.APIClient, service: str) -> Json:
    return cast("Json", client.inspect_container(found(client, service))["State"])


def run_in(client: docker.APIClient, container: str, *command: str, code: int = 0) -> str:
    run = client.exec_create(container, list(command))
    told = client.exec_start(run["Id"]).decode().strip()
    assert client.exec_inspect(run["Id"])["ExitCode"] == code, told
    return str(told)
