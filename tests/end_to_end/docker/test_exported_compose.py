"""The files of `towline export --to compose`, brought up on an engine of its own: they work as they stand."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.commands.export import EXPORTS
from orchestrator.export.compose import FILE
from tests.support.docker.engine import EngineUnavailableError, PrivateDockerEngine, docker_engine
from tests.support.eventually import eventually
from tests.support.fleet.deployed import Compose, compose_program, exported_server
from tests.support.fleet.export_requests import a_request
from tests.support.stores.engines import memory_directory

PATIENCE_SECONDS = 120.0
MOST = 4
SHOWN_CHARS = 20_000
SETTINGS = """\
store: sqlite:///queue.db
server: {{tokens: [{{role: admin, token_file: admin.token}}]}}
queues: {{thumbs: {{max_leases: 3}}}}
pools:
  resize:
    queue: thumbs
    untagged: true
    app: tests.support.docker.container_app:app
    slo: 1s
    grace: 5s
    workers: {{min: 0, max: {most}}}
    runtime: {{docker: {{image: "{image}", pull: never, engine: "{engine}"}}}}
  service:
    queue: thumbs
    tags: [service]
    app: tests.support.docker.container_app:app
    slo: 1s
    runtime: external
"""


@pytest.fixture
def engine() -> Iterator[PrivateDockerEngine]:
    try:
        with docker_engine(parent=memory_directory(), has_network=True) as running:
            yield running
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def stack(engine: PrivateDockerEngine, tmp_path: Path) -> Iterator[Compose]:
    """The exported files, brought up as their head says."""
    try:
        text = SETTINGS.format(most=MOST, image=engine.image(), engine=engine.url)
        server = exported_server(engine)  # its entrypoint is not what a worker runs
        request = a_request(text, env={"TOWLINE_TEST_FOLDER": "/tmp"}, server_image=server, images={"service": server})
        program = compose_program()
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    exported = EXPORTS["compose"](request)
    for name, written in {**exported.files, **exported.private}.items():
        (tmp_path / name).write_text(written)
    for role in ("admin", "worker"):
        (tmp_path / f"{role}.token").write_text(f"the-{role}-token-of-the-test")
    subprocess.run(["/bin/sh", "-c", the_group_of_the_socket(tmp_path / FILE)], cwd=tmp_path, check=True)
    compose = Compose(program, engine.home.name.lower(), {"DOCKER_HOST": engine.url}, file=tmp_path / FILE)
    try:
        compose("up", "--detach")
        yield compose
    finally:
        print(compose("logs", "--no-color")[-SHOWN_CHARS:])  # noqa: T201  shown when the test fails
        compose("down", "--volumes", "--timeout", "5")


def workers(engine: PrivateDockerEngine) -> int:
    with engine.client() as client:
        return len(client.containers(filters={"label": "towline.pool=resize"}))


def test_a_pool_of_containers_in_the_exported_file_goes_from_none_to_its_most_and_back(
    engine: PrivateDockerEngine, stack: Compose
) -> None:
    with engine.client() as client:
        (server,) = client.containers(filters={"label": "com.docker.compose.service=towline"})
        eventually(
            lambda: client.inspect_container(server["Id"])["State"]["Health"]["Status"] == "healthy",
            seconds=PATIENCE_SECONDS,
        )
    assert workers(engine) == 0
    stack("exec", "-T", "towline", "towline", "add", "thumbs", "--lines", stdin="rest 3\n" * 30)
    eventually(lambda: workers(engine) == MOST, seconds=PATIENCE_SECONDS)
    assert "bad " not in stack("exec", "-T", "towline", "towline", "doctor")
    with engine.client() as client:
        client.kill(server["Id"], "SIGKILL")
        stack("up", "--detach")
        eventually(lambda: b'"adopted":4' in client.logs(server["Id"]), seconds=PATIENCE_SECONDS)
    eventually(lambda: workers(engine) == 0, seconds=PATIENCE_SECONDS)
    assert '"ready": 0' in told(stack)
    stack("exec", "-T", "towline", "towline", "add", "thumbs", "--tag", "service", "rest 0")
    eventually(lambda: '"deleted_total": 31' in told(stack), seconds=PATIENCE_SECONDS)
    for command in executed(stack.file.read_text()):
        stack("exec", "-T", *command)


def told(stack: Compose) -> str:
    return stack("exec", "-T", "towline", "towline", "stats", "thumbs", "--json")


def the_group_of_the_socket(file: Path) -> str:
    """The command of the head that is executed once, before the file is brought up."""
    (line,) = [line for line in file.read_text().splitlines() if line.startswith("#   echo DOCKER_GROUP=")]
    return line.removeprefix("#")


def executed(text: str) -> list[list[str]]:
    """The commands that the head of a compose file executes in a container."""
    lines = [line.removeprefix("#   docker compose exec ") for line in text.splitlines()]
    found = [shlex.split(line) for line in lines if not line.startswith("#") and line.startswith("towline ")]
    assert len(found) > 1
    return found
