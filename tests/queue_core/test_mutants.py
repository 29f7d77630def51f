"""The mutation run itself: mutations fit the program, are tried on a copy, and what the tests notice is told."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.mutation import Mutation, Result, StaleMutationError, summary
from tests.mutants.mutations import MUTATIONS
from tests.mutants.running import ROOT, BrokenTestsError, a_copy, applied, check_passing, tried

PROGRAM = "def double(number):\n    return number + number\n"
TESTS = """\
import program

def test_zero(): assert program.double(0) == 0
def test_two(): assert program.double(2) == 4
"""
BREAKING = Mutation("adds-one", "I0", "program.py", "number + number", "number + 1", ("test_*.py",))
HARMLESS = Mutation("turns-it-round", "I0", "program.py", "number + number", "2 * number", ("test_program.py",))
HANGING = Mutation(
    "hangs", "I0", "program.py", "    return", "    while True: pass\n    return", ("test_program.py::test_two",)
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project of one file, and a copy of it to try mutations on."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "program.py").write_text(PROGRAM)
    (root / "test_program.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    with a_copy(root) as tree:
        yield tree
    assert (root / "program.py").read_text() == PROGRAM


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_fits_the_program_and_has_tests(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert mutation.applied(text) != text
    assert mutation.tests
    assert all(list(ROOT.glob(test.partition("::")[0])) for test in mutation.tests)


def test_no_two_mutations_have_one_name() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


def test_what_the_tests_notice_is_killed_and_named(project: Path) -> None:
    result = tried(BREAKING, project)
    assert (result.outcome, result.failed) == ("killed", "test_program.py::test_zero")
    assert (project / "program.py").read_text() == PROGRAM


def test_what_they_do_not_notice_survives(project: Path) -> None:
    assert tried(HARMLESS, project).outcome == "survived"


def test_only_the_tests_that_are_named_count(project: Path) -> None:
    mutation = Mutation(
        "two-is-five", "I0", "program.py", "number + number", "number * 2.5", ("test_program.py",), "zero"
    )
    assert tried(mutation, project).outcome == "survived"


def test_a_program_that_hangs_is_killed_when_the_time_is_up(project: Path) -> None:
    result = tried(HANGING, project, longest_seconds=5.0)
    assert (result.outcome, result.failed) == ("killed", "(still running after 5 s)")


@pytest.mark.parametrize("old", ["absent", "number"])
def test_a_text_that_does_not_stand_there_once_is_stale(project: Path, old: str) -> None:
    stale = Mutation("stale", "I0", "program.py", old, "x", ("test_program.py",))
    told = pytest.raises(StaleMutationError, match=r"stale: the text to replace stands [03] times in program\.py")
    with told, applied(stale, project):
        pytest.fail("it was applied")
    assert (project / "program.py").read_text() == PROGRAM


@pytest.mark.parametrize(
    "tests", [("absent_*.py",), ("test_program.py::test_absent",)], ids=["no such file", "no such test"]
)
def test_tests_that_can_not_be_run_say_nothing_of_a_mutation(project: Path, tests: tuple[str, ...]) -> None:
    with pytest.raises(BrokenTestsError):
        tried(Mutation("untested", "I0", "program.py", "number + number", "0", tests), project)


def test_tests_that_fail_without_the_mutation_are_told(project: Path) -> None:
    check_passing(BREAKING, project)
    (project / "test_program.py").write_text(TESTS.replace("== 4", "== 5"))
    with pytest.raises(BrokenTestsError, match="fail without it"):
        check_passing(BREAKING, project)


def test_the_sum_is_told() -> None:
    killed, survived = Result(BREAKING, "killed", 1.0), Result(HARMLESS, "survived", 1.0)
    assert summary([killed, survived, killed]) == "killed 2 of 3"


def test_the_command_ends_at_once_when_a_mutation_is_stale(capsys: pytest.CaptureFixture[str]) -> None:
    stale = Mutation("stale", "I0", "run.py", "not there at all", "x", ("tests/absent.py",))
    assert main([], [stale]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "stale: the text to replace stands 0 times in run.py" in told.err


def test_the_command_lists_mutations_and_refuses_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"], [BREAKING, HARMLESS]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["adds-one", "turns-it-round"]
    with pytest.raises(SystemExit):
        main(["absent"], [BREAKING])
