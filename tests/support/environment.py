"""The commands among the tests, such as `python3 -m tests.faults`, run by a Python that lacks the project's packages.

Imports the standard library alone: nothing else may be there yet, nor `run.py`, in an image with the packages.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

NEEDED: Final = ("apsw", "httptools", "psutil", "pydantic", "pytest", "structlog", "uvicorn")
"""A Python that was made for something else may have some of them."""
MAKER: Final = Path(__file__).resolve().parents[2] / "run.py"
MEASURED: Final = "tests.bench"
BAD_SETUP: Final = 78


def in_environment(
    command: Sequence[str],
    *,
    prefix: Path,
    maker: Path = MAKER,
    make: Callable[[str], None] | None = None,
    begin: Callable[[str, list[str]], None] = os.execv,
) -> None:
    """Return where the packages are, or nothing could bring them; else go on in the environment that `run.py` makes.

    Args:
        command: this process's, as it was typed: `python3 -m tests.faults --for 60s`.
        prefix: where this Python's packages are.
        maker: `run.py`, in a clone.
        make: makes the environment of a kind; see `run.KINDS`. None: as `run.py` does.
        begin: replaces this process by another program.
    """
    if all(map(importlib.util.find_spec, NEEDED)) or not maker.is_file():
        return
    import run

    if prefix == run.VENV:
        return
    try:
        _make_for(command, make or run.make_environment)
    except run.SetupError as error:
        run.say(str(error))
        sys.exit(BAD_SETUP)
    begin(str(run.PYTHON), [str(run.PYTHON), *command[1:]])


def _make_for(command: Sequence[str], make: Callable[[str], None]) -> None:
    import run

    if any(part.startswith(MEASURED) for part in command):
        try:
            make("peers")
        except run.SetupError as error:
            run.say(f"{error}; measuring without those it is compared to")
        else:
            return
    make("dev")
