"""What several files of the orchestrator's tests stand on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.state import StateDir
from tests.support.reconciling import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A reconciler between fakes; what it logs is caught."""
    with capture_logs() as logs:
        yield Stage(StateDir(tmp_path), logs)
