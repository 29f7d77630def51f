"""What a reload is told to have changed."""

import pytest

from orchestrator.config.diff import PoolChange, changes_between
from orchestrator.config.pools import PoolSpec
from tests.support.fleet.fleet_builders import a_pool


def test_pools_come_go_and_stay() -> None:
    before = {"kept": a_pool("kept"), "gone": a_pool("gone")}
    after = {"new": a_pool("new"), "kept": a_pool("kept")}
    assert changes_between(before, after) == [PoolChange("gone", "removed"), PoolChange("new", "added")]
    assert changes_between(before, before) == []


@pytest.mark.parametrize(
    ("now", "settings", "replaces"),
    [
        pytest.param(a_pool(slo="10s"), ("slo: 30s -> 10s",), False, id="a duration"),
        pytest.param(a_pool(least=2, most=4), ("workers.min: 0 -> 2", "workers.max: 8 -> 4"), False, id="bounds"),
        pytest.param(a_pool(recycle={"tasks": 5}), ("recycle.tasks: none -> 5",), True, id="what was not set"),
        pytest.param(a_pool(env={"PASSWORD": "secret"}), ("env",), True, id="never what may be a secret"),
        pytest.param(a_pool(tags=["a", "b"]), ("tags",), True, id="no lists"),
        pytest.param(a_pool(app="other:app"), ("app: tasks:app -> other:app",), True, id="another app"),
        pytest.param(a_pool(start="exec"), ("start: auto -> exec",), False, id="how new ones start"),
        pytest.param(a_pool(surge=0), ("surge: none -> 0",), False, id="how it is replaced"),
    ],
)
def test_a_changed_setting_is_named_with_what_it_was(now: PoolSpec, settings: tuple[str, ...], replaces: bool) -> None:
    (change,) = changes_between({"resize": a_pool()}, {"resize": now})
    assert change == PoolChange("resize", "changed", settings, replaces)
    assert change.to_json() == {"pool": "resize", "kind": "changed", "settings": list(settings), "replaces": replaces}
