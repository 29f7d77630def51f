"""The project and the process that all screens share, and the option that rewrites what is expected."""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.screens.project import SeededProject
from tests.screens.terminal import ForkedCommands


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-screens", action="store_true", help="Write tests/screens/expected anew.")


@pytest.fixture(scope="session")
def is_rewriting(pytestconfig: pytest.Config) -> bool:
    """Whether screens are written instead of compared."""
    return bool(pytestconfig.getoption("--rewrite-screens", default=False))


@pytest.fixture(scope="session")
def commands() -> Iterator[ForkedCommands]:
    """Commands in forks of one process."""
    with ForkedCommands() as running:
        yield running


@pytest.fixture(scope="session")
def project() -> Iterator[SeededProject]:
    """A project of which every command has something to show; its path has the same length in every run."""
    with tempfile.TemporaryDirectory(prefix="screens-", dir="/tmp") as name, closing(SeededProject(Path(name))) as made:
        yield made
