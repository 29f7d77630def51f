"""Run a command as another user, as root: `python -m tests.support.as_another_user doctor --json`.

It is run once as we are, unheard: that imports what the other user may not read, such as a Python in root's home.
"""

import contextlib
import io
import os
import sys

from orchestrator.cli import main

ANOTHER = 65534
"""The user and group `nobody`."""


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)
    os.setgroups([])
    os.setresgid(ANOTHER, ANOTHER, ANOTHER)
    os.setresuid(ANOTHER, ANOTHER, ANOTHER)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
