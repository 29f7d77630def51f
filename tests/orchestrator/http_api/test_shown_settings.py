"""Settings over HTTP: all of them, with their origin, and nothing that may be secret."""

from pathlib import Path

import pytest

from orchestrator.config.shown import shown_setting
from orchestrator.http_api.settings import shown_settings
from orchestrator.state.directory import StateDir


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        pytest.param("store", "postgresql://me:pw@host/db", "postgresql://me:***@host/db", id="password of a URL"),
        pytest.param("pools.a.env.ANYTHING", "x", "***", id="variable of a worker"),
        pytest.param("pools.a.runtime.registry_password", "x", "***", id="named so"),
        pytest.param(
            "pools.a.runtime", {"password": "x", "image": "i"}, {"password": "***", "image": "i"}, id="nested"
        ),
        pytest.param("pools.a.workers.max", 3, 3, id="number"),
        pytest.param("pools.a.tags", ["a", "b"], ["a", "b"], id="list"),
        pytest.param(
            "server.tokens", [{"role": "admin", "token_file": "t"}], [{"role": "admin", "token_file": "t"}], id="place"
        ),
        pytest.param("pools.a.name_key", None, None, id="nothing"),
    ],
)
def test_what_may_be_secret_is_masked(path: str, value: object, shown: object) -> None:
    assert shown_setting(path, value) == shown


def test_what_waits_for_the_next_start_is_named(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    files.write_snapshot({"not_in_force": ["store"]})
    told = shown_settings(files, lambda: [("store", "sqlite:///a.db", "default")])
    assert told.not_in_force == ["store"]
    assert [one.setting for one in told.settings] == ["store"]
