"""Leases of the last minute and hour from a server's notes: exact by the minute, an hour to the minute."""

import pytest

from queue_core.clock import START, Instant, after
from queue_core.server.leases.rates import LeaseCounts, RecentCounts
from queue_core.stats import QueueStats

QUEUE = "work"


def at(seconds: float) -> Instant:
    return after(START, seconds)


def counts(noted: list[tuple[float, int]], *, total: int, now: float) -> RecentCounts:
    """What is told at `now` of a queue whose totals were noted like this."""
    kept = LeaseCounts()
    for seconds, leased in noted:
        kept.record({QUEUE: leased}, now=at(seconds))
    return kept.counts(QueueStats(QUEUE, leased_total=total), now=at(now))


@pytest.mark.parametrize(
    ("now", "told"),
    [
        pytest.param(0, RecentCounts(7, 7), id="at once"),
        pytest.param(59.999_999, RecentCounts(7, 7), id="a minute is not over"),
        pytest.param(60, RecentCounts(0, 7), id="a minute is over"),
        pytest.param(3599.999_999, RecentCounts(0, 7), id="an hour is not over"),
        pytest.param(3600, RecentCounts(0, 0), id="an hour is over"),
    ],
)
def test_leases_count_until_their_minute_and_their_hour_are_over(now: float, told: RecentCounts) -> None:
    assert counts([(0, 0), (0, 7)], total=7, now=now) == told


def test_leases_of_a_servers_first_minute_count_for_their_hour() -> None:
    noted = [(0, 0), (5, 10), (10, 20), (75, 20), (130, 25)]
    assert counts(noted, total=25, now=140) == RecentCounts(5, 25)


def test_leases_before_the_server_began_do_not_count() -> None:
    assert counts([(0, 1000), (5, 1001)], total=1003, now=10) == RecentCounts(3, 3)


def test_an_hour_of_notes_tells_the_hour_to_the_minute() -> None:
    noted = [(seconds, seconds) for seconds in range(0, 7201, 5)]
    told = counts([(float(seconds), total) for seconds, total in noted], total=7200, now=7200)
    assert told.last_minute == 60
    assert 3600 <= told.last_hour <= 3660
