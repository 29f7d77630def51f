"""`towline logs`: whose lines are printed, in which order, how they look, and what a task's are."""

import json
import os
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.logs import HeldBy, TaskLines
from orchestrator.cli.worker_lines import LinePrinter, shown_lines
from orchestrator.runtimes.worker_output import OutputPosition
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.output import FleetOutput, OutputBatch, OutputFollower, WorkerLine
from queue_core.cli import exits
from queue_core.client.connect import open_queues
from queue_core.task import QueueSpec
from tests.support.commands import Commands

SETTINGS = """\
store: "memory:"
queues: {thumbs: {max_leases: 5}}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s}
"""


def entry(at: int, event: str = "said", **fields: object) -> str:
    return json.dumps({"timestamp": datetime.fromtimestamp(at, UTC).isoformat(), "event": event, **fields})


def write(folder: Path, worker: str, *lines: str) -> None:
    logs = folder / ".towline" / "workers"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{worker}.log").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    kinds = {"swarmed": "swarm", "elsewhere": "external", "contained": "docker", "new": "process"}
    pools = {name: {"settings": {"runtime": kind}} for name, kind in kinds.items()}
    files.write_snapshot({"workers": [{"worker": "odd", "pool": "resize"}], "pools": pools})
    files.deaths.append({"worker": "gone-by-name", "pool": "other"})
    return towline


def shown(towline: Commands, *arguments: str) -> list[str]:
    told = towline("logs", *arguments)
    assert told.code == 0, told.err
    return told.out.splitlines()


def test_what_a_template_writes_is_shown_among_its_pools_lines_under_a_name_of_its_own(towline: Commands) -> None:
    write(towline.folder, "resize-k2ac81", entry(20, "two"))
    write(towline.folder, "re-size.template", "of another pool")
    write(towline.folder, "resize.template", entry(10, "imported"))
    lines = ["resize.template | 00:00:10 imported", "resize-k2ac81   | 00:00:20 two"]
    assert shown(towline, "resize") == lines
    assert shown(towline, "resize.template") == ["00:00:10 imported"]
    assert shown(towline, "re-size") == ["re-size.template | of another pool"]


def test_the_lines_of_several_workers_are_merged_by_the_times_in_them(towline: Commands) -> None:
    write(towline.folder, "resize-a", entry(10, "one"), "plain after one", entry(30, "three"))
    write(towline.folder, "resize-bb", "plain before two", entry(20, "two"))
    assert shown(towline) == [
        "resize-a  | 00:00:10 one",
        "resize-a  | plain after one",
        "resize-bb | plain before two",
        "resize-bb | 00:00:20 two",
        "resize-a  | 00:00:30 three",
    ]
    assert shown(towline, "--lines", "1") == ["resize-a | 00:00:30 three"]


def test_a_pool_a_worker_or_the_beginning_of_its_name_is_chosen_also_of_those_that_ended(towline: Commands) -> None:
    write(towline.folder, "resize-a", "a")
    write(towline.folder, "odd", "b")
    write(towline.folder, "gone-by-name", "c")
    assert sorted(line.split(" | ")[1] for line in shown(towline, "resize")) == ["a", "b"]
    assert shown(towline, "other") == ["gone-by-name | c"]
    assert shown(towline, "gone") == ["c"]  # without a prefix, as there is one worker
    assert shown(towline, "odd", "--json") == ['{"pool": "resize", "worker": "odd", "line": "b"}']


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("nobody", "pools: resize; workers: resize-b, resize-a", id="unknown"),
        pytest.param("resize-", "2 workers' names begin with 'resize-'", id="several"),
        pytest.param("swarmed", "docker service logs", id="swarm"),
        pytest.param("elsewhere", "its platform keeps it", id="external"),
        pytest.param("contained", "docker logs CONTAINER", id="docker"),
        pytest.param("new", "no worker of it has written anything yet", id="nothing yet"),
        pytest.param("../../towline", "there is no pool or worker", id="a path"),
    ],
)
def test_whose_output_is_not_here_is_told_with_the_names_that_are(towline: Commands, name: str, told: str) -> None:
    for second, worker in enumerate(("resize-a", "resize-b")):
        write(towline.folder, worker, "x")
        os.utime(towline.folder / ".towline" / "workers" / f"{worker}.log", (second, second))
    refused = towline("logs", name)
    assert (refused.code, refused.out) == (exits.NO_INPUT, "")
    assert told in refused.err


