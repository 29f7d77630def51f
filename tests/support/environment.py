"""The commands among the tests, such as `python3 -m tests.faults`, run by a Python that lacks the project's packages.

Imports the standard library and `run.py` alone: nothing else may be there yet.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import run

NEEDED: Final = "pydantic"
"""Nothing of the project works without it, and no Python brings it."""
MEASURED: Final = "tests.bench"
BAD_SETUP: Final = 78


def in_environment(
    command: Sequence[str],
    *,
    prefix: Path,
    make: Callable[[str], None] = run.make_environment,
    begin: Callable[[str, list[str]], None] = os.execv,
) -> None:
    """Return where the packages are; else go on in the project's own environment, as `run.py` makes it.

    Args:
        command: this process's, as it was typed: `python3 -m tests.faults --for 60s`.
        prefix: where this Python's packages are.
        make: makes the environment of a kind; see `run.KINDS`.
        begin: replaces this process by another program.
    """
    if prefix == run.VENV or importlib.util.find_spec(NEEDED) is not None:
        return
    try:
        _make_for(command, make)
    except run.SetupError as error:
        run.say(str(error))
        sys.exit(BAD_SETUP)
    begin(str(run.PYTHON), [str(run.PYTHON), *command[1:]])


def _make_for(command: Sequence[str], make: Callable[[str], None]) -> None:
    if any(part.startswith(MEASURED) for part in command):
        try:
            make("peers")
        except run.SetupError as error:
            run.say(f"{error}; measuring without those it is compared to")
        else:
            return
    make("dev")
