"""Make a release: `python3 run.py release --dry-run` checks and builds all of it, and leaves the artifacts in `dist/`.

Without `--dry-run` the tag is made and the artifacts are uploaded at the end. Every step that finds something says what
and where, and ends it; nothing is tagged or uploaded before all steps are done.
"""

import argparse
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

import run
from tests.support import man_pages, requirement_lists
from tests.support.built_packages import LISTED, BuiltPackages, NotBuiltError, built_packages, run_apart
from tests.support.commands import ROOT
from tests.support.reference import pages as reference

DIST: Final = ROOT / "dist"
SUMS: Final = "SHA256SUMS"
CHECK_SECONDS: Final = 1200
MANUAL: Final = "tests.support.manual"
MOST_WHEEL_BYTES: Final = 2_800_000
SITE: Final = "queue_core/console/manual/site.tar.xz"
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://pypi.org/project/towline/")


class ReleaseError(Exception):
    """A step found something; the message says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is released: a version of a commit, and the time that its files bear."""

    version: str
    epoch: str
    folder: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps; return the exit code."""
    parser = argparse.ArgumentParser(prog="run.py release", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="do all but tag and upload")
    parser.add_argument(
        "--checked", action="store_true", help="leave out ruff, mypy and import-linter: they have passed"
    )
    given = parser.parse_args(arguments)
    try:
        release = Release(project_version(), committed_at(), DIST)
        for what, step in steps(is_checked=given.checked):
            say(what)
            step(release)
    except (ReleaseError, NotBuiltError) as error:
        say(str(error), to=sys.stderr)
        return 1
    last = publishing(release)
    if given.dry_run:
        say("\n  ".join([f"{release.version} is ready in {DIST.name}/; to publish it:", *map(shlex.join, last)]))
        return 0
    for command in last:
        say(shlex.join(command))
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return 1
    return 0


def say(text: str, *, to: TextIO = sys.stdout) -> None:
    """Write a line, which is seen before the step that it announces begins."""
    to.write(f"release: {text}\n")
    to.flush()


def steps(*, is_checked: bool) -> Iterator[tuple[str, Callable[[Release], None]]]:
    """Return the steps in order, each with the words that announce it."""
    yield "nothing is uncommitted", check_tree
    yield "one version everywhere", check_versions
    yield "what is generated is as it would be made now", check_generated
    if not is_checked:
        yield "ruff, mypy, import-linter", check_text
    yield "the manual's site", build_manual
    yield "two builds, byte for byte the same", build
    yield "the index takes the artifacts", check_artifacts
    yield "bill of materials", write_bill
    yield "checksums", write_sums


def project_version() -> str:
    """Return the version that `pyproject.toml` has."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def committed_at() -> str:
    """Return the instant of the commit in seconds. Raises `ReleaseError`."""
    done = run_apart(["git", "log", "-1", "--format=%ct"], folder=ROOT)
    if done.returncode:
        raise ReleaseError(f"git: {done.stderr.strip()}; a release is made in a clone")
    return done.stdout.strip()


def check_tree(_: Release) -> None:
    """Raise `ReleaseError` with the files that are not committed."""
    changed = run_apart(["git", "status", "--porcelain"], folder=ROOT).stdout.rstrip()
    if changed:
        raise ReleaseError(f"not committed:\n{changed}\ncommit or remove them")


def check_versions(release: Release) -> None:
    """Raise `ReleaseError` with each place that names another version."""
    found = list(other_versions(release.version))
    if found:
        raise ReleaseError("\n".join([f"pyproject.toml has {release.version}, but", *found]))


def other_versions(version: str) -> Iterator[str]:
    """Yield each place that names another version than this."""
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    image = re.search(r"^ARG VERSION=(\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    for place, named in (
        ("CHANGELOG.md's first section", changes[1] if changes else "none"),
        ("deploy/Dockerfile's VERSION", image[1] if image else "none"),
        ("the environment, which charts and man pages are made by,", installed_version("towline")),
    ):
        if named != version:
            yield f"{place} has {named}"


def check_generated(_: Release) -> None:
    """Raise `ReleaseError` with the command that makes what is out of date."""
    if man_pages.pages() != {path.name: path.read_text() for path in man_pages.FOLDER.iterdir()}:
        raise ReleaseError("docs/man/ is out of date: run python3 -m tests.support.man_pages")
    kept = {name: (reference.FOLDER / name).read_text() for name in reference.pages()}
    if kept != reference.pages():
        raise ReleaseError("docs/reference/ is out of date: run python3 -m tests.support.reference")
    if not LISTED.read_text().startswith(requirement_lists.head()):
        raise ReleaseError("requirements/ is out of date: run python3 -m tests.support.requirement_lists")


