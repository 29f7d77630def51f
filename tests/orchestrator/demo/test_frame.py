"""A frame of the demo's view fits its terminal, and its figures are those of one instant."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.demo.figures import figures_of, recorded_figures
from orchestrator.demo.fleet_page import fleet_chart, fleet_section
from orchestrator.demo.frame import clock_of, decision_line, frame_of, status_line, summary_of
from orchestrator.demo.record import Outcome
from orchestrator.demo.run_state import DemoRun
from orchestrator.demo.script import Script
from queue_core.clock import Instant
from queue_core.stats import QueueStats, TagStats

NOW = Instant(1_000_000_000)
LATER = Instant(NOW + 1_200_000)
DECISION = {
    "pool": "parse",
    "current": 1,
    "target": 2,
    "limited_by": ["max"],
    "why": "115 ready, #82 is 0.4 s old: now",
}
OUTCOME = Outcome(
    added=101, done=101, left=0, lost=0, dead=0, duplicated=0, peak_workers=12, final_workers=0, wait_p50=1.2,
    wait_p95=3.15, slo=5.0, decisions=45, killed=1, restarted_seconds=0.032, pages=51, seconds=51.4, report="r.html",
)  # fmt: skip


def a_run(folder: Path, *, seconds: float = 12.4) -> DemoRun:
    """A run of 1,277 tasks, `seconds` after its beginning."""
    modules = tuple((f"m{number}", Path("m.py")) for number in range(638))
    run = DemoRun(Script(60.0, modules, (0.0,) * 638, 0.1, 30.0), folder, began_at=NOW, elapsed_seconds=seconds)
    parse = QueueStats("library", ready=1_039, in_flight=3, deleted_total=300, oldest_ready_at=NOW, as_of=LATER)
    render = QueueStats("library", ready=7, in_flight=2, deleted_total=233)
    counts = [TagStats("parse", parse), TagStats("render", render)]
    workers = ["parse-a", "parse-b", "parse-c", "render-a"]
    run.history = [figures_of(counts, workers[:at], now=NOW, at_seconds=at * seconds / 4) for at in range(1, 5)]
    for _ in range(20):
        run.add_to_log("decision", decision_line(DECISION))
    run.add_to_log("note", "killed parse-a (SIGKILL) in the middle of a task")
    return run


def lines_of(run: DemoRun, columns: int, lines: int) -> list[str]:
    return [line.plain for line in frame_of(run, columns=columns, lines=lines)]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (72, 18), (71, 17), (40, 10), (30, 8)], ids=str)
@pytest.mark.parametrize("seconds", [0.0, 12.4, 75.0])
def test_a_frame_fits(size: tuple[int, int], seconds: float, tmp_path: Path) -> None:
    run = a_run(tmp_path, seconds=seconds)
    for is_stopped, is_over in ((False, False), (True, False), (True, True), (False, True)):
        run.is_stopped, run.is_over = is_stopped, is_over
        shown = lines_of(run, *size)
        assert len(shown) <= size[1]
        assert max(len(line) for line in shown) <= size[0]
        assert "533 of " in " ".join(shown[:2])


@pytest.mark.parametrize(
    ("size", "parse"),
    [
        ((80, 24), "parse    ███···  3    1,039          3     300          1.2 s"),
        ((40, 10), "parse          3  1,039          3"),
    ],
    ids=str,
)
def test_a_pool_is_a_line(size: tuple[int, int], parse: str, tmp_path: Path) -> None:
    shown = lines_of(a_run(tmp_path), *size)
    assert parse in shown
    assert " 12 s  killed parse-a (SIGKILL) in the" in "\n".join(shown)


def test_a_low_terminal_keeps_the_newest_messages_whole(tmp_path: Path) -> None:
    shown = lines_of(a_run(tmp_path), 40, 10)
    assert shown[-2:] == [" 12 s  killed parse-a (SIGKILL) in the", "       middle of a task"]
    assert shown[-3] == " 12 s  parse  1 -> 2"


def test_a_number_stays_with_its_unit(tmp_path: Path) -> None:
    run = DemoRun(a_run(tmp_path).script, tmp_path)
    run.add_to_log("decision", "render 1 -> 0: worker 1 not needed for 5 s, no other task due in, limit 1 s")
    assert lines_of(run, 80, 24)[-1] == "       1 s"


def test_a_clock_ends_with_the_run(tmp_path: Path) -> None:
    run = a_run(tmp_path, seconds=59.9)
    assert clock_of(run) == "59 s of 60 s"
    run = a_run(tmp_path, seconds=64.2)
    assert clock_of(run) == "60 s, then 5 s to finish"
    run.is_over = True
    assert clock_of(run) == "done in 64 s"
    run.is_stopped = True
    assert clock_of(run) == "stopped after 64 s"
    run = a_run(tmp_path, seconds=49.46)
    run.is_over = True
    outcome = replace(OUTCOME, seconds=round(run.elapsed_seconds, 1))
    assert clock_of(run) == "done in 50 s"
    assert "done in 50 s;" in summary_of(outcome)[0]


def test_figures_by_the_store_and_by_the_log_agree(tmp_path: Path) -> None:
    run = DemoRun(Script(60.0, (), (), 0.1, 30.0), tmp_path)
    for name, task, tag in (
        *(("task.added", f"p{number}", "parse") for number in range(5)),
        *(("task.leased", f"p{number}", "parse") for number in range(4)),
        ("task.deleted", "p0", "parse"),
        ("task.added", "r0", "render"),
        ("lease.released", "p1", "parse"),
        ("lease.expired", "p2", "parse"),
        ("task.died", "p3", "parse"),
    ):
        run.record.take({"event": name, "task": task, "tag": tag, "worker": "w", "at": 1})
    counts = [
        TagStats("parse", QueueStats("library", ready=3, in_flight=0, deleted_total=1)),
        TagStats("render", QueueStats("library", ready=1)),
    ]
    by_store = figures_of(counts, ["parse-x"], now=NOW, at_seconds=1.0)
    assert recorded_figures(run.record, ["parse-x"], at_seconds=1.0) == by_store
    assert (by_store.total.workers, by_store.total.ready, by_store.total.done) == (1, 4, 1)


def test_a_line_without_a_screen_has_the_same_figures(tmp_path: Path) -> None:
    expected = "12 s of 60 s: 533 of 1,277 tasks done, 1,046 ready, 5 in flight, 4 workers"
    assert status_line(a_run(tmp_path)) == expected
    assert decision_line(DECISION) == "parse  1 -> 2: 115 ready, #82 is 0.4 s old: now [max]"
    assert "\x1b" not in decision_line(DECISION | {"why": "a\x1b[2Jb"})


@pytest.mark.parametrize(
    ("outcome", "first", "is_good"),
    [
        pytest.param(OUTCOME, "101 of 101 tasks done in 51 s; 0 left", True, id="to the end"),
        pytest.param(
            replace(OUTCOME, done=60, left=41, stopped=True),
            "60 of 101 tasks done in 51 s, then stopped; 41 left",
            True,
            id="stopped",
        ),
        pytest.param(replace(OUTCOME, done=60, left=41), "60 of 101 tasks done in 51 s; 41 left", False, id="stalled"),
        pytest.param(
            replace(OUTCOME, done=60, left=40, lost=1, stopped=True),
            "60 of 101 tasks done in 51 s, then stopped; 40 left",
            False,
            id="one is lost",
        ),
    ],
)
def test_a_summary_says_what_was_done(outcome: Outcome, first: str, *, is_good: bool) -> None:
    assert summary_of(outcome)[0] == first
    assert summary_of(outcome)[3] == "1 worker killed; its task began again after 32 ms"
    assert outcome.is_good == is_good


def test_the_report_tells_the_run_in_a_picture_and_in_words(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.killed = [("parse-<a>", Instant(NOW + 6_200_000))]
    run.record.take({"event": "task.added", "task": "m", "tag": "parse", "at": NOW + 1_000_000})
    run.record.take(
        {
            "event": "task.leased",
            "task": "m",
            "tag": "parse",
            "worker": "w",
            "at": NOW + 3_000_000,
            "waited_seconds": 2.0,
        }
    )
    chart = fleet_chart(run)
    assert [panel.name for panel in chart.panels] == ["backlog", "workers", "waits", "arrivals"]
    assert chart.seconds == 12.4
    assert [(mark.at_seconds, mark.text) for mark in chart.marks] == [(6.2, "parse-<a> killed")]
    assert chart.panels[2].limit == (5.0, "slo 5 s")
    assert max(value for _, value in chart.panels[2].curves[0].steps) == 2.0
    html = fleet_section(run, OUTCOME)
    assert html.count("<svg ") == 2
    assert "After 6 s parse-&lt;a&gt; was killed in the middle of a task. That task began again 32 ms later." in html
    assert "<a>" not in html
