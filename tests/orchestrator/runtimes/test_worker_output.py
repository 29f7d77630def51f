"""Workers' output is read as it is written: its end, what is new, past rotations, and never without a bound."""

import os
from pathlib import Path

import pytest

from orchestrator.runtimes.worker_logs import MAX_LOG_BYTES, WorkerLogs
from orchestrator.runtimes.worker_output import OutputPiece, OutputPosition, WorkerOutput

PLENTY = 1 << 20


class LogStage:
    """A worker that writes, and a reader of what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.logs = WorkerLogs(folder / "workers")
        self.output = WorkerOutput(folder)
        self.position = OutputPosition()

    def write(self, text: str) -> None:
        with self.logs.path("w").open("a") as file:
            file.write(text)

    def new(self, *, max_bytes: int = PLENTY) -> OutputPiece:
        piece = self.output.after("w", self.position, max_bytes=max_bytes)
        self.position = piece.position
        return piece

    def new_texts(self) -> list[str]:
        return [line.text for line in self.new().lines]

    def rotate(self) -> None:
        """Fill the log, and rotate it."""
        self.write(f"{'x' * MAX_LOG_BYTES}\n")
        assert self.logs.rotate(["w"]) == ["w"]


@pytest.fixture
def stage(tmp_path: Path) -> LogStage:
    return LogStage(tmp_path)


def texts(piece: OutputPiece) -> list[str]:
    return [line.text for line in piece.lines]


def test_the_last_lines_are_read_and_what_comes_after_them(stage: LogStage) -> None:
    stage.write("".join(f"line {number}\n" for number in range(50_000)))
    piece = stage.output.last("w", lines=3)
    assert texts(piece) == ["line 49997", "line 49998", "line 49999"]
    stage.position = piece.position
    assert stage.new_texts() == []
    stage.write("more\n")
    assert stage.new_texts() == ["more"]


def test_a_line_is_shown_when_it_is_whole_and_at_the_end_as_it_is(stage: LogStage) -> None:
    stage.write("whole\nbegun")
    assert texts(stage.output.last("w", lines=9)) == ["whole", "begun"]
    assert stage.new_texts() == ["whole"]
    stage.write(" and ended\n")
    assert stage.new_texts() == ["begun and ended"]
    stage.write("y" * 70_000)
    assert [len(text) for text in stage.new_texts()] == [70_000]


def test_where_too_much_was_written_that_is_told(stage: LogStage) -> None:
    stage.write("first\n")
    assert stage.new_texts() == ["first"]
    stage.write("second\n")
    with stage.logs.path("w").open("a") as file:
        file.write(f"{'x' * 1000}\n" * (MAX_LOG_BYTES // 1000))
    assert stage.logs.rotate(["w"]) == ["w"]
    stage.write("third\n")
    piece = stage.new(max_bytes=2 * MAX_LOG_BYTES)
    assert (texts(piece), piece.skipped) == (["third"], -1)  # the place where it was is in neither file
    assert texts(stage.output.last("w", lines=2))[-1] == "third"


def test_what_was_written_between_a_look_and_a_rotation_is_not_lost(stage: LogStage) -> None:
    stage.write(f"{'x' * 1000}\n" * (MAX_LOG_BYTES // 1000))
    stage.position = stage.output.last("w", lines=1).position
    stage.write("before\n" + "z" * 5000 + "\n")
    assert stage.logs.rotate(["w"]) == ["w"]
    stage.write("after\n")
    piece = stage.new()
    assert [text[:6] for text in texts(piece)] == ["before", "zzzzzz", "after"]
    assert piece.skipped == 0
    # And where the new file is longer than the old one was, at the next rotation.
    stage.write(f"{'y' * 1000}\n" * (MAX_LOG_BYTES // 1000))
    stage.position = stage.output.last("w", lines=1).position
    stage.write("before\n")
    assert stage.logs.rotate(["w"]) == ["w"]
    stage.write(f"{'v' * 1000}\n" * (MAX_LOG_BYTES // 1000 + 1))
    assert texts(stage.new(max_bytes=4 * MAX_LOG_BYTES))[:2] == ["before", "v" * 1000]


def test_a_flood_is_read_from_near_its_end_and_what_is_left_out_is_counted(stage: LogStage) -> None:
    stage.write("0123456\n" * 100_000)
    piece = stage.new(max_bytes=1024)
    assert len(piece.lines) == 128
    assert piece.skipped == 100_000 - 128
    assert stage.new_texts() == []


def test_the_time_in_a_line_is_told_and_what_is_no_entry_is_text(stage: LogStage) -> None:
    stage.write('{"timestamp": "1970-01-01T00:01:00Z", "event": "x"}\n{"timestamp": "soon"}\n{broken\n[1]\n\n')
    lines = stage.output.last("w", lines=9).lines
    assert [line.at for line in lines] == [60.0, None, None, None]
    assert [line.entry is not None for line in lines] == [True, True, False, False]


def test_there_are_no_lines_of_a_worker_that_is_not_there(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path / "none")
    assert output.workers() == []
    assert list(output.last("w", lines=5).lines) == []
    assert output.after("w", OutputPosition(), max_bytes=9).lines == ()
    assert not (tmp_path / "none").exists()


def test_workers_are_told_by_when_they_last_wrote(stage: LogStage) -> None:
    stage.write("x\n")
    stage.logs.path("v").write_text("older\n")
    for number, worker in enumerate(["v", "w"]):
        os.utime(stage.logs.path(worker), (number, number))
    assert stage.output.workers() == ["v", "w"]
    assert [stage.output.written_at(worker) for worker in ("v", "w", "none")] == [0.0, 1.0, 0.0]
