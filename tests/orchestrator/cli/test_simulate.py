"""`towline simulate` and `towline backtest`, as they are typed."""

import json
import re
import xml.etree.ElementTree as ET
from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.capacity.allocation import WorkerUsage
from orchestrator.capacity.worker_usage import WorkerUsages
from orchestrator.cli.candidates import chosen_pools, world_of
from orchestrator.scaling.estimates import Estimates, Startup
from orchestrator.scaling.learning import PolicyState
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from tests.support.commands import Commands

SETTINGS = """\
store: sqlite:///queue.db
log: events.jsonl
queues:
  thumbs: {lease: 1m, max_leases: 5}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 30s, workers: {max: 4}}
  other: {queue: thumbs, untagged: true, app: "tasks:app", slo: 60s, workers: {max: 2}}
"""
SHAPE = "poisson:1/s,service=1s,for=5m"


@pytest.fixture
def project(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


@pytest.fixture
def ran(project: Commands) -> Commands:
    """A project whose queue has done 40 tasks in the last quarter of an hour, and whose supervisor learned from it."""
    now = SystemMonotonicClock().wall_seconds()
    lines = []
    for number in range(40):
        at = round((now - 800 + 10 * number) * 1e6)
        tag = {"tag": "resize"} if number % 2 else {}
        task = {"queue": "thumbs", "task": f"t{number}", **tag}
        lines.append({"event": "task.added", "at": at, **task})
        lines.append({"event": "task.leased", "at": at + 2_000_000, **task, "waited_seconds": 2.0})
        ended = {"held_seconds": 3.0, "waited_seconds": 2.0 if number != 1 else 31.0}
        lines.append({"event": "task.deleted", "at": at + 5_000_000, **task, **ended})
    (project.folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = StateDir(project.folder / ".towline")
    files.path.mkdir()
    files.deaths.append({"at": now - 10, "worker": "resize-a", "pool": "resize", "lived_seconds": 120.0})
    return project


def rows_of(towline: Commands, *arguments: str) -> list[dict[str, object]]:
    told = towline("simulate", *arguments, "--json")
    assert told.code == exits.OK, told.err
    return cast("list[dict[str, object]]", cast("dict[str, object]", told.json)["rows"])


def test_a_csv_file_of_a_spreadsheet_is_read_whatever_mark_it_begins_with(project: Commands) -> None:
    rows = "arrival_s,service_s\n0,1\n1,1\n"
    told = []
    for text in (rows, f"\ufeff{rows}"):
        (project.folder / "arrivals.csv").write_text(text, encoding="utf-8")
        told.append(rows_of(project, "arrivals.csv", "--slo", "30s"))
    assert told[0] == told[1]
    (project.folder / "arrivals.csv").write_text(rows, encoding="utf-16")
    refused = project("simulate", "arrivals.csv", "--slo", "30s")
    assert refused.code == exits.BAD_DATA
    assert "in UTF-8" in refused.err


def test_a_shape_is_simulated_without_any_file(towline: Commands) -> None:
    told = towline("simulate", "--shape", SHAPE, "--slo", "30s")
    assert told.code == exits.OK
    assert "OF HINDSIGHT" in told.out
    for name in ("(hindsight)", "towline", "one-per-task", "keda-hpa", "celery", "target-tracking", "fixed"):
        assert f"\n{name} " in told.out


def test_several_slos_show_what_each_would_cost(towline: Commands) -> None:
    rows = rows_of(towline, "--shape", SHAPE, "--slo", "5,20,60s", "--rules", "none")
    assert [row["slo_seconds"] for row in rows] == [5.0, 20.0, 60.0]
    costs = [cast("float", row["worker_seconds"]) for row in rows]
    assert costs == sorted(costs, reverse=True)


def test_every_pool_of_every_file_is_a_candidate(project: Commands) -> None:
    (project.folder / "idea.yaml").write_text(SETTINGS.replace("30s", "10s"))
    rows = rows_of(project, "--shape", SHAPE, "-f", "towline.yaml", "-f", "idea.yaml", "--rules", "none")
    assert [(row["name"], row["slo_seconds"]) for row in rows] == [
        ("towline:resize", 30.0),
        ("towline:other", 60.0),
        ("idea:resize", 10.0),
        ("idea:other", 60.0),
    ]


def test_a_pool_keeps_its_bounds_unless_others_are_given(project: Commands) -> None:
    shape = "bursts:200,every=5m,service=2s,for=5m"
    (own,) = rows_of(project, "--shape", shape, "--pool", "resize", "--rules", "none")
    (more,) = rows_of(project, "--shape", shape, "--pool", "resize", "--rules", "none", "--max", "30")
    assert own["peak"] == 4
    assert 4 < cast("int", more["peak"]) <= 30


def test_counts_and_arrivals_are_read_from_files(towline: Commands) -> None:
    (towline.folder / "counts.csv").write_text("minute,count\n" + "".join(f"{m},{m % 7}\n" for m in range(10)))
    (towline.folder / "tasks.csv").write_text("arrival_s,service_s\n0,1\n5,2\n")
    counted = rows_of(
        towline, "counts.csv", "--slot", "60s", "--service", "2s", "--spread", "0", "--slo", "30", "--rules", "fixed"
    )
    assert [row["tasks"] for row in counted] == [24, 24]
    (listed,) = rows_of(towline, "tasks.csv", "--slo", "30", "--rules", "none", "--startup", "1.0,1.2")
    assert listed["tasks"] == 2


def test_a_lifecycle_log_is_read_for_the_pool_that_is_tried(ran: Commands) -> None:
    (row,) = rows_of(ran, "events.jsonl", "--pool", "resize", "--rules", "none")
    assert row["tasks"] == 20
    (row,) = rows_of(ran, "events.jsonl", "--pool", "resize", "--rules", "none", "--queue", "thumbs")
    assert row["tasks"] == 40


def test_a_backtest_sets_the_settings_against_what_was(ran: Commands) -> None:
    told = ran("backtest", "--since", "1h", "--pool", "resize", "--rules", "one-per-task", "--json")
    assert told.code == exits.OK, told.err
    report = cast("dict[str, dict[str, object]]", told.json)
    assert report["real"] == {
        "slo_seconds": 30.0,
        "late_share": 0.05,
        "p99_over_slo": pytest.approx(25.49 / 30.0, abs=1e-4),
        "worst_over_slo": pytest.approx(31.0 / 30.0, abs=1e-4),
        "wait_p50": 2.0,
        "wait_p95": pytest.approx(3.45),
        "wait_p99": pytest.approx(25.49),
        "wait_max": 31.0,
        "worker_seconds": 120.0,
    }
    assert [row["name"] for row in cast("list[dict[str, object]]", report["rows"])] == ["resize", "one-per-task"]


def test_a_backtest_shows_every_pool_and_only_the_time_asked_for(ran: Commands) -> None:
    told = ran("backtest", "--rules", "none")
    assert told.code == exits.OK
    assert told.out.count("(as it was)") == 2
    assert ran("backtest", "--since", "1s").code == exits.BAD_DATA


def test_how_late_is_shown_beside_how_many(ran: Commands) -> None:
    told = ran("backtest", "--since", "1h", "--pool", "resize", "--rules", "one-per-task", "--chart", "--svg", "a.svg")
    assert told.code == exits.OK, told.err
    heads = told.out[told.out.index("WHAT") :].splitlines()[0].split()
    assert heads[2:5] == ["LATE", "P99/SLO", "WORST/SLO"]
    assert "(as it was) 30 s 5.00% 0.85 1.03 2 s" in " ".join(told.out.split())
    assert re.search(r"^resize at 30 s: workers \(\d\.\d\d% late, p99 ", told.out, re.MULTILINE)
    drawn = (ran.folder / "a.svg").read_text()
    assert re.search(r">\d\.\d\d worker-hours; \d+\.\d\d% late; half of the waits under [^<]+ of the slo<", drawn)
    assert ">slo 30 s<" in drawn
    report = cast(
        "dict[str, list[dict[str, float]]]", ran("backtest", "--since", "1h", "--pool", "resize", "--json").json
    )
    for row in report["rows"]:
        assert row["worst_over_slo"] == pytest.approx(row["wait_max"] / 30.0, abs=1e-4)
        assert row["p99_over_slo"] == pytest.approx(row["wait_p99"] / 30.0, abs=1e-4)


def test_charts_are_drawn_on_the_terminal_and_to_a_file(towline: Commands) -> None:
    told = towline("simulate", "--shape", SHAPE, "--slo", "30", "--rules", "fixed", "--chart", "--svg", "fleet.svg")
    assert told.code == exits.OK
    assert "arrivals per second" in told.out
    assert "█" in told.out
    root = ET.parse(towline.folder / "fleet.svg").getroot()
    assert root.tag.endswith("svg")
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["arrivals", *("workers", "longest wait") * 2]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["--shape", SHAPE], exits.NO_INPUT, "--slo 30s", id="no slo and no file"),
        pytest.param(["--slo", "30"], exits.USAGE, "either a file of arrivals or --shape", id="no arrivals"),
        pytest.param(["a.csv", "--slo", "30"], exits.NO_INPUT, "a.csv", id="no such file"),
        pytest.param(["--shape", "x", "--slo", "30"], exits.BAD_DATA, "no such shape", id="no such shape"),
        pytest.param(["--shape", SHAPE, "--slo", "soon"], exits.USAGE, "--slo", id="slo is no time"),
        pytest.param(["--shape", SHAPE, "--slo", "0"], exits.USAGE, "more than 0 s", id="slo is 0"),
        pytest.param(
            ["--shape", SHAPE, "--slo", "9", "--rules", "cellery"], exits.USAGE, "did you mean 'celery'", id="no rule"
        ),
        pytest.param(
            ["--shape", SHAPE, "--slo", "9", "--min", "9", "--max", "3"], exits.USAGE, "above max", id="bounds"
        ),
    ],
)
def test_what_cannot_be_simulated_is_told_with_a_fix(
    towline: Commands, arguments: list[str], code: int, said: str
) -> None:
    told = towline("simulate", *arguments)
    assert told.code == code
    assert said in told.err
    assert "Traceback" not in told.err


