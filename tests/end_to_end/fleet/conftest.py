"""The command line in the folder of a `crew`, which each module defines as it needs it."""

import pytest

from tests.soak.towline_up import TowlineUp
from tests.support.commands import Commands


@pytest.fixture
def towline(crew: TowlineUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(crew.folder)
    return Commands(crew.folder, capsys)
