"""`towline doctor` replays the last day of the lifecycle log, and says where a worker per task had done better."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.doctor_last_day import tail
from orchestrator.scaling.estimates import Startup
from orchestrator.scaling.learning import PolicyState
from orchestrator.state.directory import StateDir
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


def last_day(towline: Commands) -> list[dict[str, str]]:
    found = cast("list[dict[str, str]]", towline("doctor", "--json").json)
    return [each for each in found if each["check"] == "last day"]


@pytest.fixture
def busy(towline: Commands) -> Commands:
    """A project that did bursts of tasks for hours in which a pool that keeps its workers costs far too much."""
    now = SystemMonotonicClock().wall_seconds()
    lines = []
    for number in range(600):
        at = round((now - 20_000 + number // 20 * 600 + number % 20) * 1e6)
        task = {"queue": "thumbs", "task": f"t{number}", "tag": "resize"}
        lines.append({"event": "task.added", "at": at, **task})
        ended = {"held_seconds": 3.0, "waited_seconds": 2.0}
        lines.append({"event": "task.deleted", "at": at + 5_000_000, **task, **ended})
    (towline.folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("workers: {max: 4}", "workers: {max: 4}, churn: 1h"))
    startup = replace(PolicyState().estimates, executed=Startup(5, 1.0))
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    files.write_learned({"resize": replace(PolicyState(), estimates=startup).to_json()})
    return towline


def test_doctor_says_where_a_worker_per_task_would_have_done_better(busy: Commands) -> None:
    worse, other = last_day(busy)
    assert worse["level"] == "warn"
    assert re.fullmatch(
        r"resize: over the last 5 h \d\d min \(600 tasks\) a worker per task would have "
        r"cost \d\d% less and been (no later|less late) \(p99 .*\); as it was: p99 0.067 slo, 0.0% late",
        worse["found"],
    )
    assert worse["fix"] == "`towline backtest --pool resize` replays it with other settings"
    assert (other["level"], other["found"]) == (
        "ok",
        "other: not compared with a worker per task: the log has 0 tasks of the last day, 200 are needed",
    )


def test_doctor_replays_the_newest_tasks_of_a_long_log_and_says_so(
    busy: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cli.commands.doctor_last_day.MAX_TASKS", 500)
    told, _ = last_day(busy)
    assert "(250 tasks, the newest of the log)" in told["found"]
    monkeypatch.setattr(
        "orchestrator.cli.commands.doctor_last_day.MAX_BYTES", (busy.folder / "events.jsonl").stat().st_size // 2
    )
    told, _ = last_day(busy)
    assert "(250 tasks, the newest of the log)" in told["found"]


def test_doctor_stops_replaying_when_it_has_taken_long(busy: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.commands.doctor_last_day.MAX_SECONDS", -1.0)
    assert any("resize: not compared with a worker per task: the others took" in f["found"] for f in last_day(busy))


@pytest.mark.parametrize(
    ("settings", "lack"),
    [
        pytest.param(SETTINGS.replace("log: events.jsonl\n", ""), "there is no lifecycle log", id="no log"),
        pytest.param(
            SETTINGS.replace("events.jsonl", "none.jsonl"), "nothing is recorded in none.jsonl yet", id="none there"
        ),
        pytest.param(SETTINGS, "other: not compared with a worker per task: the log has 0 tasks", id="few tasks"),
        pytest.param(
            SETTINGS.replace("tags: [resize], ", "").replace("untagged: true, ", ""),
            "other works on the same tasks",
            id="shared tasks",
        ),
        pytest.param(SETTINGS.replace("slo: 30s", "slo: 30s, budget: 5h/day"), "budget", id="a budget"),
        pytest.param("supervisor: {state_dir: elsewhere}\n" + SETTINGS, "no start of its workers", id="no start"),
    ],
)
def test_a_pool_that_cant_be_compared_is_told_with_what_is_missing(busy: Commands, settings: str, lack: str) -> None:
    (busy.folder / "towline.yaml").write_text(settings)
    found = last_day(busy)
    assert {each["level"] for each in found} == {"ok"}
    assert any(lack in each["found"] for each in found), found


def test_the_end_of_a_log_is_read_by_whole_lines_over_a_rotation(tmp_path: Path) -> None:
    older, newer = tmp_path / "log.1", tmp_path / "log"
    older.write_text("one\ntwo\nthree\n")
    newer.write_text("four\nfive\n")
    for bytes_, lines in ((100, 5), (24, 5), (23, 4), (17, 3), (16, 3), (15, 2), (10, 2), (9, 1), (5, 1), (4, 0)):
        expected = ["one\n", "two\n", "three\n", "four\n", "five\n"][5 - lines :]
        assert list(tail([older, newer], max_bytes=bytes_)) == expected, bytes_
