"""What people ask of pools by hand: when it is over, and that it survives whoever asked and whoever heeds."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.overrides import (
    NO_OVERRIDES,
    Expiry,
    FinishOverride,
    Moment,
    Overrides,
    ScaleOverride,
    describe_overrides,
    overrides_from_json,
    overrides_to_json,
)
from orchestrator.state.directory import StateDir

NOW = Moment(wall_seconds=1_700_000_000.0, monotonic=5_000.0, boot="first")
SCALED = Overrides(ScaleOverride(5, Expiry.after(1800, NOW)))


@pytest.mark.parametrize(
    ("now", "is_over"),
    [
        pytest.param(replace(NOW, monotonic=6_799.9), False, id="before"),
        pytest.param(replace(NOW, monotonic=6_800.0), True, id="after"),
        pytest.param(replace(NOW, wall_seconds=NOW.wall_seconds + 9e6), False, id="the-wall-clock-was-set-forward"),
        pytest.param(replace(NOW, wall_seconds=0.0, monotonic=6_800.0), True, id="the-wall-clock-was-set-back"),
        pytest.param(Moment(NOW.wall_seconds + 1799, 3.0, "second"), False, id="before-but-rebooted"),
        pytest.param(Moment(NOW.wall_seconds + 1800, 3.0, "second"), True, id="after-and-rebooted"),
        pytest.param(Moment(NOW.wall_seconds + 1800, 3.0, ""), True, id="nothing-tells-of-boots"),
    ],
)
def test_an_order_is_over_by_the_clock_that_nobody_can_set(now: Moment, is_over: bool) -> None:
    assert (SCALED.in_force(now).scale is None) == is_over


def test_a_pause_lasts() -> None:
    paused = Overrides(paused="up")
    assert paused.in_force(replace(NOW, monotonic=1e9)) == paused


def test_orders_are_told_in_words() -> None:
    assert describe_overrides(SCALED, NOW) == ["scaled to 5 by hand, for 30 min more"]
    assert describe_overrides(Overrides(paused="up"), NOW) == ["changes up are paused"]
    assert describe_overrides(Overrides(paused="both"), NOW) == ["changes of size are paused"]
    assert describe_overrides(NO_OVERRIDES, NOW) == []


def test_orders_survive_as_plain_values() -> None:
    orders = {
        "a": Overrides(SCALED.scale, "down", FinishOverride(Expiry.after(60, NOW), 3600)),
        "b": Overrides(paused="both"),
        "c": NO_OVERRIDES,
    }
    plain = json.loads(json.dumps(overrides_to_json(orders)))
    assert overrides_from_json(plain) == {name: one for name, one in orders.items() if name != "c"}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"version": 2, "pools": {}},
        {"version": 1, "pools": {"a": []}},
        {"version": 1, "pools": {"a": {"paused": "sideways"}}},
        {"version": 1, "pools": {"a": {"scale": {"workers": -1, "until": 1, "until_monotonic": 1, "boot": ""}}}},
        {"version": 1, "pools": {"a": {"scale": {"workers": 1}}}},
    ],
)
def test_data_that_are_no_overrides_are_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"overrides|paused|workers|expiry"):
        overrides_from_json(data)


def test_orders_that_come_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    files = StateDir(tmp_path / "state")
    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            pool.submit(files.change_overrides, f"pool-{number}", lambda _: SCALED)
    assert len(files.read_overrides()) == 40


def test_an_unreadable_file_of_orders_is_told_and_replaced_by_the_next_order(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    (tmp_path / "orders.json").write_text("{")
    with pytest.raises(ValueError, match="not overrides"):
        files.read_overrides()
    before = files.overrides_mark()
    files.change_overrides("a", lambda _: SCALED)
    assert files.overrides_mark() != before
    assert files.read_overrides() == {"a": SCALED}
