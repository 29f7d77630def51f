"""Programs that documents show run as they stand there."""

import functools
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.cli.commands.init import PROGRAM, SETTINGS
from queue_core import App, NewTask
from queue_core.testing import MemoryQueues, run_until_empty

ROOT = Path(__file__).parents[1]


def _programs(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def _run(program: str, name: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(program, name, "exec"), module.__dict__)
    return module


def test_the_readme_tests_its_own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, producer, test = _programs("README.md")
    compile(producer, "producer", "exec")
    monkeypatch.setitem(sys.modules, "tasks", _run(handlers, "tasks"))
    _run(test, "test_tasks").test_a_picture_is_resized()


def test_the_policy_can_be_asked_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervising, asking = _programs("orchestrator/doc/daemon.md")
    compile(supervising, "supervising", "exec")
    monkeypatch.chdir(tmp_path)
    Path("towline.yaml").write_text(SETTINGS)
    _run(asking, "asking")
    assert "Spawn(" in capsys.readouterr().out


def test_what_init_writes_handles_what_init_says() -> None:
    app = _run(PROGRAM, "tasks").app
    assert isinstance(app, App)
    (outcome,) = run_until_empty(app, NewTask(b"cat.jpg", tag="resize"))
    assert (outcome.queue, outcome.error) == ("thumbs", None)


def test_the_handlers_of_deploy_give_up_on_a_file_that_is_not_there(tmp_path: Path) -> None:
    app = _run((ROOT / "deploy" / "tasks.py").read_text(), "tasks").app
    (tmp_path / "file").write_bytes(b"1")
    paths = [str(tmp_path / name).encode() for name in ("file", "none")]
    outcomes = run_until_empty(app, [NewTask(path, tag="checksum") for path in paths])
    assert [type(outcome.error).__name__ for outcome in outcomes] == ["NoneType", "Dead"]


def test_the_page_on_testing_tests_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shown")
    for program in _programs("queue_core/doc/testing.md"):
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
    first, uses, hooks = _programs("queue_core/doc/functions.md")
    module, queues = _run(first, "shown"), MemoryQueues()
    with module.app.bound_to(queues):
        exec(compile(uses, "functions.md", "exec"), module.__dict__)
    named = [task.name for task in queues.queue("thumbs").peek().tasks]
    assert named == [None, "cat"]
    assert _run(hooks, "hooks").app.queues == ("pages",)
