"""The demo's report in a browser: on a phone, in light and in dark. Skipped where there is no Chromium."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import pytest

from orchestrator.demo.fleet_page import NARROW, WIDE, fleet_section
from orchestrator.demo.library import Module
from orchestrator.demo.pages import FLEET_PLACE, STYLE, index_page
from tests.orchestrator.demo.test_frame import OUTCOME, a_run

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = pytest.mark.skipif(
    not BROWSER, reason="chromium: no such program; it would show the report as a phone does"
)

MEASURE = """\
const page = document.querySelector("iframe").contentDocument;
const shown = [...page.querySelectorAll("figure svg")].filter(svg => svg.getBoundingClientRect().width > 0);
document.title = JSON.stringify({
  width: page.documentElement.scrollWidth,
  drawings: shown.map(svg => svg.getAttribute("viewBox").split(" ")[2]),
  paper: getComputedStyle(page.querySelector("svg .paper")).fill,
  body: getComputedStyle(page.body).backgroundColor,
});
"""


def seen(folder: Path, *, width: int, scheme: int) -> dict[str, object]:
    """Measure the report in a frame of a width; `scheme`: 0 for dark, 1 for light."""
    modules = [Module(f"a.long.name.of.{number}", "m.py", 9, 9, 9, 9, 9, (), (), "") for number in range(3)]
    index = index_page(modules, python="3.11").replace(FLEET_PLACE, fleet_section(a_run(folder), OUTCOME))
    page = index.replace("</head>", f"<style>{STYLE}</style></head>")
    frame = folder / "frame.html"
    frame.write_text(
        f'<!doctype html><iframe width="{width}" height="900" srcdoc="{escape(page)}"></iframe>'
        f"<script>window.onload = () => {{ {MEASURE} }};</script>"
    )
    done = subprocess.run(
        [
            *(
                BROWSER,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/browser",
            ),
            *(f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=2000", "--dump-dom"),
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title, done.stdout[-500:]
    found = json.loads(unescape(title[1]))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("width", "drawing"), [(390, NARROW), (1280, WIDE)])
def test_the_report_shows_the_drawing_that_fits_and_nothing_beside_the_page(
    tmp_path: Path, width: int, drawing: int
) -> None:
    found = seen(tmp_path, width=width, scheme=1)
    assert found["width"] == width
    assert found["drawings"] == [str(drawing)]


def test_the_drawing_is_as_dark_as_its_page(tmp_path: Path) -> None:
    light, dark = seen(tmp_path, width=390, scheme=1), seen(tmp_path, width=390, scheme=0)
    assert light["paper"] == light["body"] == "rgb(253, 252, 249)"
    assert dark["paper"] == dark["body"] == "rgb(22, 25, 29)"
