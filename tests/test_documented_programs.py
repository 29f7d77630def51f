"""Programs that documents show run as they stand there."""

import functools
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.cli.commands.init import PROGRAM, SETTINGS
from orchestrator.cli.commands.logs import logs
from orchestrator.runtime import SpawnRequest
from orchestrator.settings_file import parse
from queue_core import App, NewTask
from queue_core.testing import MemoryQueues, run_until_empty
from tests.support.commands import Commands

ROOT = Path(__file__).parents[1]


def _programs(document: str) -> list[str]:
    return re.findall(r"^```python[^\n]*\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def _run(program: str, name: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(program, name, "exec"), module.__dict__)
    return module


def test_the_policy_can_be_asked_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervising, asking = _programs("docs/how-to/daemon.md")
    compile(supervising, "supervising", "exec")
    monkeypatch.chdir(tmp_path)
    Path("towline.yaml").write_text(SETTINGS)
    _run(asking, "asking")
    assert "Spawn(" in capsys.readouterr().out


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


def test_the_page_on_testing_tests_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shown")
    for program in _programs("docs/how-to/testing.md"):
        exec(compile(program, "testing.md", "exec"), module.__dict__)
    module.test_a_picture_is_resized()
    module.test_what_the_producer_adds()
    queues = MemoryQueues()
    module.test_a_program(queues, functools.partial(run_until_empty, queues=queues))


def test_the_page_on_functions_shows_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        """In place of httpx's, which is no dependency of ours."""

    httpx = ModuleType("httpx")
    httpx.Client = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "httpx", httpx)
    first, uses, hooks = _programs("docs/how-to/functions.md")
    module, queues = _run(first, "shown"), MemoryQueues()
    with module.app.bound_to(queues):
        exec(compile(uses, "functions.md", "exec"), module.__dict__)
    named = [task.name for task in queues.queue("thumbs").peek().tasks]
    assert named == [None, "cat"]
    assert _run(hooks, "hooks").app.queues == ("pages",)


def test_the_commands_that_show_workers_output_are_ones_and_do_so(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    folder = towline.folder / ".towline" / "workers"
    folder.mkdir(parents=True)
    (folder / "resize-7f3k2q.log").write_text('{"event": "done", "task": "cat-17"}\n')
    page = (ROOT / "docs/how-to/logs.md").read_text()
    commands = re.findall(r"^\$ towline logs ?(.*)$", page, re.MULTILINE)
    assert len(commands) >= 6
    for text in [*commands, *(example.partition(" logs")[2].partition("|")[0] for example in logs.examples)]:
        arguments = shlex.split(text)
        logs.make_context("logs", list(arguments))  # raises for an option that is none
        if "--follow" not in arguments:
            told = towline("logs", *arguments)
            assert (told.code, "done" in told.out) == (0, True), text


def test_a_workers_name_is_where_the_page_says() -> None:
    (settings,) = re.findall(
        r"^```yaml\n(pools:\n.*?)^```$", (ROOT / "docs/how-to/daemon.md").read_text(), re.MULTILINE | re.DOTALL
    )
    project = parse(f"queues: {{thumbs: {{max_leases: 5}}}}\n{settings}", name="towline.yaml", directory=ROOT)
    request = SpawnRequest("resize-7f", project.pools["resize"])
    assert request.command[-1] == "--metrics=/run/resize/resize-7f.prom"
    assert request.variables == {"REPORT": "/srv/reports/resize-7f.csv"}
    assert project.notes == ()