def test_since_leaves_out_what_is_older(towline: Commands) -> None:
    now = int(SystemMonotonicClock().wall_seconds())
    write(towline.folder, "resize-a", entry(now - 7200, "old"), "old too", entry(now - 60, "new"), "new too")
    assert [line.split()[-1] for line in shown(towline, "resize-a", "--since", "10m")] == ["new", "too"]
    assert len(shown(towline, "resize-a", "--since", "3h")) == 4


def test_since_is_a_time_of_the_past(towline: Commands) -> None:
    told = towline("logs", "--since", "-5")
    assert (told.code, told.out) == (exits.USAGE, "")
    assert "'--since': -5: a duration must be between 0 s and 3,650 days" in told.err


def test_an_entry_is_shown_for_people_with_its_traceback_in_full() -> None:
    text = entry(1, "handler.failed", level="error", worker="w", task="t", message="bad", traceback="Trace:\n  x.py\n")
    level, lines = shown_lines(text)
    assert level == "error"
    assert lines == ["00:00:01 [error] handler.failed task=t message=bad", "    Trace:", "      x.py"]
    for plain in ("text", "{broken", '{"no": "event"}', "[1]"):
        assert shown_lines(plain) == ("", [plain])


def test_an_entrys_time_is_that_of_the_clock_of_the_person_who_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        _, (line,) = shown_lines('{"event":"worker.started","timestamp":"2026-11-26T02:08:27.100Z"}')
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line == "11:08:27 worker.started"


def test_on_a_terminal_a_traceback_has_the_users_lines() -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/app/queue_core/worker/invocation.py", line 154, in _call\n    return 1\n'
        '  File "/app/tasks.py", line 8, in resize\n    raise ValueError\n    ^^^^^^\nValueError\n'
    )
    text = entry(1, "handler.failed", traceback=traceback)
    assert shown_lines(text, folds=True)[1][1:] == [
        "    Traceback (most recent call last):",
        '      File "/app/tasks.py", line 8, in resize',
        "        raise ValueError",
        "    ValueError",
    ]
    assert len(shown_lines(text)[1]) == 1 + len(traceback.splitlines())


def test_nothing_that_a_worker_writes_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;title\x07"
    texts = (evil, entry(1, evil, level="error", a=evil, b=f"\n{evil}\n"))
    lines = [WorkerLine("p", f"w{evil}", text) for text in texts]
    for colours in (True, False):
        LinePrinter(colours=colours).show(OutputBatch(lines, {f"w{evil}": 5}))
        assert "\x1b]" not in capsys.readouterr().out
    LinePrinter(as_json=True).show(OutputBatch(lines))
    assert "\x1b" not in capsys.readouterr().out


def test_each_worker_has_a_colour_of_its_own_and_what_was_left_out_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    printer = LinePrinter(colours=True)
    printer.show(OutputBatch([WorkerLine("p", "a", "1"), WorkerLine("p", "b", "2")], {"b": 2_000}))
    first, second, third = sorted(capsys.readouterr().out.splitlines(), key=lambda line: "not shown" in line)
    assert first.split("a")[0] != second.split("b")[0]
    assert "2,000 lines not shown" in third
    LinePrinter(as_json=True).show(OutputBatch((), {"b": -1}))
    assert json.loads(capsys.readouterr().out) == {"worker": "b", "skipped_lines": -1}


def test_one_workers_lines_have_its_name_once_there_is_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    printer = LinePrinter(is_one_worker=True)
    printer.show(OutputBatch([WorkerLine("p", "a", "1")]))
    printer.show(OutputBatch([WorkerLine("p", "b", "2")]))
    assert capsys.readouterr().out == "1\nb | 2\n"


