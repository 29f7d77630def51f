"""Lines of the last hour, and tasks in and out per second."""

import pytest

from queue_core.console.rates import KEPT_SECONDS, QueueRates, QueueTotals, kept, rates, totals_of
from queue_core.console.sparkline import HEIGHT, WIDTH, sparkline, total_of


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        pytest.param((), None, id="nothing"),
        pytest.param((None, 4, None), None, id="one value is no line"),
        pytest.param((0, 10), (f"1,{HEIGHT - 1}.0 {WIDTH - 1},1.0",), id="from the bottom to the top"),
        pytest.param((0, 0), (f"1,{HEIGHT - 1}.0 {WIDTH - 1},{HEIGHT - 1}.0",), id="all 0"),
    ],
)
def test_a_line_fills_its_box(values: tuple[int | None, ...], parts: tuple[str, ...] | None) -> None:
    line = sparkline(values)
    assert (line and line.parts) == parts


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    line = sparkline((1, 2, None, 3, 4, None, 9))
    assert line is not None
    assert [part.count(" ") + 1 for part in line.parts] == [2, 2]
    assert (line.least, line.most) == (1, 9)


def test_lines_of_several_pools_add_up() -> None:
    assert total_of([(1, None, 3), (1, None, None)]) == (2, None, 3)


LOOK = QueueTotals(100.0, 50, 40)


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        pytest.param([], None, id="the first look"),
        pytest.param([QueueTotals(99.5, 50, 40)], None, id="too soon"),
        pytest.param([QueueTotals(98.0, 40, 40)], QueueRates(5.0, 0.0, 0.0), id="two seconds"),
        pytest.param(
            [QueueTotals(90.0, 0, 20), QueueTotals(98.0, 40, 40)],
            QueueRates(5.0, 2.0, 0.0),
            id="since the oldest recent one",
        ),
        pytest.param([QueueTotals(100.0 - KEPT_SECONDS - 1, 0, 0)], None, id="long ago"),
        pytest.param([QueueTotals(98.0, 60, 0)], None, id="made anew"),
        pytest.param([QueueTotals(101.0, 50, 40)], None, id="the clock was set back"),
    ],
)
def test_rates_are_of_late(looks: list[QueueTotals], found: QueueRates | None) -> None:
    assert rates(looks, LOOK) == found


def test_looks_are_kept_for_a_while() -> None:
    looks: tuple[QueueTotals, ...] = ()
    for tenth in range(1000):
        looks = kept(looks, QueueTotals(tenth / 10, tenth, 0))
    assert 10 <= len(looks) <= KEPT_SECONDS + 2
    assert totals_of(
        {"as_of": 2_500_000, "added_total": 7, "deleted_total": 3, "released_total": 2, "expired_total": 1}
    ) == QueueTotals(2.5, 7, 3, 3)
