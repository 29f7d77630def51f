"""Programs that documents show run as they stand there."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.cli.commands.init import PROGRAM, SETTINGS
from queue_core import App, NewTask
from queue_core.testing import run_until_empty

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
