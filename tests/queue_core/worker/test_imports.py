"""The modules that a worker of plain functions imports: forty workers keep forty copies of each."""

import sys
from pathlib import Path

import pytest

from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from tests.support.built_packages import run_apart
from tests.support.servers import QUEUE, a_server

ROOT = Path(__file__).parents[3]
APP = f"""\
import sys
from pathlib import Path
from queue_core import App

app = App()

@app.task(queue="{QUEUE}")
def tell(task):
    Path("modules").write_text("\\n".join(sys.modules))
"""
OF_OTHERS = {
    "amqp",
    "celery",
    "docker",
    "grpc",
    "jinja2",
    "kombu",
    "psycopg",
    "redis",
    "requests",
    "rich",
}
"""Packages for which such a worker has no use."""
FOR_STORES = {"queue_core.client.local_calls", "queue_core.unit.unit_of_work", "queue_core.stores.sqlite.store"}
"""Modules for programs that open a store themselves."""


@pytest.mark.parametrize("opens", ["a server", "a store"])
def test_a_worker_imports_what_it_uses_and_nothing_of_others(tmp_path: Path, opens: str) -> None:
    (tmp_path / "plain.py").write_text(APP)
    store = SqliteStore(tmp_path / "q.db")
    with a_server(store) as running:
        with store.begin() as transaction:
            transaction.add(QUEUE, [NewTask(b"x")], now=store.clock.now())
        url = running.url if opens == "a server" else store.url
        path = f"{ROOT}:{tmp_path}"
        command = [sys.executable, "-m", "orchestrator", "work", "plain:app"]
        done = run_apart(command, folder=tmp_path, PYTHONPATH=path, TOWLINE_URL=url, TOWLINE_RECYCLE='{"tasks": 1}')
    assert done.returncode == 0, done.stderr
    modules = set((tmp_path / "modules").read_text().split())
    assert OF_OTHERS.isdisjoint(modules)
    assert FOR_STORES & modules == (FOR_STORES if opens == "a store" else set())
    assert "html" not in modules
