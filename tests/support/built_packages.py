"""The wheel and the sdist as they are published, and environments of other Pythons that have the locked packages."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.commands import ROOT

LISTED: Final = ROOT / "requirements" / "runtime.txt"
LOWEST: Final = ROOT / "requirements" / "lowest.txt"
FOLDER: Final = ROOT / ".pythons"
"""The locked packages of each other Python, downloaded once."""
STAMP: Final = ".installed"
EPOCH: Final = "1735689600"
"""The time that files within the artifacts bear, so that two builds are the same: 2025-01-01."""
RUN_SECONDS: Final = 120
INSTALL_SECONDS: Final = 300
UNREACHED: Final = (
    *("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "error sending request", "dns error"),
    "No matching distribution found",  # of a locked version: there is an index, and this is not on it
)
"""Messages of pip and uv without a network."""


class NotBuiltError(Exception):
    """An artifact or an environment can't be made; the message says why."""


@dataclass(frozen=True, slots=True)
class BuiltPackages:
    """The two artifacts of a release."""

    wheel: Path
    sdist: Path


def run_apart(
    command: Sequence[str | Path], *, folder: Path, seconds: float = RUN_SECONDS, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that sees neither this repository nor settings of the person that runs the tests."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TOWLINE_", "PYTHON"))}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds, env={**ours, **changes}
    )


def built_packages(folder: Path, *, source: Path = ROOT, epoch: str = EPOCH) -> BuiltPackages:
    """Build sdist and wheel with this environment's hatchling, which asks no network. Raises `NotBuiltError`."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", folder]
    done = run_apart(command, folder=source, seconds=INSTALL_SECONDS, SOURCE_DATE_EPOCH=epoch)
    if done.returncode:
        raise NotBuiltError(done.stderr)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return BuiltPackages(wheel, sdist)


def interpreter_of(version: str) -> Path | None:
    """Return an interpreter of a version: this one, one in PATH, one of pyenv's, or one that uv finds; else None."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    named = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found: list[str | Path | None] = [shutil.which(named), *sorted(pyenv.glob(f"versions/{version}.*/bin/{named}"))]
    if uv := shutil.which("uv"):
        asked = run_apart([uv, "python", "find", "--no-python-downloads", version], folder=ROOT)
        found.append(asked.stdout.strip())
    return next((Path(one) for one in found if one and _is_python(one, version)), None)


def _is_python(program: str | Path, version: str) -> bool:
    """Return whether this is what it is called, with the modules that we use: a shim may lead nowhere."""
    program_text = "import sys, ssl, ctypes, venv; print('%d.%d' % sys.version_info[:2])"
    return run_apart([program, "-c", program_text], folder=ROOT).stdout.strip() == version


def environment_with(wheel: Path, python: Path, *, version: str, folder: Path, listed: Path = LISTED) -> Path:
    """Make an environment with the wheel and the listed packages, and return its python. Raises `NotBuiltError`."""
    packages = locked_packages(python, version, listed=listed)
    _must([python, "-m", "venv", "--without-pip", folder])
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "locked.pth").write_text(f"{packages}\n")
    made = folder / "bin" / "python"
    _must([*_installer(made), "--no-deps", "--no-index", wheel])
    return made


def locked_packages(python: Path, version: str, *, listed: Path = LISTED) -> Path:
    """Return the folder of a Python's packages of a list, filled if it is not. Raises `NotBuiltError`.

    The locked ones of the Python that runs are in its own environment, which the lock has filled.
    """
    if str(python) == sys.executable and listed == LISTED:
        return Path(sysconfig.get_path("purelib"))
    name = version if listed == LISTED else f"{version}-{listed.stem}"
    home = FOLDER / name
    text = hashlib.sha256(listed.read_bytes()).hexdigest()
    with _alone(name):
        if not (home / STAMP).is_file() or (home / STAMP).read_text() != text:
            shutil.rmtree(home, ignore_errors=True)
            options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", home, "-r", listed]
            _must([*_installer(python), *options])
            (home / STAMP).write_text(text)
    return home


def _installer(python: Path) -> list[str | Path]:
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", python]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    return [*pip, "--no-compile"]  # what is imported is compiled then


@contextmanager
def _alone(version: str) -> Iterator[None]:
    """Keep other processes from filling the same folder: tests run beside each other."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _must(command: Sequence[str | Path]) -> None:
    done = run_apart(command, folder=ROOT, seconds=INSTALL_SECONDS)
    if done.returncode:
        raise NotBuiltError(done.stderr.strip()[-2000:])
