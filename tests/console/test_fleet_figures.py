"""The first page's figures and a pool's chart, from what the API says of pools, queues and decisions."""

import pytest

from queue_core.console.fleet_figures import Figure, figures_of_pools, figures_of_queues
from queue_core.console.pool_chart import ChartRow, chart_rows
from queue_core.console.rates import QueueRates
from queue_core.process.wording import shown_rate
from queue_core.verbs.wire import Json

NOW = 1_000.0


def a_pool(name: str = "resize", **more: object) -> Json:
    states = {f"{state}_workers": 0 for state in ("busy", "idle", "starting", "draining")}
    figures = {"ready": 0, "oldest_age_seconds": 0.0, "p99_over_slo": 0.5, "slo_seconds": 4.0, "alive_workers": 0}
    return {"pool": name, **figures, **states, **more}


def a_trend(name: str = "resize", **more: object) -> Json:
    lines = {key: [1, 3] for key in ("arrivals", "completed", "failed", "ready", "workers", "busy")}
    return {"pool": name, **lines, "longest_wait_seconds": [0.5, 2.5], **more}


def texts(figures: list[Figure]) -> dict[str, str]:
    return {one.label: f"{one.text} {one.detail}".strip() for one in figures}


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(0, "0"), (0.0323, "0.03"), (0.999, "0.999"), (1, "1"), (12.93, "12.9"), (99.96, "100"), (1250.4, "1,250")],
)
def test_a_rate_has_three_digits_and_no_power_of_ten(per_second: float, text: str) -> None:
    assert shown_rate(per_second) == text


def test_pools_are_added_up_and_the_worst_wait_is_named() -> None:
    pools = [
        a_pool(ready=4, oldest_age_seconds=2.0, busy_workers=2, alive_workers=2),
        a_pool("crop", ready=1_200, oldest_age_seconds=9.0, p99_over_slo=2.0, idle_workers=1, alive_workers=1),
    ]
    trends = [a_trend(arrivals_per_second=1.5, completed_per_second=1.0), a_trend("crop", failed_per_second=0.25)]
    figures = figures_of_pools(pools, trends)
    assert texts(figures) == {
        "In": "1.5/s tasks added",
        "Out": "1/s tasks completed",
        "Failures": "0.25/s failed attempts",
        "Waiting": "1,204 oldest 9 s",
        "p99 wait": "8 s of the 4 s SLO (crop)",
        "Workers": "3 2 busy, 1 idle",
    }
    assert [one.label for one in figures if one.is_bad] == ["Failures", "p99 wait"]
    lines = {one.label: (one.line.least, one.line.most) for one in figures if one.line}
    assert (lines["In"], lines["p99 wait"]) == ((2, 6), (0.5, 2.5)), "arrivals add up, of waits the longest counts"


def test_a_supervisor_of_before_the_lines_shows_figures_without_them() -> None:
    figures = figures_of_pools([a_pool()], [{"pool": "resize", "ready": [1, 2], "workers": [1, 1]}])
    assert texts(figures)["In"] == "0/s tasks added"
    assert [one.label for one in figures if one.line] == ["Waiting", "Workers"]


def test_a_server_alone_shows_what_its_queues_count_and_rates_from_a_second_sample_on() -> None:
    queues: list[Json] = [{"ready": 3, "in_flight": 1, "dead": 2}, {"ready": 2_000, "in_flight": 0, "dead": 0}]
    assert texts(figures_of_queues(queues, [])) == {"Waiting": "2,003", "Running": "1", "Dead": "2", "Queues": "2"}
    moving = texts(figures_of_queues(queues, [QueueRates(1.0, 2.0, 0.0), QueueRates(0.5, 0.0, 0.0)]))
    assert (moving["In"], moving["Out"], moving["Failures"]) == (
        "1.5/s tasks added",
        "2/s tasks completed",
        "0/s failed attempts",
    )


def test_decisions_minutes_and_deaths_are_rows_on_one_time_axis() -> None:
    decisions: list[Json] = [
        {"at": 985.0, "current": 1, "target": 3, "ready": 9},
        {"at": 930.0, "current": 0, "target": 1, "ready": 1},
    ]
    trend: Json = {"workers": [0, 2], "busy": [0, 1], "failed": [0, 4], "ready": [1, 7]}
    deaths: list[Json] = [{"at": 990.0}, {"at": 990.0}, {"at": 100.0}]
    rows = chart_rows(decisions, {"current": 2, "target": 3, "ready": 5}, trend, deaths, now=NOW)
    assert rows == [
        ChartRow(930.0, 0, 1, None, None, None, 1),
        ChartRow(940.0, 0, 1, 0, None, None, 1),
        ChartRow(985.0, 1, 3, 0, None, None, 9),
        ChartRow(990.0, 1, 3, 0, None, 2, 9),
        ChartRow(NOW, 2, 3, 1, 4, None, 5),
    ]


def test_without_a_trend_the_chart_is_that_of_the_decisions() -> None:
    assert chart_rows([], None, None, [{"at": 990.0}], now=NOW) == []
    rows = chart_rows([{"at": 985.0, "current": 1, "target": 3, "ready": 9}], None, None, [], now=NOW)
    assert rows == [ChartRow(985.0, 1, 3, None, None, None, 9)]
