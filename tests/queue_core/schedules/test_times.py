"""The ticks of schedules: cron on the wall clock of a time zone, on nights on which clocks change, or by the second."""

from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from queue_core.clock import MICROSECONDS, Instant
from queue_core.schedules.schedule import Schedule
from queue_core.schedules.times import check_cron, check_every, check_zone, known_zones, tick_text

VIENNA, SYDNEY, LORD_HOWE = "Europe/Vienna", "Australia/Sydney", "Australia/Lord_Howe"


def instant(text: str, zone: str = "UTC") -> Instant:
    """The instant that a local time names; +01:00 and the like may be given."""
    moment = datetime.fromisoformat(text)
    return Instant(
        round((moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).timestamp()) * MICROSECONDS
    )


def local(tick: Instant, zone: str) -> str:
    """A tick as the wall clock of a zone shows it, with its offset."""
    return datetime.fromtimestamp(tick // MICROSECONDS, ZoneInfo(zone)).isoformat()


def ticks(cron: str, zone: str, begin: str, end: str) -> list[Instant]:
    """The ticks between two local times."""
    schedule, until = Schedule("s", "q", cron=cron, timezone=zone), instant(end, zone)
    found = []
    for tick in schedule.ticks(after=instant(begin, zone)):
        if tick > until:
            break
        found.append(tick)
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "day", "expected"),
    [
        pytest.param("30 2 * * *", VIENNA, "2026-03-29", ["03:00:00+02:00"], id="skipped, so when the hour is over"),
        pytest.param("0 2,3 * * *", VIENNA, "2026-03-29", ["03:00:00+02:00"], id="skipped onto another: once"),
        pytest.param("0 3 * * *", VIENNA, "2026-03-29", ["03:00:00+02:00"], id="just after the skipped hour"),
        pytest.param("30 2 * * *", VIENNA, "2026-10-25", ["02:30:00+02:00"], id="an hour twice: the first time only"),
        pytest.param("0 2,3 * * *", VIENNA, "2026-10-25", ["02:00:00+02:00", "03:00:00+01:00"], id="and the next hour"),
        pytest.param("30 2 * * *", SYDNEY, "2026-10-04", ["03:00:00+11:00"], id="south, skipped"),
        pytest.param("30 2 * * *", SYDNEY, "2026-04-05", ["02:30:00+11:00"], id="south, twice"),
        pytest.param("15 2 * * *", LORD_HOWE, "2026-10-04", ["02:30:00+11:00"], id="half an hour, skipped"),
        pytest.param("45 1 * * *", LORD_HOWE, "2026-04-05", ["01:45:00+11:00"], id="half an hour, twice"),
        pytest.param("0 30 2 * * *", VIENNA, "2026-03-29", [], id="with seconds: no such time, no tick"),
    ],
)
def test_a_time_of_a_night_on_which_clocks_change(cron: str, zone: str, day: str, expected: list[str]) -> None:
    found = ticks(cron, zone, f"{day}T00:00", f"{day}T12:00")
    assert [local(tick, zone).partition("T")[2] for tick in found] == expected


@pytest.mark.parametrize(
    ("day", "hours"), [pytest.param("2026-03-29", 23, id="forward"), pytest.param("2026-10-25", 25, id="back")]
)
def test_every_half_hour_goes_by_elapsed_time(day: str, hours: int) -> None:
    begin = instant(f"{day}T00:00", VIENNA)
    end = (datetime.fromisoformat(day) + timedelta(days=1)).isoformat()
    found = ticks("*/30 * * * *", VIENNA, f"{day}T00:00", end)
    assert found == [Instant(begin + place * 1800 * MICROSECONDS) for place in range(1, 2 * hours + 1)]


@pytest.mark.parametrize("zone", [VIENNA, SYDNEY, LORD_HOWE])
@pytest.mark.parametrize(
    "cron", ["30 2 * * *", "0 2,3 * * *", "*/20 * * * *", "30 * * * *", "0 3 * * 0", "*/30 2 * * *"]
)
@pytest.mark.parametrize("begin", ["2026-03-27T12:00", "2026-10-02T12:00", "2026-10-23T12:00", "2026-04-03T12:00"])
def test_the_ticks_are_the_same_wherever_one_begins_to_look(zone: str, cron: str, begin: str) -> None:
    schedule, start = Schedule("s", "q", cron=cron, timezone=zone), instant(begin, zone)
    end = Instant(start + 3 * 86_400 * MICROSECONDS)
    whole = [tick for tick in islice(schedule.ticks(after=start), 300) if tick <= end]
    for minutes in range(0, 3 * 1440, 11):
        after = Instant(start + minutes * 60 * MICROSECONDS + 7)
        later = [tick for tick in whole if tick > after]
        if later:
            assert schedule.next_tick(after=after) == later[0]
        before = [tick for tick in whole if tick <= after]
        if before:
            assert schedule.last_tick(after=start, until=after) == before[-1]


def test_a_tick_is_after_its_start_and_never_at_it() -> None:
    schedule = Schedule("s", "q", cron="* * * * * *")
    at = instant("2026-11-26T03:00:00")
    assert schedule.next_tick(after=at) == at + MICROSECONDS
    assert schedule.next_tick(after=Instant(at + 1)) == at + MICROSECONDS
    assert schedule.next_tick(after=Instant(at - 1)) == at


def test_every_ticks_at_the_multiples_of_its_time_since_1970() -> None:
    schedule = Schedule("s", "q", every=600.0)
    assert list(islice(schedule.ticks(after=instant("2026-11-26T03:05:00")), 2)) == [
        instant("2026-11-26T03:10:00"),
        instant("2026-11-26T03:20:00"),
    ]
    assert schedule.next_tick(after=instant("2026-11-26T03:10:00")) == instant("2026-11-26T03:20:00")


def test_a_last_tick_years_ago_is_found_and_one_before_the_start_is_not() -> None:
    schedule = Schedule("s", "q", cron="0 0 29 2 *")
    now = instant("2027-06-01T00:00")
    assert schedule.last_tick(after=instant("2020-03-01T00:00"), until=now) == instant("2024-02-29T00:00")
    assert schedule.last_tick(after=instant("2024-03-01T00:00"), until=now) is None


def test_a_ticks_task_is_named_by_its_time_in_utc() -> None:
    schedule = Schedule("nightly", "q", cron="0 3 * * *", timezone=VIENNA)
    (tick,) = ticks("0 3 * * *", VIENNA, "2026-11-26T00:00", "2026-11-26T12:00")
    assert schedule.task_name(tick) == "nightly-20261126T020000Z"
    assert tick_text(Instant(0)) == "19700101T000000Z"


@pytest.mark.parametrize("text", ["", "* * * *", "60 * * * *", "0 25 * * *", "0 0 31 2 *", "@daily", "0 0 * * MOO"])
def test_what_is_no_cron_expression_is_refused_with_the_form_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write minute, hour"):
        check_cron(text)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 366 * 86_400.0 + 1])
def test_a_time_between_ticks_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="from 1s to 366d"):
        check_every(seconds)


def test_time_zones_are_known_without_those_of_the_system() -> None:
    assert {VIENNA, SYDNEY, "UTC"} <= known_zones()
    with pytest.raises(ValueError, match="no such time zone"):
        check_zone("Europe/Viena")
