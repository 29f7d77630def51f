"""Claims of pages that their blocks don't show: names of settings, and what programs beside them do."""

import re
from pathlib import Path
from types import ModuleType

from orchestrator.cli.commands.init import PROGRAM
from orchestrator.runtime import SpawnRequest
from orchestrator.settings_file import parse
from queue_core import App, NewTask
from queue_core.testing import run_until_empty
from tests.docs.blocks import read_page
from tests.support.commands import ROOT


def _run(program: str, name: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(program, name, "exec"), module.__dict__)
    return module


def test_what_init_writes_handles_what_init_says() -> None:
    app = _run(PROGRAM, "tasks").app
    assert isinstance(app, App)
    (outcome,) = run_until_empty(app, NewTask(b'{"path": "cat.jpg"}', tag="resize"))
    assert (outcome.queue, outcome.error) == ("thumbs", None)


def test_the_handlers_of_deploy_give_up_on_a_file_that_is_not_there(tmp_path: Path) -> None:
    app = _run((ROOT / "deploy" / "tasks.py").read_text(), "tasks").app
    (tmp_path / "file").write_bytes(b"1")
    paths = [str(tmp_path / name).encode() for name in ("file", "none")]
    outcomes = run_until_empty(app, [NewTask(path, tag="checksum") for path in paths])
    assert [type(outcome.error).__name__ for outcome in outcomes] == ["NoneType", "Dead"]


def test_a_workers_name_is_where_the_page_says() -> None:
    path = Path("docs/how-to/daemon.md")
    page = read_page(path, (ROOT / path).read_text())
    (settings,) = [block.text for block in page.blocks if "{worker}" in block.text]
    project = parse(f"queues: {{thumbs: {{max_leases: 5}}}}\n{settings}", name="towline.yaml", directory=ROOT)
    request = SpawnRequest("resize-7f", project.pools["resize"])
    assert request.command[-1] == "--metrics=/run/resize/resize-7f.prom"
    assert request.variables == {"REPORT": "/srv/reports/resize-7f.csv"}
    assert project.notes == ()


def test_every_setting_that_the_page_on_celery_warns_of_is_one_of_celerys() -> None:
    import celery.app.defaults as defaults

    page = (ROOT / "docs/from/celery.md").read_text()
    section = page.partition("## Settings that lose tasks")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([a-z_]+)[`.]", section, re.MULTILINE)
    assert len(names) == 8
    assert set(names) <= {name for name, _ in defaults.flatten(defaults.NAMESPACES)}
