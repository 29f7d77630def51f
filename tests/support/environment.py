"""Lets commands such as `python3 -m tests.faults` run when this Python lacks the project's packages.

It imports only the standard library: nothing else may be installed yet, and an image with the packages has no `run.py`.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

NEEDED: Final = ("apsw", "httptools", "psutil", "pydantic", "pytest", "structlog", "uvicorn")
"""Packages to look for: a Python set up for something else may have some of them."""
MAKER: Final = Path(__file__).resolve().parents[2] / "run.py"
MEASURED: Final = "tests.bench"
TOURS: Final = "tests.tours"
"""Needs only what Towline itself needs: a fifth of the packages."""
BAD_SETUP: Final = 78


def in_environment(
    command: Sequence[str],
    *,
    prefix: Path,
    maker: Path = MAKER,
    make: Callable[[str], None] | None = None,
    begin: Callable[[str, list[str]], None] = os.execv,
) -> None:
    """Return if the packages are present or nothing could provide them; else continue in `run.py`'s environment.

    Args:
        command: this process's command as typed: `python3 -m tests.faults --for 60s`.
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

    if TOURS in command:
        make("runtime")
        return
    if any(part.startswith(MEASURED) for part in command):
        try:
            make("peers")
        except run.SetupError as error:
            run.say(f"{error}; measuring without those it is compared to")
        else:
            return
    make("dev")
