"""Commands among the tests, typed in a clone where nothing is installed yet."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import run
from tests.support.environment import BAD_SETUP, MAKER, NEEDED, in_environment

ELSEWHERE = Path("/usr")
FAULTS = ["python3", "-m", "tests.faults", "--for", "60s"]
PEERS = ["python3", "-m", "tests.bench.peers", "--quick"]
TOUR = ["python3", "-m", "tests.tours", "add"]


class Setup:
    """Notes what is made and begun; some kinds of environment can't be made."""

    def __init__(self, *, unmade: tuple[str, ...] = ()) -> None:
        self.made: list[str] = []
        self.begun: list[tuple[str, list[str]]] = []
        self._unmade = unmade

    def make(self, kind: str) -> None:
        self.made.append(kind)
        if kind in self._unmade:
            raise run.SetupError(f"no {kind}")

    def begin(self, program: str, arguments: list[str]) -> None:
        self.begun.append((program, arguments))

    def enter(self, command: list[str], *, prefix: Path = ELSEWHERE, maker: Path = MAKER) -> None:
        in_environment(command, prefix=prefix, maker=maker, make=self.make, begin=self.begin)


def _let_be_missing(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    find = importlib.util.find_spec

    def found(name: str) -> importlib.machinery.ModuleSpec | None:
        return None if name in missing else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", found)


@pytest.fixture(params=[NEEDED, ("psutil",)], ids=["no packages", "some packages"])
def bare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that lacks what the project needs."""
    _let_be_missing(monkeypatch, *request.param)


@pytest.mark.usefixtures("bare")
def test_an_image_without_the_means_to_make_an_environment_is_left_alone(tmp_path: Path) -> None:
    setup = Setup()
    setup.enter(FAULTS, maker=tmp_path / "run.py")
    assert (setup.made, setup.begun) == ([], [])


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("command", "kind"), [(FAULTS, "dev"), (PEERS, "peers"), (TOUR, "runtime")])
def test_a_bare_python_goes_on_in_the_projects_environment(command: list[str], kind: str) -> None:
    setup = Setup()
    setup.enter(command)
    assert setup.made == [kind]
    assert setup.begun == [(str(run.PYTHON), [str(run.PYTHON), *command[1:]])]


@pytest.mark.usefixtures("bare")
def test_what_is_compared_to_may_be_missing() -> None:
    setup = Setup(unmade=("peers",))
    setup.enter(PEERS)
    assert setup.made == ["peers", "dev"]
    assert len(setup.begun) == 1


@pytest.mark.usefixtures("bare")
def test_without_an_environment_nothing_is_begun(capsys: pytest.CaptureFixture[str]) -> None:
    setup = Setup(unmade=("peers", "dev"))
    with pytest.raises(SystemExit) as caught:
        setup.enter(PEERS)
    assert caught.value.code == BAD_SETUP
    assert setup.begun == []
    assert "no dev" in capsys.readouterr().err


@pytest.mark.usefixtures("bare")
def test_the_projects_own_python_never_goes_round_in_circles() -> None:
    setup = Setup()
    setup.enter(FAULTS, prefix=run.VENV)
    assert (setup.made, setup.begun) == ([], [])


def test_a_python_with_the_packages_is_left_alone() -> None:
    setup = Setup()
    setup.enter(FAULTS)
    assert (setup.made, setup.begun) == ([], [])


def test_a_command_typed_to_a_bare_python_runs(tmp_path: Path) -> None:
    if not run.STAMP.is_file():
        pytest.skip(f"{run.VENV.name} was not made by run.py: this test would install it")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    bare = tmp_path / "bin" / "python"
    command = [str(bare), "-m", "tests.faults", "--help"]
    told = subprocess.run(command, cwd=run.ROOT, capture_output=True, text=True, check=True)
    assert "usage: python3 -m tests.faults" in told.stdout
