"""The last hour of a pool, a point a minute."""

from dataclasses import replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample
from orchestrator.fleet.trend import MINUTES, Trend, TrendPoint, by_minute, minute_of, point_of, rates_of, trend_after
from orchestrator.http_api.trends import pool_trends
from tests.support.fleet.fleet_views import a_heartbeat, a_running_pool, a_view


def sampled(*samples: tuple[float, int, int]) -> Trend:
    trend: Trend = ()
    for seconds, ready, workers in samples:
        trend = trend_after(trend, TrendPoint(minute_of(Monotonic(seconds)), ready, workers))
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
    assert trend_after(trend, TrendPoint(0, 2, 1)) is trend


def test_minutes_without_a_sample_are_shown_as_such() -> None:
    shown = by_minute(sampled((0.0, 3, 1), (120.0, 5, 2)), now=Monotonic(180.0))
    assert len(shown) == MINUTES
    assert shown[-4:] == [TrendPoint(0, 3, 1), None, TrendPoint(2, 5, 2), None]


def test_the_trends_of_all_pools_are_served() -> None:
    pool = a_running_pool()
    heartbeat, clock = a_heartbeat()
    pool.trend = trend_after((), TrendPoint(minute_of(clock.monotonic()), 7, 2, completed=3))
    heartbeat.show(a_view(pool))
    (found,) = pool_trends(heartbeat, now=clock.monotonic()).pools
    assert (found.pool, found.queue) == ("resize", "thumbs")
    assert (found.ready[-2:], found.workers[-2:], found.completed[-2:]) == ([None, 7], [None, 2], [None, 3])
    assert found.completed_per_second > 0


def test_a_sample_counts_what_arrived_what_was_completed_and_what_failed() -> None:
    ended = [
        LeaseSample("w", 1.0, waited, outcome, lease_number=1, ended_seconds_ago=0.1)
        for waited, outcome in ((0.5, "deleted"), (4.0, "released"), (1.0, "deleted"), (2.0, "expired"))
    ]
    sample = QueueSample(Monotonic(61.0), 3, 0, 2, 0, arrivals=5, finished=tuple(ended))
    trend = trend_after((), point_of(sample, workers=2, busy=1))
    assert trend_after(trend, point_of(replace(sample, ready=1, finished=()), workers=4, busy=0)) == (
        TrendPoint(1, 3, 4, busy=0, arrivals=10, completed=2, failed=2, longest_wait_seconds=4.0),
    )


@pytest.mark.parametrize(
    ("points", "now", "completed"),
    [
        pytest.param([], 90.0, 0.0, id="none"),
        pytest.param([(1, 30)], 90.0, 1.0, id="first minute: since it began"),
        pytest.param([(0, 120), (1, 30)], 90.0, 1.5, id="half of the minute before"),
        pytest.param([(0, 120)], 90.0, 1.0, id="nothing in this minute"),
        pytest.param([(0, 120)], 150.0, 0.0, id="nothing for more than a minute"),
    ],
)
def test_rates_are_those_of_the_last_minute(points: list[tuple[int, int]], now: float, completed: float) -> None:
    trend = tuple(TrendPoint(minute, 0, 1, completed=count) for minute, count in points)
    assert rates_of(trend, now=Monotonic(now)).completed == completed
