"""Durations, times, counts and sizes are shown in one way."""

import math
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.process.wording import (
    counted,
    describe_held,
    iso_instant,
    shown_ago,
    shown_ahead,
    shown_bytes,
    shown_clock,
    shown_seconds,
    shown_setting,
)

NOON = 1_764_158_671.25  # 2025-11-26 12:04:31.25 UTC


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local clock one hour ahead of UTC."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (-1, "0 s"),
        (0, "0 s"),
        (0.000_1, "1 ms"),
        (0.004, "4 ms"),
        (0.099, "99 ms"),
        (0.099_9, "0.10 s"),
        (0.17, "0.17 s"),
        (0.999, "1 s"),
        (2.1, "2.1 s"),
        (8.0, "8 s"),
        (9.96, "10 s"),
        (34.4, "34 s"),
        (119, "119 s"),
        (121, "2 min"),
        (540, "9 min"),
        (3_590, "1 h"),
        (11_100, "3 h 5 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_a_measured_duration_has_about_two_digits(seconds: float | None, shown: str) -> None:
    assert shown_seconds(seconds) == shown


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_longer_duration_is_never_shown_as_a_shorter_one(one: float, other: float) -> None:
    short, long = sorted((one, other))
    assert in_seconds(shown_seconds(short)) <= in_seconds(shown_seconds(long))


def in_seconds(shown: str) -> float:
    """The seconds of a shown duration."""
    words = shown.split()
    of = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
    return math.fsum(float(number) * of[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.5, "500 ms"),
        (1.5, "1.5 s"),
        (30, "30 s"),
        (60, "1 min"),
        (90, "90 s"),
        (3_660, "1 h 1 min"),
        (21_600, "6 h"),
        (86_400, "24 h"),
    ],
)
def test_a_setting_is_shown_exactly(seconds: float, shown: str) -> None:
    assert shown_setting(seconds) == shown


def test_times_beside_now_say_on_which_side() -> None:
    assert [shown_ago(540), shown_ago(-3)] == ["9 min ago", "0 s ago"]
    assert [shown_ahead(240), shown_ahead(0)] == ["in 4 min", "now"]


@pytest.mark.usefixtures("in_berlin")
def test_a_clock_is_the_local_one_and_names_a_day_that_is_not_today() -> None:
    assert shown_clock(NOON, now_seconds=NOON + 60) == "13:04:31"
    assert shown_clock(NOON, now_seconds=NOON + 11 * 3_600) == "2025-11-26 13:04:31"
    assert iso_instant(NOON) == "2025-11-26T12:04:31.250Z"


def test_counts_have_their_noun_and_separated_thousands() -> None:
    assert [counted(1, "worker"), counted(1_277, "task"), counted(0, "queue")] == [
        "1 worker",
        "1,277 tasks",
        "0 queues",
    ]
    assert counted(2, "has", "have") == "2 have"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (512, "512 B"), (1 << 20, "1 MiB"), (87_031_808, "83 MiB"), (1_503_238_554, "1.4 GiB")],
)
def test_a_measured_size_has_about_two_digits(size: int, shown: str) -> None:
    assert shown_bytes(size) == shown


def test_what_limits_hold_back_is_waiting_and_never_called_ready() -> None:
    by = "max_in_flight: 2"
    assert describe_held(leasable=0, held=5, by=by) == "5 waiting, all limited by max_in_flight: 2: none can be leased"
    assert describe_held(leasable=0, held=1, by=by) == "1 waiting, limited by max_in_flight: 2: none can be leased"
    some = describe_held(leasable=3, held=5, by=by)
    assert some == "8 waiting, 5 of them limited by max_in_flight: 2: 3 can be leased"
