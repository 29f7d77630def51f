"""What is published: two artifacts that the index takes, the same from each build, small, with all that they need."""

import re
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bench import size
from tests.support.built_packages import ROOT, BuiltPackages, built_packages, run_apart

MOST_INSTALLED_BYTES = 60_000_000


def _checked(module: str, *arguments: str | Path) -> str:
    """Run a checker of the environment; return what it says when it finds nothing."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not here")
    told = run_apart([sys.executable, "-m", module, *arguments], folder=ROOT)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_the_index_takes_both_artifacts(packages: BuiltPackages) -> None:
    said = _checked("twine", "check", "--strict", packages.wheel, packages.sdist)
    assert said.count("PASSED") == 2


def test_the_published_description_leads_to_files_of_its_own_version(packages: BuiltPackages) -> None:
    """Elsewhere than in the repository a relative link is dead, and one to the main branch shows another version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    home, tag = project["urls"]["Repository"], f"v{project['version']}"
    described = [described_by(packages.wheel), described_by(packages.sdist)]
    assert described[0] == described[1]
    links = re.findall(r'\]\(([^)\s]*)|(?:src|srcset|href)="([^"]*)"', described[0])
    found = [markdown or html for markdown, html in links]
    assert len(found) > 30
    own = [link.removeprefix(f"{home}/") for link in found if link.startswith(home)]
    assert [link for link in found if not link.startswith(("https://", "#"))] == []
    for link in own:
        kind, version, path = link.partition("#")[0].split("/", 2)
        assert (version, (ROOT / path).exists()) == (tag, True), link
        assert kind == ("raw" if path.endswith(".webp") else "blob"), link


def described_by(artifact: Path) -> str:
    """Return the description that an index shows for an artifact."""
    if artifact.suffix == ".whl":
        with zipfile.ZipFile(artifact) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(wheel.read(name).decode()).get_payload()
    with tarfile.open(artifact) as archive:
        (member,) = (one for one in archive.getmembers() if one.name.count("/") == 1 and one.name.endswith("/PKG-INFO"))
        file = archive.extractfile(member)
        assert file is not None
        return Parser().parsestr(file.read().decode()).get_payload()


def test_the_wheel_has_no_stray_file(packages: BuiltPackages) -> None:
    assert "OK" in _checked("check_wheel_contents", packages.wheel)


def test_every_module_and_data_file_of_the_packages_is_in_the_wheel(packages: BuiltPackages) -> None:
    names = set(zipfile.ZipFile(packages.wheel).namelist())
    for package in ("queue_core", "orchestrator"):
        files = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert {str(path.relative_to(ROOT)) for path in files} <= names
    pages = {path.name for path in (ROOT / "docs" / "man").iterdir()}
    assert pages == {Path(name).name for name in names if "/share/man/man1/" in name}


def test_the_sdist_builds_the_same_wheel(packages: BuiltPackages, tmp_path: Path) -> None:
    with tarfile.open(packages.sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = built_packages(tmp_path / "built", source=source)
    assert again.wheel.read_bytes() == packages.wheel.read_bytes()
    assert again.sdist.read_bytes() == packages.sdist.read_bytes()


def test_towline_and_all_that_it_needs_take_little_room(packages: BuiltPackages) -> None:
    parts = size.installed_bytes(packages.wheel)
    assert {"towline", "apsw", "pydantic-core", "rich"} <= set(parts)
    assert sum(parts.values()) < MOST_INSTALLED_BYTES


def test_help_imports_nothing_that_it_does_not_show() -> None:
    program = "import sys; from orchestrator.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    told = run_apart([sys.executable, "-c", program], folder=ROOT)
    assert "Usage: towline" in told.stdout
    imported = {name.partition(".")[0] for name in told.stderr.split()}
    heavy = {
        "apsw",
        "docker",
        "jinja2",
        "kombu",
        "pydantic",
        "psutil",
        "requests",
        "rich",
        "starlette",
        "uvicorn",
        "yaml",
    }
    assert imported & heavy == set()
