"""The wheel, installed in an environment that has nothing else: a user's program passes mypy, and runs."""

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.built_packages import INSTALL_SECONDS, RUN_SECONDS, UNREACHED, BuiltPackages, run_apart

PROGRAM = Path(__file__).parents[1] / "user_program"


@dataclass(frozen=True)
class Installed:
    """The wheel, and an environment with it and what it asks for."""

    wheel: Path
    python: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, packages: BuiltPackages) -> Installed:
    """Install the wheel into an empty environment, from the package index."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = packages.wheel
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
    told = run_apart([*install, "--only-binary", ":all:", wheel], folder=folder, seconds=INSTALL_SECONDS)
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
    return run_apart(command, folder=folder, seconds=INSTALL_SECONDS)


def test_the_wheel_has_the_packages_and_says_that_they_are_typed(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {"queue_core/py.typed", "orchestrator/py.typed", "queue_core/testing/run.py"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"queue_core", "orchestrator", "towline"}


def test_the_manual_pages_are_installed_where_man_looks(installed: Installed) -> None:
    pages = installed.python.parents[1] / "share" / "man" / "man1"
    assert {"towline.1", "towline-add.1", "towline-up.1"} <= {page.name for page in pages.iterdir()}
    if shutil.which("man") is None:
        pytest.skip("man is not here (Debian: man-db)")
    told = run_apart(
        ["man", "towline-add"], folder=pages, PATH=f"{installed.python.parent}:/usr/bin:/bin", MANPAGER="cat"
    )
    assert told.returncode == 0, told.stderr
    assert "towline-add - add tasks" in told.stdout


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
    told = run_apart([installed.python, *command], folder=program)
    assert told.returncode == 0, told.stdout + told.stderr
    assert said in told.stdout
