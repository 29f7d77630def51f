"""Environments of their own: folders with Celery 5.5, 5.6 and 5.7, and the tests that Celery and kombu come with.

`python3 -m tests.celery.environments` makes what is missing in `.celery/`. A program finds such a folder before the
packages of the project's environment, by its PYTHONPATH.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from tests.support.commands import ROOT, program_environment
from tests.support.requirement_lists import entries

FOLDER: Final = ROOT / ".celery"
LISTS: Final = ROOT / "requirements"
VERSIONS: Final = ("5.5", "5.6", "5.7")
NEWEST: Final = VERSIONS[-1]
UPSTREAM: Final = "celery-upstream"
"""The list of what upstream's tests are fetched by, and run with."""
STAMP: Final = ".installed"


class NoEnvironmentError(Exception):
    """A folder of packages is not there, and can't be made; the message says why."""


def make_all() -> None:
    """Make what is missing. Raises `NoEnvironmentError`."""
    for version in VERSIONS:
        packages_of(version)
    for project in ("kombu", "celery"):
        sources_of(project)


def packages_of(version: str) -> Path:
    """Return the folder with a version of Celery, made if it is missing. Raises `NoEnvironmentError`."""
    return installed(f"celery-{version}")


@lru_cache
def sources_of(project: str, version: str = NEWEST) -> Path:
    """Return the folder with the tests of kombu or Celery, made if it is missing. Raises `NoEnvironmentError`."""
    pinned = _entry(project, version)
    home = FOLDER / f"{project}-{version}-sources"
    tools = str(installed(UPSTREAM))
    with _alone():
        if not _is_made(home, pinned):
            _fetch(project, pinned, home, tools=tools)
            (home / STAMP).write_text(_fingerprint(pinned))
    return home


def _fetch(project: str, pinned: str, home: Path, *, tools: str) -> None:
    """Download a source distribution, and keep its tests."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "wanted.txt").write_text(pinned)
    fetch = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    _must([sys.executable, "-m", "pip", *fetch, "-d", str(home), "-r", str(home / "wanted.txt")], path=tools)
    (archive,) = home.glob("*.tar.gz")
    shutil.unpack_archive(archive, home, filter="data")
    (unpacked,) = home.glob(f"{project}-*/t")
    unpacked.rename(home / "t")  # without the package itself, which comes from `packages_of`
    settings = unpacked.parent / "pyproject.toml"
    if settings.is_file():
        settings.rename(home / "pyproject.toml")
    shutil.rmtree(unpacked.parent)
    archive.unlink()


def environment_of(version: str, *more: Path) -> dict[str, str]:
    """Return the variables of a program that runs with a version of Celery. Raises `NoEnvironmentError`.

    Args:
        version: "": Celery of the project's own environment.
        more: further folders of packages.
    """
    folders = [*([packages_of(version)] if version else []), *more, ROOT]
    programs = ":".join(str(folder / "bin") for folder in folders[:1])
    environment = program_environment()
    return {**environment, "PYTHONPATH": ":".join(map(str, folders)), "PATH": f"{programs}:{environment['PATH']}"}


@lru_cache
def installed(name: str) -> Path:
    """Return the folder with the packages of a list, made if it is missing. Raises `NoEnvironmentError`."""
    listed = LISTS / f"{name}.txt"
    home = FOLDER / name
    text = listed.read_text()
    with _alone():
        if not _is_made(home, text):
            _install(listed, home)
            (home / STAMP).write_text(_fingerprint(text))
    return home


def _install(listed: Path, home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(home)]
    uv = shutil.which("uv")
    program = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    _must([*program, *options, "--requirement", str(listed)])


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes from making the same folder: tests run beside each other."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_made(home: Path, text: str) -> bool:
    stamp = home / STAMP
    return stamp.is_file() and stamp.read_text() == _fingerprint(text)


def _fingerprint(text: str) -> str:
    return hashlib.sha256(f"{sys.version_info[:2]} {text}".encode()).hexdigest()


def _entry(project: str, version: str) -> str:
    """Return what the list of a version of Celery says of one package."""
    text = (LISTS / f"celery-{version}.txt").read_text()
    return next(one for one in entries(text) if one.startswith(f"{project}=="))


def _must(command: Sequence[str], *, path: str = "") -> None:
    environment = {**program_environment(), **({"PYTHONPATH": path} if path else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise NoEnvironmentError(f"{' '.join(command[:4])} ...: {done.stderr.strip()[-400:]}")


if __name__ == "__main__":
    try:
        make_all()
    except NoEnvironmentError as error:
        sys.exit(f"tests.celery.environments: {error}")
