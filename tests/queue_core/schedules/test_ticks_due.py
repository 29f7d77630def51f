"""Which ticks are due, by how much was missed and by `catch_up`; also when the clock is set."""

import pytest

from queue_core.clock import MICROSECONDS, Instant
from queue_core.schedules.schedule import (
    MAX_CATCH_UP_SECONDS,
    MAX_COUNTED,
    MAX_TICKS_AT_ONCE,
    ON_TIME_SECONDS,
    CatchUp,
    Schedule,
    ticks_due,
)

HOUR = 3_600
MIDNIGHT = Instant(1_700_006_400 * MICROSECONDS)


def at(seconds: float) -> Instant:
    """An instant after a midnight in UTC."""
    return Instant(MIDNIGHT + round(seconds * MICROSECONDS))


def minutely(catch_up: CatchUp = "skip") -> Schedule:
    """A tick a minute."""
    return Schedule("minutely", "work", cron="* * * * *", catch_up=catch_up)


def secondly(catch_up: CatchUp = "skip") -> Schedule:
    """A tick a second."""
    return Schedule("secondly", "work", every=1.0, catch_up=catch_up)


def test_nothing_is_due_before_the_next_tick() -> None:
    due = ticks_due(minutely(), handled=at(0), now=at(59.999999))
    assert (due.is_any, due.handled) == (False, at(0))


def test_a_tick_is_due_at_its_time_and_once() -> None:
    due = ticks_due(minutely(), handled=at(0), now=at(60))
    assert (due.ticks, due.handled) == ((at(60),), at(60))
    assert not ticks_due(minutely(), handled=due.handled, now=at(60)).is_any


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_ticks_up_to_a_minute_late_are_added_whatever_the_rule(catch_up: CatchUp) -> None:
    due = ticks_due(secondly(catch_up), handled=at(0), now=at(15))
    assert due.ticks == tuple(at(second) for second in range(1, 16))
    assert due.missed == 0


@pytest.mark.parametrize(
    ("late", "ticks", "missed"),
    [
        pytest.param(ON_TIME_SECONDS, 1, 0, id="a minute late is on time"),
        pytest.param(ON_TIME_SECONDS + 0.000001, 0, 1, id="a microsecond more is missed"),
    ],
)
def test_where_on_time_ends(late: float, ticks: int, missed: int) -> None:
    hourly = Schedule("hourly", "work", cron="0 * * * *")
    due = ticks_due(hourly, handled=at(1), now=at(HOUR + late))
    assert (len(due.ticks), due.missed) == (ticks, missed)


def test_after_an_hour_skip_adds_what_is_on_time_and_counts_the_rest() -> None:
    due = ticks_due(minutely("skip"), handled=at(0), now=at(HOUR + 30))
    assert due.ticks == (at(HOUR),)
    assert (due.missed, due.first_missed, due.last_missed) == (59, at(60), at(HOUR - 60))
    assert not ticks_due(minutely("skip"), handled=due.handled, now=at(HOUR + 30)).is_any


def test_after_an_hour_last_adds_the_last_tick_only() -> None:
    due = ticks_due(minutely("last"), handled=at(0), now=at(HOUR + 30))
    assert (due.ticks, due.missed) == ((at(HOUR),), 59)
    nightly = Schedule("nightly", "work", cron="0 3 * * *", catch_up="last")
    due = ticks_due(nightly, handled=at(0), now=at(4 * HOUR))
    assert (due.ticks, due.missed) == ((at(3 * HOUR),), 0)


def test_after_an_hour_all_adds_each_tick_in_parts() -> None:
    handled, found, missed = at(0), [], 0
    while True:
        due = ticks_due(secondly("all"), handled=handled, now=at(HOUR))
        assert len(due.ticks) <= MAX_TICKS_AT_ONCE
        found += due.ticks
        handled, missed = due.handled, missed + due.missed
        if not due.has_more:
            break
    assert found == [at(second) for second in range(1, HOUR + 1)]
    assert missed == 0


def test_skip_and_last_after_an_hour_of_seconds_count_without_reading_them_all() -> None:
    skip = ticks_due(secondly("skip"), handled=at(0), now=at(HOUR))
    assert skip.ticks == tuple(at(HOUR - back) for back in range(60, -1, -1))
    assert (skip.missed, skip.first_missed, skip.last_missed) == (MAX_COUNTED, at(1), at(HOUR - 61))
    last = ticks_due(secondly("last"), handled=at(0), now=at(HOUR))
    assert (last.ticks, last.missed, last.last_missed) == ((at(HOUR),), MAX_COUNTED, at(HOUR - 1))


def test_what_is_older_than_a_week_is_not_caught_up() -> None:
    daily = Schedule("daily", "work", cron="0 3 * * *", catch_up="all")
    days = 10
    due = ticks_due(daily, handled=at(0), now=at(days * 86_400))
    assert due.ticks == tuple(at(day * 86_400 + 3 * HOUR) for day in range(3, days))
    assert MAX_CATCH_UP_SECONDS == 7 * 86_400
    assert (due.missed, due.first_missed) == (3, at(3 * HOUR))


def test_a_clock_that_is_set_back_a_little_is_waited_for() -> None:
    due = ticks_due(minutely(), handled=at(120), now=at(61))
    assert (due.is_any, due.handled) == (False, at(120))
    assert not ticks_due(minutely(), handled=at(120), now=at(120)).is_any
    assert ticks_due(minutely(), handled=at(120), now=at(180)).ticks == (at(180),)


def test_a_clock_that_is_set_back_by_more_goes_on_from_there() -> None:
    due = ticks_due(minutely(), handled=at(HOUR), now=at(90))
    assert (due.went_back, due.ticks, due.handled) == (True, (), at(90))
    assert ticks_due(minutely(), handled=due.handled, now=at(120)).ticks == (at(120),)


@pytest.mark.parametrize(
    ("catch_up", "minutes"),
    [
        pytest.param("skip", [59, 60], id="skip: what is a minute old"),
        pytest.param("last", [60], id="last"),
        pytest.param("all", list(range(1, 61)), id="all"),
    ],
)
def test_a_clock_that_is_set_forward_by_an_hour_is_an_hour_missed(catch_up: CatchUp, minutes: list[int]) -> None:
    due = ticks_due(minutely(catch_up), handled=at(0), now=at(HOUR))
    assert due.ticks == tuple(at(60 * minute) for minute in minutes)


def test_a_schedule_without_another_tick_is_never_due() -> None:
    once = Schedule("leap", "work", cron="0 0 29 2 *")
    assert not ticks_due(once, handled=at(0), now=at(86_400)).is_any
