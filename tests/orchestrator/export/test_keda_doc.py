"""The page about workers that others start: its settings, its command, its manifest and its numbers are right."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

import orchestrator
from orchestrator.http_api.paths import PoolStats
from tests.support.commands import Commands
from tests.support.platform_schemas import KEDA

PAGE: Final = (Path(orchestrator.__file__).parents[1] / "docs/how-to/keda.md").read_text()


def blocks(kind: str) -> list[str]:
    """The fenced blocks of the page, without the indent of a list."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def manifest(text: str) -> dict[str, Any]:
    (found,) = [d for d in yaml.safe_load_all(text) if d["kind"] == "ScaledObject"]
    return dict(found)


def test_the_command_of_the_page_writes_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = next(text for text in blocks("yaml") if text.startswith("# towline.yaml"))
    (tmp_path / "towline.yaml").write_text(settings)
    command = next(text for text in blocks("sh") if text.startswith("towline export --to keda"))
    words = shlex.split(command.replace("\\\n", " "))
    assert Commands(tmp_path, capsys)(*words[1:]).code == 0
    written = manifest((tmp_path / "k8s" / "towline-keda.yaml").read_text())
    shown = manifest(next(text for text in blocks("yaml") if text.startswith("apiVersion: keda.sh")))
    jsonschema_rs.validate(KEDA["ScaledObject"], shown)
    del written["metadata"]["labels"]
    assert shown == written


def test_the_other_settings_of_the_page_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pool, listener = [text for text in blocks("yaml") if text.startswith(("pools:", "supervisor:"))]
    (tmp_path / "towline.yaml").write_text(f"queues: {{thumbs: {{max_leases: 5}}}}\n{pool}{listener}")
    assert Commands(tmp_path, capsys)("check").code == 0


def test_the_numbers_of_the_page_are_all_there_are_in_their_order() -> None:
    (text,) = blocks("json")
    told = json.loads(text)
    assert list(told) == list(PoolStats.model_fields)
    PoolStats.model_validate(told)
