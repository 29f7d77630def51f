"""Run the `towline` command in this process or as a program."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli import main

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        """Parse stdout as one JSON value."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[object]:
        """Parse each line of stdout as a JSON value."""
        return [json.loads(line) for line in self.out.splitlines()]


class Commands:
    """Runs commands in one folder, in this process."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture

    def __call__(self, *arguments: str) -> CommandResult:
        self._capture.readouterr()
        code = main(list(arguments))
        out, err = self._capture.readouterr()
        return CommandResult(code, out, err)


def run_program(
    *arguments: str, folder: Path, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a command as a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=folder,
        env=program_environment() | dict(environment or {}),
        input=stdin,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def program_environment() -> dict[str, str]:
    """Return an environment without the user's settings, in which this source tree is importable."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TOWLINE_") and name != "DJANGO_SETTINGS_MODULE"  # the tests of Django's backend set it
    }
    return kept | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
