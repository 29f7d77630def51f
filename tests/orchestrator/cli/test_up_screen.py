"""The screen of `towline up`: what is shown of events and of workers' output, in which order, and what is left out."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from orchestrator.base import events
from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.cli.fleet_events import OrphanedTask, fate_of, fleet_lines, not_in_force
from orchestrator.cli.up.output import BEGUN_SECONDS, MAX_LOOK_LINES, UpScreen
from orchestrator.supervisor.output import OutputBatch, WorkerLine
from queue_core.cli.event_lines import LineLayout
from queue_core.cli.worker_events import EventReader
from queue_core.task import QueueSpec

QUEUES = {"thumbs": QueueSpec("thumbs", max_leases=5)}
DECIDED = {
    "event": events.POOL_DECIDED,
    "level": "info",
    "pool": "resize",
    "current": 0,
    "target": 1,
    "why": "3 tasks waiting, no worker running",
    "limits": [],
    "notes": [],
    "busy": 0,
}
DIED = {
    "event": events.WORKER_REAPED,
    "level": "warning",
    "pool": "resize",
    "worker": "resize-d2v",
    "cause": "signalled",
    "detail": "ended by SIGKILL",
    "signal": 9,
    "held": 1,
    "tasks": [{"queue": "thumbs", "task": "_5", "fate": "given back"}],
    "seconds_ago": 0.5,
}
FAILED = {
    "event": "handler.failed",
    "level": "error",
    "queue": "thumbs",
    "handler": "resize",
    "task": "_5",
    "lease_number": 1,
    "error": "ValueError",
    "message": "no",
    "place": "tasks.py:9",
}


class ScreenStage:
    """A screen on a file, with a clock that stands still."""

    def __init__(self, file: TextIO, **given: object) -> None:
        self.file = file
        self.clock = ManualMonotonicClock()
        reader = EventReader(QUEUES, str(given.pop("level", "info")))
        self.screen = UpScreen(file, reader, LineLayout(names=10), self.clock, **given)  # type: ignore[arg-type]

    def shown(self, *lines: WorkerLine, skipped: dict[str, int] | None = None, is_last: bool = False) -> list[str]:
        """Show what is new, and return its lines without their times."""
        before = os.fstat(self.file.fileno()).st_size
        self.screen.step(OutputBatch(lines, skipped or {}), is_last=is_last)
        with Path(self.file.name).open(newline="") as written:
            written.seek(before)
            return [line.removeprefix("\r")[10:].rstrip() for line in written.read().split("\n")[:-1]]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TextIO]:
    with (tmp_path / "screen").open("a", encoding="utf-8") as file:
        yield file


def output(text: str, worker: str = "resize-d2v") -> WorkerLine:
    return WorkerLine("resize", worker, text)


def entry(**fields: object) -> WorkerLine:
    return output(json.dumps(FAILED | fields))


def test_output_comes_before_the_events_that_waited(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(DECIDED)
    assert stage.shown(output("resizing cat.jpg")) == [
        "resize-d2v | resizing cat.jpg",
        "resize     0 -> 1: 3 tasks waiting, no worker running",
    ]
    assert stage.shown() == []


def test_a_limit_that_a_decision_names_already_is_not_told_again(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(DECIDED | {"target": 0, "why": "1 task waits: max is 0", "limits": ["max is 0", "it is paused"]})
    assert stage.shown() == ["resize     stays at 0: 1 task waits: max is 0; it is paused"]


def test_a_trouble_is_not_told_again_as_the_reason_of_a_decision_that_changes_nothing(file: TextIO) -> None:
    late = "1 task has waited 2 s past its SLO of 1 s: max is 1"
    troubled = {"event": events.POOL_TROUBLED, "level": "warning", "pool": "resize", "sentence": late}
    stage = ScreenStage(file)
    stage.screen.take(troubled)
    stage.screen.take(DECIDED | {"current": 1, "target": 1, "why": late, "limits": ["max is 1"]})
    assert stage.shown() == [f"resize     ! {late}"]
    stage.screen.take(DECIDED | {"current": 1, "target": 2, "why": late})
    assert stage.shown() == [f"resize     1 -> 2: {late}"]


def test_the_header_comes_first(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(DECIDED)
    stage.screen.begin([f"{'Towline':>17}"])
    assert stage.shown(output("resizing cat.jpg"))[0] == "Towline"
    assert stage.shown() == []


def test_any_event_with_a_sentence_is_shown_as_that_sentence(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(
        {"event": "pool.unknown", "level": "warning", "pool": "resize", "sentence": "1 task waits.", "n": 1}
    )
    stage.screen.take({"event": "a.b", "level": "info", "sentence": "All is well."})
    stage.screen.take({"event": "source.odd", "level": "warning", "pool": "resize", "why": "it rains"})
    stage.screen.take({"event": events.SUPERVISOR_DRAINING, "level": "warning", "why": "this host is drained"})
    assert stage.shown() == [
        "resize     ! 1 task waits.",
        "All is well.",
        "resize     ! source odd: it rains",
        "           ! This host is drained: no worker is started until `towline undrain`.",
    ]


def test_inputs_are_shown_at_debug_only(file: TextIO) -> None:
    stage = ScreenStage(file, level="debug")
    stage.screen.take(DECIDED)
    (line,) = stage.shown()
    assert "busy=0" in line


def test_too_many_lines_are_left_out_and_counted_but_no_failure_is(file: TextIO) -> None:
    stage = ScreenStage(file)
    flood = [output(f"line {number}") for number in range(MAX_LOOK_LINES + 10)]
    shown = stage.shown(entry(), *flood, skipped={"resize-d2v": 1_200})
    assert shown[0] == (
        "resize-d2v | (1,211 lines were left out, as too many came at once; what is kept of them is in "
        ".towline/workers/resize-d2v.log)"
    )
    assert "failed (lease 1 of 5): ValueError: no, tasks.py:9" in shown[1]
    assert shown[-1] == f"resize-d2v | line {MAX_LOOK_LINES + 9}"


HUNG = [
    "Thread 0x00007f615cc566c0 (most recent call first):",
    '  File "/app/queue_core/worker/lifecycle.py", line 112 in next_end_request',
    '  File "/usr/lib/python3.11/threading.py", line 982 in run',
    "Current thread 0x00007f61603ffb80 (most recent call first):",
    '  File "/app/tasks.py", line 10 in resize',
    '  File "/app/queue_core/worker/invocation.py", line 150 in run',
    '  File "<frozen runpy>", line 88 in _run_code',
]


def test_of_a_dump_of_a_hung_workers_threads_the_users_lines_are_shown(file: TextIO) -> None:
    shown = ScreenStage(file).shown(output("before"), *map(output, HUNG), output("after"))
    assert [line.removeprefix("resize-d2v | ") for line in shown] == ["before", HUNG[3], HUNG[4], "after"]
    assert len(ScreenStage(file, level="debug").shown(*map(output, HUNG))) == len(HUNG)


def test_a_hung_worker_is_told_in_one_sentence_of_what_it_does(file: TextIO) -> None:
    stage = ScreenStage(file)
    hung = {"event": events.WORKER_UNRESPONSIVE, "level": "warning", "pool": "resize", "worker": "resize-d2v"}
    stage.screen.take(hung | {"seconds": 0.081, "condition": "resize runs on without its lease, at tasks.py:10"})
    stage.screen.take(hung | {"seconds": 12.0, "condition": ""})
    assert stage.shown() == [
        "resize-d2v ! resize runs on without its lease, at tasks.py:10; another worker takes its place",
        "resize-d2v ! not responding for 12 s; another worker takes its place",
    ]


def test_what_the_line_of_a_workers_end_says_is_not_told_before_it(file: TextIO) -> None:
    said = (
        {"event": "handler.stuck", "level": "warning", "task": "_2", "reason": "it reached the queue's max_lease"},
        {"event": "worker.refused", "level": "error", "error": "AppImportError", "reason": "can't import tasks"},
    )
    assert ScreenStage(file).shown(*(output(json.dumps(one)) for one in said)) == []
    (line,) = ScreenStage(file).shown(output(json.dumps(said[1] | {"error": "AppError", "reason": "no handler"})))
    assert line == "resize-d2v x can't work: no handler"


def test_a_pool_that_stays_as_its_application_cannot_be_used_is_told_once(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(DECIDED | {"current": 0, "target": 0, "limited_by": ["misconfigured"], "limits": ["told before"]})
    assert stage.shown() == []
    stage.screen.take(DECIDED | {"current": 2, "target": 2, "limits": ["max is 2"]})
    assert stage.shown() == ["resize     stays at 2: 3 tasks waiting, no worker running; max is 2"]


def test_an_application_that_cannot_be_imported_is_told_once(file: TextIO) -> None:
    stage = ScreenStage(file)
    lost = {"event": events.TEMPLATE_LOST, "level": "warning", "pool": "resize"}
    stage.screen.take(lost | {"reason": "can't import tasks: tasks.py:11: expected ':'"})
    assert stage.shown() == []
    stage.screen.take(lost | {"reason": "ended by SIGKILL"})
    assert stage.shown() == ["resize     ! template lost: ended by SIGKILL"]


def test_without_output_failures_are_shown_all_the_same(file: TextIO) -> None:
    stage = ScreenStage(file, shows_output=False)
    (line,) = stage.shown(output("a line"), entry(), skipped={"resize-d2v": 5})
    assert "failed" in line


def test_a_death_waits_a_moment_for_its_task_to_be_begun_again(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(DIED)
    assert stage.shown() == []
    stage.clock.advance(BEGUN_SECONDS)
    assert stage.shown() == [
        "resize-d2v x killed by SIGKILL; its task is waiting for another worker   (towline why-died resize-d2v)"
    ]


def test_after_a_second_request_to_stop_a_death_is_said_to_be_asked_for(file: TextIO) -> None:
    stage = ScreenStage(file)
    stage.screen.take(
        {
            "event": events.SUPERVISOR_STOPPING,
            "level": "info",
            "held": [{"worker": "resize-d2v", "task": "_9", "seconds": 8.0}],
            "held_total": 3,
            "grace_seconds": 30.0,
        }
    )
    stage.screen.take(DIED | {"cause": "asked twice", "detail": "ended: you asked twice"})
    stage.screen.take({"event": events.WORK_COUNTED, "done": 41, "dead": 1, "waiting": 4, "store": "sqlite:///a.db"})
    assert stage.shown() == [
        "Finishing 3 tasks (resize-d2v, task _9, 8 s so far; 2 more), for at most 30 s. Ctrl-C again ends it at once.",
        "resize-d2v x ended: you asked twice; its task is waiting in the queue   (towline why-died resize-d2v)",
    ]
    assert stage.shown(is_last=True) == ["Stopped. 41 done, 1 dead, 4 still wait in sqlite:///a.db."]


def test_failures_that_were_counted_are_told_before_the_end(file: TextIO) -> None:
    stage = ScreenStage(file)
    assert len(stage.shown(entry(), entry(task="_6"), entry(task="_7"))) == 1
    stage.screen.take({"event": events.WORK_COUNTED, "done": 1, "dead": 0, "waiting": 1, "store": "memory:"})
    assert stage.shown(is_last=True) == [
        "resize     x 2 more failures like this since then (not shown): ValueError, tasks.py:9",
        "Stopped. 1 done, 0 dead, 1 still waits in memory:.",
    ]


@pytest.mark.parametrize(
    ("fates", "restarted_after", "said"),
    [
        pytest.param(["given back"], 0.17, "its task was restarted after 0.17 s", id="one"),
        pytest.param(["given back"] * 2, 1.0, "its 2 tasks were restarted after 1 s", id="two"),
        pytest.param(["dead"], None, "its task is dead", id="dead"),
        pytest.param(["held back"], None, "its task will run alone", id="suspected"),
        pytest.param([], None, "", id="none"),
    ],
)
def test_what_became_of_a_dead_workers_tasks(fates: list[str], restarted_after: float | None, said: str) -> None:
    tasks = [OrphanedTask("thumbs", "_5", fate) for fate in fates]
    assert fate_of(tasks, held=len(tasks), restarted_after=restarted_after) == said


def test_a_reload_names_each_change_and_what_waits_for_a_restart() -> None:
    changes = [
        {"pool": "resize", "kind": "changed", "settings": ["slo"], "replaces": False},
        {"pool": "encode", "kind": "changed", "settings": ["workers.max: 8 -> 3"], "replaces": False},
    ]
    reloaded = {"event": events.SUPERVISOR_RELOADED, "changes": changes, "queues": [], "next_start": ["server.listen"]}
    lines = fleet_lines(reloaded, EventReader())
    assert [(line.name, line.mark, line.text) for line in lines] == [
        ("resize", "", "slo changed; no worker is replaced"),
        ("encode", "", "workers.max: 8 -> 3; no worker is replaced"),
        ("", "!", not_in_force("server.listen")),
    ]
    refused = {"event": events.SUPERVISOR_RELOAD_REFUSED, "level": "error", "mistakes": ["towline.yaml:3: no"]}
    (line,) = fleet_lines(refused, EventReader())
    assert line.more == ("towline.yaml:3: no",)


def test_a_decision_that_is_made_again_within_a_moment_is_counted(file: TextIO) -> None:
    stage = ScreenStage(file)
    again = {**DECIDED, "target": 6, "why": "84 tasks waiting, no worker running"}
    for current in (0, 2, 4):
        stage.screen.take({**again, "current": current})
    assert stage.shown() == ["resize     0 -> 6: 84 tasks waiting, no worker running"]
    stage.clock.advance(3.5)
    assert stage.shown() == ["resize     4 -> 6: 84 tasks waiting, no worker running (2 more times)"]
    assert stage.shown(is_last=True) == []
    stage.screen.take({**again, "current": 5})
    assert stage.shown() == ["resize     5 -> 6: 84 tasks waiting, no worker running"]
