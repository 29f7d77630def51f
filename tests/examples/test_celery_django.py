"""The Django project among the examples runs: its pool, its tasks, beat, and what its page says of it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port

EXAMPLE = ROOT / "examples" / "celery-django"
URL = "towline+http://127.0.0.1:7878"
SECONDS = 60.0
ORDERING = """\
import json, sys
import django
import shop
django.setup()
from django.test import Client
client = Client()
for method, path, *data in json.loads(sys.argv[1]):
    print(json.dumps(getattr(client, method)(path, *data).json()))
"""


@dataclass
class Project:
    """A copy of the example whose server listens on another port, and its programs."""

    folder: Path
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        bin_folder = str(Path(sys.executable).parent)
        path = f"{bin_folder}:{os.environ.get('PATH', '')}"
        return {**program_environment(), "DJANGO_SETTINGS_MODULE": "shop.settings", "PATH": path}

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *command: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.running.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            )

    def asked(self, *requests: Sequence[object]) -> list[dict[str, object]]:
        """Return the answers of the project's views."""
        lines = self.run(sys.executable, "-c", ORDERING, json.dumps(requests)).splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            process.wait(SECONDS)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "celery-django"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.db*", ".towline", "__pycache__"))
    port = free_port()
    settings = folder / "shop" / "settings.py"
    assert URL in settings.read_text()
    settings.write_text(settings.read_text().replace(":7878", f":{port}"))
    file = folder / "towline.yaml"
    file.write_text(f'server: {{listen: "127.0.0.1:{port}"}}\n{file.read_text()}')
    made = Project(folder)
    try:
        yield made
    finally:
        made.close()


def test_an_order_is_confirmed_by_a_worker_of_the_pool_and_beat_finds_one_that_was_forgotten(project: Project) -> None:
    project.run(sys.executable, "manage.py", "migrate")
    assert "No changes detected" in project.run(sys.executable, "manage.py", "makemigrations", "--check")
    project.start(sys.executable, "-m", "orchestrator", "up")
    project.start("celery", "-A", "shop", "beat", "--schedule", "beat.db")
    eventually(lambda: b"server.started" in (project.folder / "log").read_bytes())
    forget = "import django, shop; django.setup()\nfrom orders.models import Order\nOrder.objects.create(item='map')"
    project.run(sys.executable, "-c", forget)
    (added,) = project.asked(("post", "/orders/", {"item": "book"}))
    assert added == {"order": 2}
    both = [("get", "/orders/1/"), ("get", "/orders/2/")]
    eventually(lambda: all(order["is_confirmed"] for order in project.asked(*both)))
    assert project.asked(*both)[1] == {"item": "book", "is_confirmed": True, "letters": 1}
    assert "1 node online" in project.run("celery", "-A", "shop", "inspect", "ping")


def test_the_page_shows_the_lines_that_moved_it() -> None:
    added = re.findall(r"^\+(.*)$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    assert len(added) == 2
    code = "".join((EXAMPLE / "shop" / name).read_text() for name in ("celery.py", "settings.py"))
    lines = [line.partition("  #")[0] for line in code.splitlines()]
    assert set(added) <= set(lines)
    assert len(re.findall(r"# line \d|  line \d:", code)) == len(added)
