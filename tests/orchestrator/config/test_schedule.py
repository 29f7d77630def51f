"""Bounds that change with the hour, on clocks that go forward and back; times of day; and what a file may not say."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.config.pools import PoolSpec, parse_pools
from orchestrator.config.schedule import bounds_at, next_daily
from tests.support.fleet.fleet_builders import a_pool


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def a_window(
    cron: str, hours: float, *, least: int | None = None, most: int | None = None, zone: str = "UTC"
) -> dict[str, object]:
    workers = {name: count for name, count in (("min", least), ("max", most)) if count is not None}
    return {"cron": cron, "for": f"{hours:g}h", "workers": workers, "timezone": zone}


def bounds(pool: PoolSpec, now: float) -> tuple[int, int]:
    found = bounds_at(pool.workers, pool.schedule, now=now)
    return found.min, found.max


OFFICE = a_pool(most=8, schedule=[a_window("0 8 * * 1-5", 10, least=4, most=20, zone="Europe/Berlin")])
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(at("2026-03-27T07:59:59", BERLIN), (0, 8), id="a-second-before-it-opens"),
        pytest.param(at("2026-03-27T08:00:00", BERLIN), (4, 20), id="as-it-opens"),
        pytest.param(at("2026-03-27T08:00:00.5", BERLIN), (4, 20), id="half-a-second-later"),
        pytest.param(at("2026-03-27T17:59:59", BERLIN), (4, 20), id="a-second-before-it-closes"),
        pytest.param(at("2026-03-27T18:00:00", BERLIN), (0, 8), id="as-it-closes"),
        pytest.param(at("2026-03-28T12:00:00", BERLIN), (0, 8), id="a-saturday"),
        pytest.param(at("2026-03-30T06:30:00"), (4, 20), id="a-monday-on-summer-time"),
        pytest.param(at("2026-03-27T06:30:00"), (0, 8), id="a-friday-on-winter-time"),
    ],
)
def test_a_window_opens_and_closes_on_its_own_clock(now: float, expected: tuple[int, int]) -> None:
    assert bounds(OFFICE, now) == expected


@pytest.mark.parametrize(
    ("cron", "hours", "opens", "closes"),
    [
        pytest.param("0 1 * * *", 3, "2026-03-29T01:00+01:00", "2026-03-29T05:00+02:00", id="across-the-hour-left-out"),
        pytest.param("30 2 * * *", 1, "2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00", id="in-the-hour-left-out"),
        pytest.param("0 1 * * *", 3, "2026-10-25T01:00+02:00", "2026-10-25T03:00+01:00", id="across-the-hour-twice"),
        pytest.param("30 2 * * *", 1, "2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00", id="in-the-hour-twice"),
    ],
)
def test_for_is_elapsed_time_when_clocks_change(cron: str, hours: float, opens: str, closes: str) -> None:
    pool = a_pool(schedule=[a_window(cron, hours, least=1, zone=BERLIN)])
    opened, closed = (datetime.fromisoformat(text).timestamp() for text in (opens, closes))
    seen = [bounds(pool, now)[0] for now in (opened - 1, opened, closed - 1, closed)]
    assert seen == [0, 1, 1, 0]


def test_of_windows_that_overlap_the_later_in_the_list_has_the_last_word() -> None:
    week = a_window("0 0 * * *", 24, least=2, most=20)
    noon = a_window("0 12 * * *", 2, most=4)
    both = a_pool(schedule=[week, noon])
    assert bounds(both, at("2026-03-27T13:00")) == (2, 4)
    assert bounds(a_pool(schedule=[noon, week]), at("2026-03-27T13:00")) == (2, 20)
    assert bounds(both, at("2026-03-27T15:00")) == (2, 20)


def test_max_holds_where_windows_leave_min_above_it() -> None:
    pool = a_pool(most=40, schedule=[a_window("0 0 * * *", 24, least=10), a_window("0 12 * * *", 1, most=3)])
    assert bounds(pool, at("2026-03-27T12:30")) == (3, 3)


def test_a_max_of_none_shuts_a_pool_whatever_its_min_is() -> None:
    night = a_pool(least=2, most=8, schedule=[a_window("0 22 * * *", 8, most=0)])
    assert bounds(night, at("2026-03-27T23:00")) == (0, 0)
    assert bounds(night, at("2026-03-27T12:00")) == (2, 8)
    by_day = a_pool(most=0, schedule=[a_window("0 8 * * *", 10, least=1, most=4)])
    assert bounds(by_day, at("2026-03-27T12:00")) == (1, 4)
    assert bounds(by_day, at("2026-03-27T23:00")) == (0, 0)


def test_bounds_say_who_set_them_and_until_when_they_hold() -> None:
    found = bounds_at(OFFICE.workers, OFFICE.schedule, now=at("2026-03-27T09:00", BERLIN))
    assert (found.by, found.until) == ("schedule 0 8 * * 1-5", at("2026-03-27T18:00", BERLIN))
    closed = bounds_at(OFFICE.workers, OFFICE.schedule, now=at("2026-03-27T19:00", BERLIN))
    assert (closed.by, closed.until) == ("", at("2026-03-30T08:00", BERLIN))
    assert bounds_at(OFFICE.workers, (), now=0.0).until == float("inf")


@pytest.mark.parametrize(
    ("time_of_day", "now", "then", "offset"),
    [
        pytest.param("09:00", at("2026-03-27T08:59"), at("2026-03-27T09:00"), 0, id="today"),
        pytest.param("09:00", at("2026-03-27T09:00"), at("2026-03-28T09:00"), 0, id="that-very-instant-is-over"),
        pytest.param("9:00 Europe/Berlin", at("2026-03-28T12:00"), at("2026-03-29T07:00"), 7200, id="summer-begins"),
        pytest.param("09:00 Europe/Berlin", at("2026-10-24T12:00"), at("2026-10-25T08:00"), 3600, id="summer-ends"),
        pytest.param("02:30 Europe/Berlin", at("2026-03-29T00:00"), at("2026-03-29T01:30"), 3600, id="a-left-out-time"),
    ],
)
def test_the_next_time_of_day_is_found(time_of_day: str, now: float, then: float, offset: int) -> None:
    assert next_daily(time_of_day, now=now) == (then, offset)


@pytest.mark.parametrize(
    ("settings", "path", "said"),
    [
        pytest.param({"cron": "0 25 * * *"}, "schedule.0.cron", "bad hour", id="cron"),
        pytest.param({"timezone": "Europe/Berln"}, "schedule.0.timezone", "did you mean 'Europe/Berlin'?", id="zone"),
        pytest.param({"for": "0s"}, "schedule.0.for", "must be more than 0s", id="no-time"),
        pytest.param({"workers": {}}, "schedule.0.workers", "give min, max or both", id="no-bounds"),
        pytest.param({"workers": {"min": 9}}, "schedule.0.workers.min", "the pool's own max, which is 8: 9", id="own"),
        pytest.param(
            {"workers": {"min": 9, "max": 3}}, "schedule.0.workers.min", "at most max, which is 3: 9", id="max"
        ),
        pytest.param(
            {"workers": {"min": 1, "max": 0}}, "schedule.0.workers.min", "which is 0: 1", id="shut-with-a-min"
        ),
        pytest.param({"corn": "1"}, "schedule.0.corn", "did you mean 'cron'?", id="unknown"),
    ],
)
def test_a_window_that_cant_be_is_a_mistake_at_its_place(settings: dict[str, object], path: str, said: str) -> None:
    window = {**a_window("0 8 * * *", 1, least=1), **settings}
    with pytest.raises(ConfigError) as caught:
        parse_pools({"resize": {"queue": "q", "app": "a:b", "slo": 1, "schedule": [window]}})
    found = {".".join(map(str, m.path[2:])): m.message for m in caught.value.problems}
    assert said in found[path]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        pytest.param("finish_by", "24:00", "write a time of day", id="no-such-time"),
        pytest.param("finish_by", "09:00 Mars/Base", "no such time zone", id="no-such-zone"),
        pytest.param("budget", "200h/week", "200h/day", id="a-week"),
        pytest.param("budget", "0h/day", "must be more than 0h/day", id="nothing"),
        pytest.param("fallback", "keep", "write hold, or a number of workers", id="fallback"),
        pytest.param("fallback", True, "write hold, or a number of workers", id="a-truth-value"),
        pytest.param("min_billing", "2d", "must be at most 1d", id="billing"),
        pytest.param("priority", "high", "must be a whole number", id="priority"),
        pytest.param("dry_run", "yes", "must be true or false", id="dry-run"),
    ],
)
def test_a_setting_that_cant_be_says_what_it_may_be(name: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        parse_pools({"resize": {"queue": "q", "app": "a:b", "slo": 1, name: value}})


def test_scaling_settings_replace_no_worker() -> None:
    plain = a_pool().digest()
    changed = a_pool(budget="8h/day", min_billing="60s", priority=3, fallback=2, dry_run=True, finish_by="09:00")
    assert changed.digest() == plain
    assert OFFICE.bounded(0, 0).digest() == OFFICE.digest() == plain


def test_a_copy_with_other_settings_has_another_digest() -> None:
    pool = a_pool()
    before = pool.digest()
    assert pool.model_copy(update={"cwd": "/elsewhere"}).digest() != before
    assert pool == a_pool()
