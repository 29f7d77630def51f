"""The static files are what their manifest says, each with its licence; nothing of a page is fetched from elsewhere."""

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

from queue_core.console.rendering import FOLDER
from tests.console.browser import AXE, AXE_SHA256
from tests.console.pictures import MAX_BYTES

STATIC = FOLDER / "static"
MANIFEST = json.loads((STATIC / "MANIFEST.json").read_text())
VENDORED = MANIFEST["vendored"]


def test_every_static_file_is_in_the_manifest() -> None:
    listed = [one["file"] for one in VENDORED] + MANIFEST["own"]
    assert sorted(listed) == sorted(path.name for path in STATIC.iterdir())


@pytest.mark.parametrize("one", VENDORED, ids=lambda one: str(one["file"]))
def test_a_vendored_file_is_the_published_one(one: dict[str, str]) -> None:
    assert sha256((STATIC / one["file"]).read_bytes()).hexdigest() == one["sha256"]
    assert one["source"].endswith(f"/{one['name']}-{one['version']}.tgz")


@pytest.mark.parametrize("one", VENDORED, ids=lambda one: str(one["file"]))
def test_the_licence_of_a_vendored_file_comes_with_it(one: dict[str, str]) -> None:
    licences = (STATIC / "LICENSES.txt").read_text()
    begin = licences.index(f"\n{one['name']} {one['version']}\n")
    words = {"MIT": "The MIT License", "0BSD": "Permission to use, copy, modify, and/or distribute"}
    assert words[one["license"]] in licences[begin : begin + 600]


def test_axe_is_the_published_one() -> None:
    assert sha256(gzip.decompress(AXE.read_bytes())).hexdigest() == AXE_SHA256
    assert "Mozilla Public License" in (AXE.parent / "LICENSE").read_text()


@pytest.mark.parametrize("path", sorted((FOLDER / "templates").glob("*.html")), ids=lambda path: str(path.name))
def test_no_template_has_a_script_a_style_or_a_handler_of_its_own(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(r"\sstyle=|\son\w+=|hx-on|javascript:|https?://", text)
    assert not re.findall(r"<style|<base|\|\s*safe", text)
    assert not re.findall(r"<script(?! src=\"\{\{ root \}\}static/[\w.-]+\" defer></script>)", text)


def test_the_own_styles_and_scripts_name_no_other_place() -> None:
    for name in ("console.css", "console.js", "follow.js", "reader.js", "towline.svg"):
        text = (STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"https?:|url\(|@import|//[a-z]", text)


def test_every_picture_of_the_manual_is_small_and_shown() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "console"
    page, pictures = (folder / "README.md").read_text(), sorted(folder.glob("*.webp"))
    assert [one.name for one in pictures if one.name not in page] == []
    sizes = [one.stat().st_size for one in pictures]
    assert max(sizes) <= MAX_BYTES
    assert sum(sizes) <= 1_500_000
