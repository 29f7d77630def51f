"""The manual pages say what `--help` says, and are what `man` reads without a complaint."""

import shutil
import subprocess

import pytest

from orchestrator.cli import command
from tests.support import man_pages


def test_the_pages_are_those_of_the_commands_as_they_are_now() -> None:
    kept = {path.name: path.read_text() for path in man_pages.FOLDER.iterdir()}
    assert kept == man_pages.pages(), "run python3 -m tests.support.man_pages"
    assert {f"towline-{name}.1" for name in man_pages.entries_of(command())} | {"towline.1"} == set(kept)


def test_troff_has_nothing_to_say_of_any_page() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not here (Debian: groff-base)")
    for page in sorted(man_pages.FOLDER.iterdir()):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-P-cbou", page], capture_output=True, text=True, check=True
        )
        assert done.stderr == "", page.name
        assert "NAME\n" in done.stdout, page.name


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(".SH not a request", ".SH not a request", id="a dot at the beginning"),
        pytest.param("'quoted' at the beginning", "'quoted' at the beginning", id="a quote at the beginning"),
        pytest.param(r"a \fBbackslash\fR \n", r"a \fBbackslash\fR \n", id="backslashes"),
        pytest.param('`x` ~/.bashrc ^ -- "é"', '`x` ~/.bashrc ^ -- "é"', id="what troff prints as something else"),
    ],
)
def test_a_text_is_printed_as_it_is(written: str, read: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not here (Debian: groff-base)")
    page = f".TH A 1\n.nh\n.nf\n{man_pages.text(written)}\n"
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-cbou"], input=page, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert read in done.stdout
