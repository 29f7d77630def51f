"""The page about workers that others start: its settings, its command, its manifest and its numbers are right."""

import json
import shlex
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

import orchestrator
from orchestrator.http_api.paths import PoolStats
from tests.docs.blocks import Block, Command, read_page
from tests.support.commands import Commands
from tests.support.platform_schemas import KEDA

MANUAL: Final = Path(orchestrator.__file__).parents[1] / "docs/how-to/keda.md"
BLOCKS: Final = read_page(MANUAL, MANUAL.read_text()).blocks


def blocks(kind: str, beginning: str = "") -> list[str]:
    """Return the page's blocks of a language that begin so."""
    return [block.text for block in BLOCKS if block.language == kind and block.text.startswith(beginning)]


def _commands(block: Block) -> list[Command]:
    return block.commands if block.language == "console" else []


def manifest(text: str) -> dict[str, Any]:
    (found,) = [d for d in yaml.safe_load_all(text) if d["kind"] == "ScaledObject"]
    return dict(found)


def test_the_command_of_the_page_writes_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (settings,) = [block.text for block in BLOCKS if block.title == "towline.yaml"]
    (tmp_path / "towline.yaml").write_text(settings)
    (command,) = [command.text for block in BLOCKS for command in _commands(block) if "--to keda" in command.text]
    words = shlex.split(command.replace("\\\n", " "))
    assert Commands(tmp_path, capsys)(*words[1:]).code == 0
    written = manifest((tmp_path / "k8s" / "towline-keda.yaml").read_text())
    shown = manifest(*blocks("yaml", "apiVersion: keda.sh"))
    jsonschema_rs.validate(KEDA["ScaledObject"], shown)
    del written["metadata"]["labels"]
    assert shown == written


def test_the_numbers_of_the_page_are_all_there_are_in_their_order() -> None:
    (text,) = blocks("json")
    told = json.loads(text)
    assert list(told) == list(PoolStats.model_fields)
    PoolStats.model_validate(told)
