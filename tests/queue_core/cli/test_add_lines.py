"""`towline add --lines`: counts what it adds, and when it stops, says which lines are added and how to go on."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from queue_core.limits import MAX_PAYLOAD_BYTES
from tests.support.commands import Commands, program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues: {thumbs: {lease: 30s, max_leases: 2}}
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Puts bytes into stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


def ready(towline: Commands) -> object:
    return cast("dict[str, object]", towline("stats", "thumbs", "--json").json)["ready"]


def test_lines_are_counted_and_their_names_are_not_printed(towline: Commands, piped: Callable[[bytes], None]) -> None:
    piped(b"".join(b"%d\n" % number for number in range(2500)))
    told = towline("add", "thumbs", "--lines")
    assert (told.code, told.out, told.err) == (0, "", "2,500 tasks added to thumbs\n")
    assert ready(towline) == 2500


def test_names_are_printed_where_they_are_asked_for(towline: Commands, piped: Callable[[bytes], None]) -> None:
    piped(b"a\nb\n")
    assert towline("add", "thumbs", "--lines", "--names").out == "_1\n_2\n"
    piped(b"a\nb\n")
    assert [cast("dict[str, str]", one)["name"] for one in towline("add", "thumbs", "--lines", "--json").lines] == [
        "_3",
        "_4",
    ]
    assert "--names goes with --lines" in towline("add", "thumbs", "a", "--names").err


def test_one_task_is_one_task(towline: Commands, piped: Callable[[bytes], None]) -> None:
    piped(b"\n\na\n\n")
    assert towline("add", "thumbs", "--lines").err == "1 task added to thumbs\n"


@pytest.mark.parametrize("text", [b"", b"\n\r\n"], ids=["nothing", "empty lines"])
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["", "json"])
def test_no_lines_say_so(towline: Commands, piped: Callable[[bytes], None], text: bytes, options: list[str]) -> None:
    piped(text)
    told = towline("add", "thumbs", "--lines", *options)
    assert (told.code, told.out, told.err) == (0, "", "no lines in stdin: nothing was added to thumbs\n")


@pytest.mark.parametrize(
    ("before", "added", "lines"),
    [
        pytest.param(b"", 0, None, id="the first line"),
        pytest.param(b"a\n", 1, "1 task, lines 1 to 1, is added", id="the second"),
        pytest.param(b"a\n\nb\n\n", 2, "2 tasks, lines 1 to 3, are added", id="after empty lines"),
        pytest.param(b"a\n" * 1500, 1500, "1,500 tasks, lines 1 to 1,500, are added", id="in the second call"),
    ],
)
def test_a_line_that_is_no_payload_is_named_and_what_came_before_it_is_added(
    towline: Commands, before: bytes, added: int, lines: str | None
) -> None:
    (towline.folder / "lines").write_bytes(before + b"x" * (MAX_PAYLOAD_BYTES + 1) + b"\nlast\n")
    told = towline("add", "thumbs", "--lines", "--from", "lines")
    assert told.code == 65
    number = len(before.splitlines()) + 1
    assert f"line {number:,} is longer than 1,048,576 bytes" in told.err
    assert ready(towline) == added
    if lines is None:
        assert "nothing is added yet" in told.err
    else:
        assert lines in told.err


def test_the_way_on_that_is_told_adds_the_others_once(towline: Commands, piped: Callable[[bytes], None]) -> None:
    bad = b"x" * (MAX_PAYLOAD_BYTES + 1)
    text = b"a\n\nb\n" + bad + b"\nc\nd\n"
    piped(text)
    told = towline("add", "thumbs", "--lines")
    begin = int(told.err.partition("tail -n +")[2].split()[0])
    mended = text.replace(bad, b"mended")
    piped(b"\n".join(mended.split(b"\n")[begin - 1 :]))
    towline("add", "thumbs", "--lines")
    page = cast("dict[str, list[dict[str, str]]]", towline("peek", "thumbs", "--json").json)
    assert [task["payload"] for task in page["tasks"]] == ["a", "b", "mended", "c", "d"]


def test_a_refused_batch_tells_the_lines_that_are_added(towline: Commands, piped: Callable[[bytes], None]) -> None:
    towline("queues", "storage", "--limit", "15kB")
    piped(b"0123456789\n" * 2000)
    told = towline("add", "thumbs", "--lines")
    assert told.code != 0
    assert "1,000 tasks, lines 1 to 1,000, are added" in told.err
    assert "tail -n +1001" in told.err
    assert ready(towline) == 1000


def test_an_interrupted_add_tells_what_is_added(towline: Commands) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "add", "thumbs", "--lines"],
        cwd=towline.folder,
        env=program_environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdin is not None and program.stderr is not None
    with program, program.stdin, program.stderr:
        program.stdin.write(b"a\n" * 1001)  # a call's worth of lines, and one that waits for more
        program.stdin.flush()
        eventually(lambda: ready(towline) == 1000)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
        assert program.stderr.read().split(b"\n")[0] in {
            b"interrupted: 1,000 tasks are added, lines 1 to 1,000",
            b"interrupted: 0 tasks are added; whether the next 1,000 are is not known",  # before the answer came
        }


def test_progress_and_count_leave_stdout_to_programs(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    told = run_program("add", "thumbs", "--lines", "--json", folder=tmp_path, stdin=b"a\nb\n")
    assert [json.loads(line)["status"] for line in told.out.splitlines()] == ["added", "added"]
    assert told.err == ""
