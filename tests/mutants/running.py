"""Runs tests on a mutated copy of the tree. The working tree itself is only read."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from queue_core.clock import SystemClock
from tests.mutants.mutation import Mutation, Result

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 300.0
"""A mutated program that hangs is ended then: it was noticed."""
END_SECONDS = 20.0
PASSED, FAILED = 0, 1
CLOCK = SystemClock()
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class BrokenTestsError(Exception):
    """The tests of a mutation can't be run, or fail without it."""


@contextmanager
def a_copy(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the files that git knows or would know, as they are now, removed at the end."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout
    with TemporaryDirectory(prefix="towline-mutants-") as folder:
        for name in filter(None, listed.decode().split("\0")):
            source, target = root / name, Path(folder) / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        yield Path(folder)


@contextmanager
def applied(mutation: Mutation, tree: Path) -> Iterator[None]:
    """The copy with the mistake in it, as it was before at the end. Raises `StaleMutationError`."""
    path = tree / mutation.file
    before = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied(before), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def tried(mutation: Mutation, tree: Path, *, longest_seconds: float = LONGEST_SECONDS) -> Result:
    """Apply one mutation to the copy and run its tests. Raises `BrokenTestsError`, `StaleMutationError`."""
    began_at = CLOCK.monotonic()
    with applied(mutation, tree):
        code, told = run_tests(mutation, tree, longest_seconds=longest_seconds)
    seconds = CLOCK.monotonic() - began_at
    if code is None:
        return Result(mutation, "killed", seconds, f"(still running after {longest_seconds:.0f} s)")
    if code not in (PASSED, FAILED):
        raise BrokenTestsError(f"{mutation.name}: pytest ended with {code}, and ran no tests:\n{told[-2000:]}")
    failure = _FAILURE.search(told)
    return Result(mutation, "survived" if code == PASSED else "killed", seconds, failure[1] if failure else "")


def check_passing(mutation: Mutation, tree: Path) -> None:
    """Raise `BrokenTestsError` where its tests fail without the mutation: then they would say nothing about it."""
    code, told = run_tests(mutation, tree, longest_seconds=LONGEST_SECONDS)
    if code != PASSED:
        raise BrokenTestsError(f"{mutation.name}: its tests fail without it:\n{told[-4000:]}")


def run_tests(mutation: Mutation, tree: Path, *, longest_seconds: float) -> tuple[int | None, str]:
    """Pytest's exit code, None when the time was up, and what it said; in the copy, which is all that is imported."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-n", "0", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-k", mutation.only] if mutation.only else []
    command += ["--", *_paths(mutation.tests, tree)]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=longest_seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return None, ""
    return process.returncode, told


def _end(process: "subprocess.Popen[str]") -> None:
    """As Ctrl-C does, so that the engines that the tests started are stopped too; by force if that does not help."""
    for number in (signal.SIGINT, signal.SIGKILL):
        os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_SECONDS)
            return


def _paths(tests: Sequence[str], tree: Path) -> list[str]:
    """What pytest is given. Raises `BrokenTestsError` for a file that is not there."""
    found: list[str] = []
    for test in tests:
        file, _, rest = test.partition("::")
        files = sorted(str(path.relative_to(tree)) for path in tree.glob(file))
        if not files:
            raise BrokenTestsError(f"no such tests: {test}")
        found += [f"{name}::{rest}" if rest else name for name in files]
    return found
