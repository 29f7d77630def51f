"""What is published: two artifacts that the index takes, the same from each build, small, with all that they need."""

import sys
import tarfile
import zipfile
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
