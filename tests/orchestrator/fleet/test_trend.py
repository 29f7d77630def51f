"""The last hour of a pool, a point a minute."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.trend import MINUTES, Trend, TrendPoint, by_minute, trend_after
from orchestrator.http_api.trends import pool_trends
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view


def sampled(*samples: tuple[float, int, int]) -> Trend:
    trend: Trend = ()
    for seconds, ready, workers in samples:
        trend = trend_after(trend, ready=ready, workers=workers, now=Monotonic(seconds))
    return trend


@pytest.mark.parametrize(
    ("samples", "points"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(59.9, 3, 1), (60.0, 2, 2)], [(0, 3, 1), (1, 2, 2)], id="two minutes"),
        pytest.param([(0.0, 3, 1), (1.0, 9, 2), (2.0, 4, 0)], [(0, 9, 0)], id="most ready, last workers"),
        pytest.param([(0.0, 3, 1), (600.0, 1, 1)], [(0, 3, 1), (10, 1, 1)], id="a gap"),
    ],
)
def test_a_minute_is_one_point(samples: list[tuple[float, int, int]], points: list[tuple[int, int, int]]) -> None:
    assert [(one.minute, one.ready, one.workers) for one in sampled(*samples)] == points


def test_an_hour_is_kept() -> None:
    trend = sampled(*((60.0 * minute, minute, 1) for minute in range(MINUTES + 30)))
    assert [one.minute for one in trend] == list(range(30, MINUTES + 30))


def test_a_sample_that_changes_nothing_makes_no_new_value() -> None:
    trend = sampled((0.0, 3, 1))
    assert trend_after(trend, ready=2, workers=1, now=Monotonic(30.0)) is trend


def test_minutes_without_a_sample_are_shown_as_such() -> None:
    shown = by_minute(sampled((0.0, 3, 1), (120.0, 5, 2)), now=Monotonic(180.0))
    assert len(shown) == MINUTES
    assert shown[-4:] == [TrendPoint(0, 3, 1), None, TrendPoint(2, 5, 2), None]


def test_the_trends_of_all_pools_are_served() -> None:
    pool = a_running_pool()
    heartbeat, clock = a_heartbeat()
    pool.trend = trend_after((), ready=7, workers=2, now=clock.monotonic())
    heartbeat.show(a_view(pool))
    (found,) = pool_trends(heartbeat, now=clock.monotonic()).pools
    assert (found.pool, found.queue) == ("resize", "thumbs")
    assert (found.ready[-2:], found.workers[-2:]) == ([None, 7], [None, 2])
