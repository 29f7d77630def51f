"""Leases of the last minute and hour, from notes of a total that only grows."""

from itertools import pairwise

import pytest

from queue_core.clock import MICROSECONDS, Instant
from queue_core.server.leases.rates import HOUR, MAX_QUEUES, MINUTE, LeaseCounts, RecentCounts, thinned
from queue_core.stats import QueueStats

START = Instant(1_700_000_000_000_000)


def _after(seconds: float) -> Instant:
    return Instant(START + round(seconds * MICROSECONDS))


def _counts(notes: list[tuple[float, int]], *, total: int, at: float) -> RecentCounts:
    counts = LeaseCounts()
    for seconds, noted in notes:
        counts.record({"work": noted}, now=_after(seconds))
    return counts.counts(QueueStats("work", leased_total=total), now=_after(at))


@pytest.mark.parametrize(
    ("notes", "total", "at", "minute", "hour"),
    [
        pytest.param([], 5, 0, 0, 0, id="nothing is known before the first note"),
        pytest.param([(0, 100)], 107, 10, 7, 7, id="what came since the start"),
        pytest.param([(0, 100), (5, 107)], 107, 66, 0, 7, id="a minute ago is not the last minute"),
        pytest.param([(0, 0), (30, 50), (60, 80)], 90, 95, 40, 90, id="from the last note before the window on"),
        pytest.param([(0, 0), (3600, 10), (7200, 15)], 15, 7205, 5, 5, id="an hour ago is not the last hour"),
        pytest.param([(0, 100)], 3, 10, 0, 0, id="a total that began anew counts from nothing"),
    ],
)
def test_leases_are_counted_from_the_notes(
    notes: list[tuple[float, int]], total: int, at: float, minute: int, hour: int
) -> None:
    assert _counts(notes, total=total, at=at) == RecentCounts(minute, hour)


def test_a_queue_made_since_the_last_note_began_empty() -> None:
    counts = LeaseCounts()
    counts.record({"old": 5}, now=START)
    assert counts.counts(QueueStats("new", leased_total=9), now=_after(3)) == RecentCounts(9, 9)
    counts.record({"old": 5, "new": 9}, now=_after(5))
    assert counts.counts(QueueStats("new", leased_total=9), now=_after(10)) == RecentCounts(9, 9)


def test_the_notes_of_a_busy_hour_are_few() -> None:
    notes: tuple[tuple[Instant, int], ...] = ()
    for number in range(2000):
        now = _after(5 * number)
        notes = thinned((*notes, (now, number)), now=now)
    assert len(notes) < 80
    assert notes[0][0] <= now - HOUR < notes[1][0]
    assert all(later[0] - earlier[0] <= 2 * MINUTE for earlier, later in pairwise(notes))


def test_a_queue_beyond_those_that_are_noted_counts_nothing() -> None:
    counts = LeaseCounts()
    counts.record({f"q{number:04}": 0 for number in range(MAX_QUEUES + 1)}, now=START)
    assert counts.counts(QueueStats("zzz", leased_total=9), now=_after(3)) == RecentCounts()