def check_text(_: Release) -> None:
    """Run the checks of the text that `run.py test` runs. Raises `ReleaseError`."""
    for name, arguments in run.CHECKS:
        done = run_apart([sys.executable, *arguments], folder=ROOT, seconds=CHECK_SECONDS)
        if done.returncode:
            raise ReleaseError(f"{name}:\n{done.stdout}{done.stderr}")


def build_manual(release: Release) -> None:
    """Build the site that the wheel brings. Raises `ReleaseError`."""
    done = run_apart(
        [sys.executable, "-m", MANUAL], folder=ROOT, seconds=CHECK_SECONDS, SOURCE_DATE_EPOCH=release.epoch
    )
    if done.returncode:
        raise ReleaseError(f"{MANUAL}: {done.stdout}{done.stderr}")


def build(release: Release) -> None:
    """Build the artifacts twice, into `dist/` and elsewhere. Raises `ReleaseError` if they differ."""
    shutil.rmtree(release.folder, ignore_errors=True)
    first = built_packages(release.folder, epoch=release.epoch)
    with TemporaryDirectory() as folder:
        second = built_packages(Path(folder), epoch=release.epoch)
        for one, other in ((first.wheel, second.wheel), (first.sdist, second.sdist)):
            if one.read_bytes() != other.read_bytes():
                raise ReleaseError(f"{one.name} is another file at each build: a file of it depends on time or order")


def check_artifacts(release: Release) -> None:
    """Raise `ReleaseError` with what the index would not take, or a user would not expect."""
    made = artifacts(release)
    if SITE not in zipfile.ZipFile(made.wheel).namelist():
        raise ReleaseError(f"{made.wheel.name} is without {SITE}")
    if (size := made.wheel.stat().st_size) > MOST_WHEEL_BYTES:
        raise ReleaseError(f"{made.wheel.name} has {size:,} bytes, of {MOST_WHEEL_BYTES:,} at most")
    for command in (
        ["twine", "check", "--strict", made.wheel, made.sdist],
        ["check_wheel_contents", made.wheel],
    ):
        done = run_apart([sys.executable, "-m", *command], folder=ROOT)
        if done.returncode:
            raise ReleaseError(f"{command[0]}: {done.stdout}{done.stderr}")


def artifacts(release: Release) -> BuiltPackages:
    """Return the two artifacts in `dist/`."""
    (wheel,), (sdist,) = release.folder.glob("*.whl"), release.folder.glob("*.tar.gz")
    return BuiltPackages(wheel, sdist)


def write_bill(release: Release) -> None:
    """Write the bill of materials: the locked packages of a user's environment, as CycloneDX. Raises `ReleaseError`."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes over a second, in each process that collects

    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", "pyproject.toml"]
    options = ["--output-reproducible", "--no-validate", "--of", "JSON", str(LISTED)]
    done = run_apart([*command, *options], folder=ROOT, SOURCE_DATE_EPOCH=release.epoch, PYTHONWARNINGS="ignore")
    if done.returncode:
        raise ReleaseError(f"cyclonedx-py: {done.stderr}")
    bill = whole(json.loads(done.stdout), direct_packages())
    text = json.dumps(bill, indent=2, sort_keys=True) + "\n"
    flaw = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if flaw is not None:
        raise ReleaseError(f"the bill of materials is no CycloneDX: {flaw}")
    (release.folder / f"towline-{release.version}.cdx.json").write_text(text)


def direct_packages() -> set[str]:
    """Return the names of the packages that the project itself asks for."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0].lower() for one in asked}


def whole(bill: dict[str, Any], direct: set[str]) -> dict[str, Any]:
    """Return the bill with the project's own edges, and a serial number that is the same for the same contents."""
    root = bill["metadata"]["component"]["bom-ref"]
    references = sorted(one["bom-ref"] for one in bill["components"] if one["name"].lower() in direct)
    edges = [{"ref": root, "dependsOn": references}, *(one for one in bill["dependencies"] if one["ref"] != root)]
    made = {**bill, "dependencies": edges}
    serial = uuid.uuid5(_NAMESPACE, hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest())
    return {**made, "serialNumber": f"urn:uuid:{serial}"}


def write_sums(release: Release) -> None:
    """Write the checksums of all files, as `sha256sum --check` reads them."""
    made = sorted(path for path in release.folder.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (release.folder / SUMS).write_text("".join(lines))


def publishing(release: Release) -> list[list[str]]:
    """Return the commands that publish it: the tag, then the artifacts."""
    tag, made = f"v{release.version}", artifacts(release)
    return [
        ["git", "tag", "--annotate", tag, "--message", f"Towline {release.version}"],
        ["git", "push", "origin", tag],
        [sys.executable, "-m", "twine", "upload", str(made.wheel), str(made.sdist)],
    ]


if __name__ == "__main__":
    sys.exit(main())