def test_a_pools_lines_have_their_workers_name_from_the_first_one_on(capsys: pytest.CaptureFixture[str]) -> None:
    LinePrinter(is_one_worker=True, pool="p").show(OutputBatch([WorkerLine("p", "p-a", "1")]))
    assert capsys.readouterr().out == "p-a | 1\n"


def test_a_follower_goes_on_with_workers_that_come_and_go(tmp_path: Path) -> None:
    write(tmp_path, "resize-a", "before")
    output = FleetOutput(StateDir(tmp_path / ".towline"))
    _, positions = output.last(output.chosen("resize"), lines=9)
    write(tmp_path, "resize-a", "between")
    follower = OutputFollower(output, output.workers, positions=positions)
    assert [line.text for line in follower.new().lines] == ["between"]
    write(tmp_path, "resize-b", "first of another")
    assert [(line.worker, line.text) for line in follower.new().lines] == [("resize-b", "first of another")]
    (tmp_path / ".towline" / "workers" / "resize-a.log").unlink()
    assert follower.new() == OutputBatch([], {})


def test_a_flood_is_cut_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "resize-a", "x" * 99)
    output = FleetOutput(StateDir(tmp_path / ".towline"))
    follower = OutputFollower(output, output.workers, max_bytes=1000)
    write(tmp_path, "resize-a", *["y" * 99] * 1000)
    batch = follower.new()
    assert len(batch.lines) == 10
    assert batch.skipped == {"resize-a": 990}
    assert output.after({"resize-a": "resize"}, {"resize-a": OutputPosition()}).skipped == {}


def a_line(text: str, at: float | None = None, worker: str = "w") -> WorkerLine:
    return WorkerLine("p", worker, text, at, at is not None)


def test_a_tasks_lines_are_the_entries_that_name_it_and_plain_ones_from_while_it_was_held() -> None:
    lines = [
        a_line("too early"),
        a_line(entry(10, task="other"), 10),
        a_line("may be its own"),
        a_line(entry(20, task="mine"), 20),
        a_line("its own"),
        a_line("elsewhere", worker="v"),
        a_line(entry(40, task="other"), 40),
        a_line("too late"),
        a_line(entry(41, task="mine"), 41, worker="v"),
    ]
    chosen = TaskLines("mine", [HeldBy("w", 15, 25)])
    assert [line.text for line in chosen.of(OutputBatch(lines)).lines] == [
        "may be its own",
        lines[3].text,
        "its own",
        lines[8].text,
    ]
    assert [line.text for line in TaskLines("mine", []).of(OutputBatch(lines)).lines] == [lines[3].text, lines[8].text]


def test_a_celery_task_s_lines_are_found_by_celery_s_id(towline: Commands) -> None:
    celery_id = "1d7a9f2c-9be7-4f31-8a52-2f4f4c0a6b11"
    with closing(open_queues(f"sqlite:///{towline.folder}/celery.db")) as queues:
        queues.put_queue(QueueSpec("mail"))
        mail = queues.queue("mail")
        (added,) = mail.add(
            json.dumps({"properties": {}, "headers": {"id": celery_id}}, separators=(",", ":")).encode()
        )
        mail.lease(worker="resize-a")
    write(towline.folder, "resize-a", entry(10, task="other"), entry(20, "its own", task=added.name), "plain")
    store = ("--store", f"sqlite:///{towline.folder}/celery.db")
    told = towline("logs", "resize-a", "--task", celery_id, *store)
    assert told.out.splitlines() == [f"00:00:20 its own task={added.name}", "plain"]


def test_new_lines_are_a_tasks_while_it_is_held() -> None:
    batch = OutputBatch([a_line("plain"), a_line(entry(1, task="mine"), 1)])
    held = TaskLines("mine", [HeldBy("w", 100, float("inf"))])
    assert len(held.of_new(batch, now=150.0).lines) == 2
    assert len(held.of_new(batch, now=50.0).lines) == 1


def test_without_lines_it_says_so(towline: Commands) -> None:
    write(towline.folder, "resize-a", "x")
    assert towline("logs", "resize", "--lines", "0").err == "no lines\n"
