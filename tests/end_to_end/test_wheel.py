"""The wheel, installed in an environment that has nothing else: a user's program passes mypy, and runs."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "user_program"
INSTALL_SECONDS = 300
RUN_SECONDS = 120
UNREACHED = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "error sending request", "dns error")
"""Messages of pip and uv without a network."""


@dataclass(frozen=True)
class Installed:
    """The wheel, and an environment with it and what it asks for."""

    wheel: Path
    python: Path


def _run(
    command: Sequence[str | Path], *, folder: Path, seconds: float = RUN_SECONDS, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that sees neither this repository nor settings of whoever runs the tests."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TOWLINE_", "PYTHON"))}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds, env={**ours, **changes}
    )


def _wheel(folder: Path) -> Path:
    """Build the wheel as the project's environment can: with its hatchling, else with uv."""
    uv = shutil.which("uv")
    if find_spec("hatchling") is not None:
        build: list[str | Path] = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            "wheel",
            "--directory",
            folder,
        ]
    elif uv is not None:
        build = [uv, "build", "--wheel", "--quiet", "--out-dir", folder]
    else:
        pytest.skip("neither hatchling nor uv is here to build the wheel")
    told = _run(build, folder=ROOT, seconds=INSTALL_SECONDS)
    assert told.returncode == 0, told.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel into an empty environment, from the package index."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = _wheel(folder)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=RUN_SECONDS)
    python = environment / "bin" / "python"
    uv = shutil.which("uv")
    if uv is not None:
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    elif find_spec("pip") is not None:
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    else:
        pytest.skip("neither uv nor pip is here to install the wheel")
    told = _run([*install, "--only-binary", ":all:", wheel], folder=folder, seconds=INSTALL_SECONDS)
    if told.returncode and any(words in told.stderr for words in UNREACHED):
        pytest.skip("the package index is out of reach")
    assert told.returncode == 0, told.stderr
    return Installed(wheel, python)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The user's program in a folder of its own."""
    return shutil.copytree(PROGRAM, tmp_path / "program", ignore=shutil.ignore_patterns("__pycache__"))


def _mypy(installed: Installed, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """Check files as a user does, who has mypy beside the project's types."""
    cache = installed.wheel.parent / "mypy"
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache)]
    command = [*mypy, "--python-executable", str(installed.python), *files]
    return _run(command, folder=folder, seconds=INSTALL_SECONDS)


def test_the_wheel_has_the_packages_and_says_that_they_are_typed(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {"queue_core/py.typed", "orchestrator/py.typed", "queue_core/testing/run.py"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"queue_core", "orchestrator", "towline"}


def test_a_users_program_is_typed(installed: Installed, program: Path) -> None:
    told = _mypy(installed, program, *[path.name for path in program.glob("*.py")])
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_name_that_is_not_exported_is_an_error_for_a_type_checker(installed: Installed, program: Path) -> None:
    (program / "wrong.py").write_text("from orchestrator import Turn\nfrom queue_core import QueueService\n")
    told = _mypy(installed, program, "wrong.py")
    assert 'Module "orchestrator" has no attribute "Turn"' in told.stdout
    assert 'Module "queue_core" has no attribute "QueueService"' in told.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(["producer.py", "sqlite:///produced.db"], "refused: no queue 'nowhere'", id="producer"),
        pytest.param(["check_handlers.py"], "", id="test of handlers"),
        pytest.param(["embedding.py"], "left: 0", id="supervisor"),
        pytest.param(["-m", "orchestrator", "check"], "", id="command"),
    ],
)
def test_a_users_program_runs(installed: Installed, program: Path, command: list[str], said: str) -> None:
    told = _run([installed.python, *command], folder=program)
    assert told.returncode == 0, told.stdout + told.stderr
    assert said in told.stdout
