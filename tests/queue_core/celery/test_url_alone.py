"""Programs that can't be edited take Towline as their broker by its URL alone, once it is installed beside them."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from queue_core.config.store_urls import SHARED_SCHEMES
from queue_core.kombu import SCHEMES
from tests.support.commands import ROOT, program_environment
from tests.support.servers import a_server

SECONDS = 60.0
CELERY = "from celery import Celery\napp = Celery(broker={url!r})\n"
KOMBU = """
from kombu import Connection, Queue
with Connection({url!r}) as connection:
    queue = connection.SimpleQueue("one")
    queue.put("hello")
    message = queue.get(timeout=30)
    message.ack()
    queue.close()
    print(message.payload)
"""
LISTED = """
import json, sys
import kombu, kombu.serialization, kombu.transport
print(json.dumps(sorted(one for one in sys.modules if one.split(".")[0] in ("queue_core", "orchestrator"))))
print(json.dumps(sorted(one for one in kombu.transport.TRANSPORT_ALIASES if one.startswith("towline"))))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a program in whose environment Towline is installed, as pyproject.toml says now."""
    metadata = tmp_path / "site" / "towline-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: towline\nVersion: 0\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{one} = {what}\n" for one, what in points.items())
        for group, points in groups.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return {**program_environment(), "PYTHONPATH": f"{metadata.parent}:{ROOT}"}


def output_of(*command: str, environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            "from kombu import Connection\nConnection({url!r})\nfrom celery import Celery\n"
            "Celery(broker={url!r}).send_task('work')\nprint('sent')",
            id="a connection, then Celery",
        ),
        pytest.param(
            "from celery import Celery\napp = Celery()\napp.conf.broker_url = {url!r}\n"
            "app.send_task('work')\nprint('sent')",
            id="Celery by its setting",
        ),
        pytest.param(KOMBU + "print('sent')", id="kombu without Celery"),
    ],
)
def test_a_program_that_imports_nothing_of_towline_publishes(
    program: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with a_server() as server:
        url = f"towline+{server.url}"
        assert "sent" in output_of("-c", program.format(url=url), environment=environment, folder=tmp_path)


def test_celerys_own_command_asks_by_the_url(environment: dict[str, str], tmp_path: Path) -> None:
    with a_server() as server:
        url = f"towline+{server.url}"
        (tmp_path / "shop.py").write_text(CELERY.format(url=url))
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-b", url, "worker", "-P", "solo", "-l", "INFO"],
                env=environment,
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            asked = ["-m", "celery", "-b", url, "inspect", "ping", "--timeout", "5"]
            told = ""
            for _ in range(8):  # the worker starts meanwhile
                done = subprocess.run(
                    [sys.executable, *asked], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
                )
                told = done.stdout
                if "pong" in told:
                    break
            assert "1 node online" in told, (tmp_path / "log").read_text()
        finally:
            worker.terminate()
            worker.wait(SECONDS)


def test_a_program_with_another_broker_loads_nothing_of_towline_but_the_names_of_its_schemes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    loaded, schemes = map(json.loads, output_of("-c", LISTED, environment=environment, folder=tmp_path).splitlines())
    assert loaded == ["queue_core", "queue_core.kombu"]
    assert schemes == sorted(SCHEMES)


def test_every_store_that_programs_share_has_a_scheme() -> None:
    assert {f"towline+{one}" for one in SHARED_SCHEMES} <= set(SCHEMES)
