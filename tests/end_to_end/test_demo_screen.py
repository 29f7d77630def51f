"""The demo on a terminal: each frame has the store's own figures, and whatever ends it, the end is told."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyte
import pytest

from orchestrator.demo.pages import FLEET_PLACE
from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import QueueError
from queue_core.stats import QueueStats
from tests.screens.terminal import CLOCK, PseudoTerminal, Size, shown
from tests.support.commands import program_environment

SECONDS = 240.0
END_OF_FRAME = "\x1b[?2026l"
LEFT_SCREEN = "\x1b[?1049l"
POOL = re.compile(r"^(parse|render) +[█·]+ +([0-9]+) +([0-9,]+) +([0-9,]+) +([0-9,]+) ", re.MULTILINE)
WIDE = Size(80, 24)
NARROW = Size(40, 10)

Counts = Mapping[str, QueueStats]


@dataclass(frozen=True)
class PoolLine:
    """The figures of one pool in a frame."""

    workers: int
    ready: int
    in_flight: int
    done: int


@dataclass(frozen=True)
class Frame:
    """A frame, with the store's counts before its figures were read and after it was seen."""

    text: str
    size: Size
    before: Counts | None
    after: Counts | None

    @property
    def pools(self) -> dict[str, PoolLine]:
        return {
            found[1]: PoolLine(*(int(figure.replace(",", "")) for figure in found.groups()[1:]))
            for found in POOL.finditer(self.text)
        }


class DemoOnATerminal:
    """A running demo, the frames it has drawn, and its store, which is looked at between any two reads."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: PseudoTerminal, folder: Path) -> None:
        self.process = process
        self.terminal = terminal
        self.folder = folder
        self.frames: list[Frame] = []
        self._screen = pyte.Screen(terminal.size.columns, terminal.size.lines)
        self._stream = pyte.Stream(self._screen)
        self._fed = 0
        self._queues: HttpQueues | None = None
        self._counts: list[Counts | None] = [None]
        self._drawn_from: Counts | None = None

    def step(self) -> None:
        """Read what the demo has written, then look at the store.

        A frame that ends in this read was not whole in the read before, so the next figures are newer than the look
        before that one. Only frames with new figures count: one drawn again for a message or another size may come
        after the next figures were read.
        """
        before_last_read = self._counts[-2] if len(self._counts) > 1 else None
        self.terminal.read(0.05)
        self._counts.append(self._look())
        raw = self.terminal.raw
        while (end := raw.find(END_OF_FRAME, self._fed)) >= 0:
            end += len(END_OF_FRAME)
            frame = raw[self._fed : end]
            self._fed = end
            self._stream.feed(frame)
            text = "\n".join(line.rstrip() for line in self._screen.display).rstrip()
            found = Frame(text, self.terminal.size, self._drawn_from, self._counts[-1])
            if self.frames and self.frames[-1].pools in ({}, found.pools):
                # Drawn again, for a message or another size, with the figures of the frame before.
                found = Frame(text, found.size, self.frames[-1].before, found.after)
            else:
                self._drawn_from = before_last_read
            self.frames.append(found)
            if self.terminal.size == WIDE:
                assert text == shown(frame, WIDE), "something was left of the frame before"

    def resize(self, size: Size) -> None:
        self.terminal.resize(size)
        self._screen.resize(size.lines, size.columns)

    def close(self) -> None:
        if self._queues is not None:
            self._queues.close()

    def _look(self) -> Counts | None:
        if self._queues is None:
            settings = self.folder / "towline.yaml"
            found = re.search(r'listen: "unix:(.+?)"', settings.read_text()) if settings.exists() else None
            if found is None:
                return None
            self._queues = HttpQueues(f"unix:{found[1]}", retries=Retries(tries=1, timeouts=1))
        try:
            return {str(one.tag): one.stats for one in self._queues.queue("library").tag_stats()}
        except QueueError:  # not up yet, or no more
            return None


@contextmanager
def demo_on_a_terminal(tmp_path: Path, *, term: str = "xterm-256color") -> Iterator[DemoOnATerminal]:
    folder = tmp_path / "out"
    environment = program_environment() | {"TERM": term}
    with PseudoTerminal(WIDE) as terminal:
        with Path(terminal.path).open("r+b", buffering=0) as tty:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "demo", "--for", "20s", "--dir", str(folder)],
                cwd=tmp_path,
                env=environment,
                stdin=tty,
                stdout=tty,
                stderr=tty,
                start_new_session=True,
            )
        demo = DemoOnATerminal(process, terminal, folder)
        try:
            yield demo
        finally:
            demo.close()
            if process.poll() is None:
                process.terminate()
            process.wait()


def check(frame: Frame) -> None:
    """Check each figure against the store's counts before and after: it can be no other than one in between."""
    assert frame.before is not None
    assert frame.after is not None
    for pool, line in frame.pools.items():
        nothing = QueueStats("library")
        before, after = frame.before.get(pool, nothing), frame.after.get(pool, nothing)
        leased = after.leased_total - before.leased_total
        back = sum(getattr(after, total) - getattr(before, total) for total in ("released_total", "expired_total"))
        added, done = after.added_total - before.added_total, after.deleted_total - before.deleted_total
        assert before.deleted_total <= line.done <= after.deleted_total, frame.text
        assert before.ready - leased <= line.ready <= before.ready + added + back, frame.text
        assert before.in_flight - done - back <= line.in_flight <= before.in_flight + leased, frame.text