def test_a_pool_that_is_not_there_is_guessed_at(project: Commands) -> None:
    told = project("simulate", "--shape", SHAPE, "--pool", "resise")
    assert told.code == exits.NO_INPUT
    assert "did you mean 'resize'" in told.err


def test_a_backtest_without_a_log_says_how_to_keep_one(project: Commands) -> None:
    (project.folder / "towline.yaml").write_text(SETTINGS.replace("log: events.jsonl\n", ""))
    told = project("backtest")
    assert told.code == exits.NO_INPUT
    assert "log: events.jsonl" in told.err


def test_a_start_takes_and_computes_what_the_supervisor_measured(ran: Commands) -> None:
    files = StateDir(ran.folder / ".towline")
    learned = PolicyState(estimates=Estimates(executed=Startup(3, 0.5)))
    files.write_learned({"resize": learned.to_json()})
    files.write_usage({"appetites": WorkerUsages({"resize": WorkerUsage(1e6, 0.1, 0.3)}).to_json()})
    chosen = chosen_pools([ran.folder / "towline.yaml"], pool="resize", slo=None)
    world, notes = world_of(chosen, startup=None, cores=2)
    assert (world.startup_seconds, world.computed_start_seconds, world.fork_seconds) == (0.5, 0.3, None)
    assert notes == ["start-up as the supervisor measured it, 3 times"]


def test_where_workers_were_forked_only_the_first_is_simulated_as_executed(ran: Commands) -> None:
    files = StateDir(ran.folder / ".towline")
    learned = PolicyState(estimates=Estimates(executed=Startup(1, 2.5), forked=Startup(3, 0.02), forks=True))
    files.write_learned({"resize": learned.to_json()})
    files.write_usage({"appetites": WorkerUsages({"resize": WorkerUsage(1e6, 0.1, 2.0, 0.01)}).to_json()})
    chosen = chosen_pools([ran.folder / "towline.yaml"], pool="resize", slo=None)
    world, notes = world_of(chosen, startup=None, cores=2)
    assert (world.startup_seconds, world.computed_start_seconds, world.fork_seconds) == (2.5, 2.0, 0.02)
    assert world.mean_startup_seconds == 0.02
    assert notes == ["start-up as the supervisor measured it, 4 times"]
