"""The lowest versions that the project allows: a fleet, a server, the console and every extra run with them."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.built_packages import (
    LOWEST,
    UNREACHED,
    BuiltPackages,
    NotBuiltError,
    environment_with,
    interpreter_of,
    run_apart,
)
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port

OLDEST = "3.11"
IMPORTS = """
import importlib, pkgutil, queue_core, orchestrator
apart = (
    "orchestrator.__main__",
    "orchestrator.cli.celery_apps.reader",
    "queue_core.google.appengine",
    "queue_core.django",
    "queue_core.kombu.worker",
    "queue_core.google.cloudtasks.grpc_server",
    "queue_core.testing",
    "queue_core.worker.template",
)
for package in (queue_core, orchestrator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith(apart):
            importlib.import_module(module.name)
from queue_core.server.app import openapi_json
openapi_json()
"""


@pytest.fixture(scope="module")
def python(packages: BuiltPackages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the lowest versions."""
    found = interpreter_of(OLDEST)
    if found is None:
        pytest.skip(f"Python {OLDEST} is not here: neither in PATH nor of pyenv or uv")
    folder = tmp_path_factory.mktemp("lowest") / "environment"
    try:
        return environment_with(packages.wheel, found, version=OLDEST, folder=folder, listed=LOWEST)
    except NotBuiltError as error:
        if any(words in str(error) for words in UNREACHED):
            pytest.skip("the package index is out of reach")
        raise


def run(folder: Path, *command: str | Path) -> str:
    done = run_apart(command, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(folder: Path, *command: str | Path) -> Iterator[None]:
    """A program that ends well when it is asked to."""
    with (folder / "said.txt").open("w") as said:
        program = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
        try:
            eventually((folder / "towline.db").exists, seconds=60)
            yield
        finally:
            program.send_signal(signal.SIGTERM)
            code = program.wait(60)
    assert code == 0, (folder / "said.txt").read_text()


def page(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"} if body else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def listens(folder: Path) -> str:
    """The address that the program says it listens on."""
    settings = (folder / "towline.yaml").read_text()
    return "http://" + settings.partition("listen: ")[2].split()[0].strip("\"'")


def settled(folder: Path, port: int) -> None:
    settings = folder / "towline.yaml"
    settings.write_text(settings.read_text().replace("127.0.0.1:7878", f"127.0.0.1:{port}", 1))


def test_every_module_is_imported_with_them(python: Path, tmp_path: Path) -> None:
    run(tmp_path, python, "-c", IMPORTS)


def test_a_fleet_does_its_tasks_and_shows_its_pages(python: Path, tmp_path: Path) -> None:
    towline = python.parent / "towline"
    run(tmp_path, towline, "init")
    settled(tmp_path, free_port())
    url = listens(tmp_path)
    with running(tmp_path, towline, "up"):
        eventually(lambda: _answers(f"{url}/readyz"), seconds=60)
        assert "added" in run(tmp_path, python, "tasks.py", "cat.jpg")
        eventually(lambda: '"task.deleted"' in (tmp_path / "events.jsonl").read_text(), seconds=60)
        for path in ("", "queues", "queues/thumbs", "workers", "events"):
            assert b"<html" in page(f"{url}/console/{path}")
        assert b"towline_" in page(f"{url}/metrics")
        assert json.loads(page(f"{url}/v1/fleet"))["alive"]


def test_a_served_queue_is_leased_from(python: Path, tmp_path: Path) -> None:
    towline, port = python.parent / "towline", free_port()
    (tmp_path / "towline.yaml").write_text(
        f"store: sqlite:///towline.db\nserver: {{listen: '127.0.0.1:{port}'}}\nqueues: {{work: {{}}}}\n"
    )
    url = f"http://127.0.0.1:{port}"
    with running(tmp_path, towline, "serve"):
        eventually(lambda: _answers(f"{url}/readyz"), seconds=60)
        run(tmp_path, towline, "add", "work", "hello", "--url", url)
        (lease,) = json.loads(page(f"{url}/v1/queues/work/lease", b'{"worker": "w"}'))["leases"]
        page(f"{url}/v1/queues/work/delete", json.dumps({"tokens": [lease["token"]]}).encode())
        stats = json.loads(page(f"{url}/v1/queues/work/stats"))
        assert (stats["ready"], stats["in_flight"], stats["deleted_total"]) == (0, 0, 1)
        assert b"work" in page(f"{url}/console/queues")


def _answers(url: str) -> bool:
    try:
        return bool(page(url))
    except OSError:
        return False