def test_every_frame_has_the_figures_of_the_store_and_the_last_one_none(tmp_path: Path) -> None:
    deadline = CLOCK.monotonic() + SECONDS
    with demo_on_a_terminal(tmp_path) as demo:
        sizes = iter([(60, NARROW), (68, WIDE)])
        at, size = next(sizes)
        while demo.process.poll() is None:
            demo.step()
            if len(demo.frames) >= at:
                demo.resize(size)
                at, size = next(sizes, (1 << 30, WIDE))
            assert CLOCK.monotonic() < deadline, shown(demo.terminal.raw, WIDE)
        demo.terminal.read_to_end()
        assert demo.process.returncode == 0, demo.terminal.raw
        raw, frames = demo.terminal.raw, demo.frames
    checked = [frame for frame in frames if frame.pools and frame.before is not None and frame.after is not None]
    for frame in checked:
        check(frame)
    assert len({str(frame.pools) for frame in checked}) >= 20
    narrow = [frame.text for frame in frames if frame.size == NARROW and frame.text.count("\n") < NARROW.lines]
    assert any(re.search(r"^parse +[0-9]+ +[0-9,]+ +[0-9]+$", text, re.MULTILINE) for text in narrow)
    clocks = [int(found[1]) for frame in frames for found in re.finditer(r"([0-9]+) s of 20 s", frame.text)]
    assert clocks
    assert max(clocks) <= 20
    last = shown(raw[raw.rindex(LEFT_SCREEN) + len(LEFT_SCREEN) :], Size(80, 40))
    pools = Frame(last, WIDE, None, None).pools
    assert {(line.workers, line.ready, line.in_flight) for line in pools.values()} == {(0, 0, 0)}
    summary = re.search(r"^([0-9,]+) of ([0-9,]+) tasks done in [0-9]+ s; 0 left$", last, re.MULTILINE)
    assert summary, last
    assert f"{summary[1]} of {summary[2]} done, 0 left" in last
    assert sum(line.done for line in pools.values()) == int(summary[1].replace(",", ""))


@pytest.mark.parametrize(("term", "number"), [("xterm-256color", signal.SIGINT), ("dumb", signal.SIGTERM)])
def test_a_demo_that_is_stopped_tells_what_was_done_and_leaves_a_report(
    tmp_path: Path, term: str, number: signal.Signals
) -> None:
    deadline = CLOCK.monotonic() + SECONDS
    with demo_on_a_terminal(tmp_path, term=term) as demo:
        while len(list((demo.folder / "report").glob("*.html"))) < 10:
            demo.step()
            assert CLOCK.monotonic() < deadline, shown(demo.terminal.raw, WIDE)
        demo.process.send_signal(number)
        while demo.process.poll() is None:
            demo.step()
            assert CLOCK.monotonic() < deadline, shown(demo.terminal.raw, WIDE)
        demo.terminal.read_to_end()
        raw = demo.terminal.raw
        assert demo.process.returncode == 0, raw
    if term == "dumb":
        assert "\x1b" not in raw
        assert max(len(line) for line in raw.splitlines() if "/" not in line) <= WIDE.columns
    text = shown(raw.rpartition(LEFT_SCREEN)[2], Size(200, 200))
    wanted = r"^([0-9,]+) of ([0-9,]+) tasks done in [0-9]+ s, then stopped; ([0-9,]+) left$"
    summary = re.search(wanted, text, re.MULTILINE)
    assert summary, text
    done, added, left = (int(figure.replace(",", "")) for figure in summary.groups())
    assert "0 lost, 0 dead, 0 run twice" in text
    with_store = open_queues(f"sqlite:///{demo.folder}/towline.db")
    stats = with_store.queue("library").stats()
    with_store.close()
    assert (stats.ready, stats.in_flight, stats.deleted_total) == (left, 0, done)
    assert added == done + left
    index = (demo.folder / "report" / "index.html").read_text()
    assert f"report: {demo.folder}/report/index.html" in text.replace("\n  ", " ")
    assert "<svg " in index
    assert FLEET_PLACE not in index
