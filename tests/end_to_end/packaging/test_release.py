"""A release, tried without publishing it: in a repository of its own that has the files of this tree."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support import release
from tests.support.built_packages import LISTED, ROOT, run_apart

SECONDS = 300


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this tree, committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone: its files can't be told from others")
    home = tmp_path_factory.mktemp("release") / "towline"
    listed = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, home / name)
    _git(home, "init", "--quiet", "--initial-branch=main")
    _git(home, "add", "--all")
    _git(home, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "All")
    return home


def _git(folder: Path, *arguments: str) -> str:
    done = run_apart(["git", "-C", str(folder), *arguments], folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _released(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.release", "--dry-run", "--checked", *options]
    return run_apart(command, folder=repository, seconds=SECONDS, PYTHONPATH=str(repository))


@pytest.fixture(scope="module")
def dry_run(repository: Path) -> subprocess.CompletedProcess[str]:
    """The output of a dry run, which leaves `dist/` in the repository."""
    told = _released(repository)
    assert told.returncode == 0, told.stdout + told.stderr
    return told


def test_a_dry_run_makes_all_that_is_published_and_publishes_nothing(
    repository: Path, dry_run: subprocess.CompletedProcess[str]
) -> None:
    version = release.project_version()
    dist = repository / "dist"
    wheel, sdist, bill = (
        f"towline-{version}-py3-none-any.whl",
        f"towline-{version}.tar.gz",
        f"towline-{version}.cdx.json",
    )
    assert {path.name for path in dist.iterdir()} == {wheel, sdist, bill, "SHA256SUMS"}
    sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in (wheel, sdist, bill)}
    assert f"git tag --annotate v{version}" in dry_run.stdout
    assert "twine upload" in dry_run.stdout
    assert _git(repository, "tag", "--list") == ""


def test_the_bill_names_every_locked_package_and_is_the_same_each_time(
    repository: Path, dry_run: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    version, committed = release.project_version(), _git(repository, "log", "-1", "--format=%ct").strip()
    release.write_bill(release.Release(version, committed, tmp_path))
    (again,) = tmp_path.iterdir()
    assert again.read_text() == (repository / "dist" / again.name).read_text()
    bill = json.loads(again.read_text())
    assert bill["metadata"]["timestamp"] == datetime.fromtimestamp(int(committed), UTC).isoformat()
    locked = set(re.findall(r"^([a-z0-9-]+)==", LISTED.read_text(), re.MULTILINE))
    assert {one["name"] for one in bill["components"]} == locked
    edges = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert len(edges[bill["metadata"]["component"]["bom-ref"]]) == len(release.direct_packages())


def test_what_is_not_committed_is_told(repository: Path) -> None:
    (repository / "stray.txt").write_text("")
    try:
        told = _released(repository)
    finally:
        (repository / "stray.txt").unlink()
    assert told.returncode == 1
    assert "?? stray.txt" in told.stderr


def test_every_place_with_another_version_is_told() -> None:
    told = "\n".join(release.other_versions("9.9.9"))
    assert all(place in told for place in ("CHANGELOG.md", "deploy/Dockerfile", "the environment"))
    assert list(release.other_versions(release.project_version())) == []
