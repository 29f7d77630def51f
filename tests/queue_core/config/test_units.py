"""Durations, sizes and fractions, as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.config.units import (
    format_bytes,
    format_fraction,
    format_seconds,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("1.5s", 1.5), ("1m30s", 90), ("2h", 7_200), ("7d", 604_800), (5, 5), (0.25, 0.25)],
)
def test_a_duration_is_read(text: object, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["30 s", "30", "", "s", "-5s", "1m 30s", "30sec", "30S", "٣s", "30s\n", "9" * 400 + "s"]
)
def test_text_that_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration such as 500ms, 30s, 5m, 6h, 2d"):
        parse_seconds(text)


@pytest.mark.parametrize("value", [True, False, None, -1, -0.5, float("nan"), float("inf"), [30]])
def test_values_that_are_no_number_of_seconds_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="write a duration"):
        parse_seconds(value)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_reads_back_from_what_it_is_written_as(milliseconds: int) -> None:
    assert parse_seconds(format_seconds(milliseconds / 1_000)) == pytest.approx(milliseconds / 1_000, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "count"),
    [("512MiB", 512 * 2**20), ("1GB", 10**9), ("64KiB", 65_536), ("1.5KiB", 1_536), ("10B", 10), (77, 77)],
)
def test_a_size_is_read(text: object, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("value", ["512", "512 MiB", "5mb", "1.5B", "", True, -1, 1.5, None])
def test_what_is_no_size_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match="write a size such as 64KiB, 512MiB, 1GB"):
        parse_bytes(value)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_reads_back_from_what_it_is_written_as(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count


@pytest.mark.parametrize(("text", "fraction"), [("0.5%", 0.005), (0.005, 0.005), ("100%", 1.0), (0, 0.0)])
def test_a_fraction_is_read(text: object, fraction: float) -> None:
    assert parse_fraction(text) == fraction


@pytest.mark.parametrize("value", ["0.5", "half", "101%", 1.1, True, -0.1])
def test_what_is_no_fraction_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match="write a fraction such as"):
        parse_fraction(value)


def test_the_shortest_exact_words_are_written() -> None:
    assert [format_seconds(s) for s in (0, 0.5, 90, 21_600, 1.001)] == ["0s", "500ms", "1m30s", "6h", "1s1ms"]
    assert [format_bytes(n) for n in (0, 1_000, 536_870_912)] == ["0B", "1000B", "512MiB"]
    assert format_fraction(0.005) == "0.5%"
