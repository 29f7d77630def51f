"""`towline up` on terminals and into a pipe, with a handler that prints and one that fails."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from queue_core.client.connect import open_queues
from queue_core.task import NewTask, QueueSpec
from tests.screens.cases import BROKEN, Look
from tests.screens.terminal import PseudoTerminal, Seen, Size, noon
from tests.screens.test_screens import escapes, too_long
from tests.support.commands import program_environment
from tests.support.eventually import eventually

PRINTED: Final = "resizing a photograph that is 4,912 pixels wide to 320, 640 and 1,280 pixels, as the page asks for"
RAISED: Final = "the file uploads/2026/11/25/cat-17.jpeg is no image in any of the formats that this program can read"
SETTINGS: Final = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 1}
pools:
  resize-photographs: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 5s, workers: {min: 1, max: 1}, grace: 2s}
"""
TASKS: Final = f"""\
from queue_core import App
app = App()
@app.task(queue="thumbs", tag="resize")
def resize(task):
    print({PRINTED!r}, flush=True)
    raise ValueError({RAISED!r})
"""
LOOKS: Final[tuple[Look, ...]] = ("80 x 24", "40 x 10", "dumb", "pipe")


@dataclass(frozen=True, slots=True)
class UpSeen:
    """What `up` wrote from its start to Ctrl-C."""

    terminal: Seen
    errors: str = ""


@contextmanager
def running_up(folder: Path, stdout: int, stderr: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `up` with one task that prints and fails, and end it as Ctrl-C does."""
    (folder / "towline.yaml").write_text(SETTINGS)
    (folder / "tasks.py").write_text(TASKS)
    with closing(open_queues(f"sqlite:///{folder}/queue.db")) as queues:
        queues.put_queue(QueueSpec("thumbs", max_leases=1))
        queues.queue("thumbs").add(NewTask(b"cat.jpg", name="cat-17", tag="resize"))
    known = {name: text for name, text in program_environment().items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "up"],
        cwd=folder,
        env=known | {"TERM": "xterm-256color", "TZ": noon()} | environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()  # a killed one would leave its worker to the next supervisor
        process.wait(30)


@pytest.fixture(scope="module")
def seen_ups() -> dict[Look, UpSeen]:
    """All looks at once: each `up` waits most of the time."""
    with ExitStack() as stack:
        folders = {look: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="screens-"))) for look in LOOKS}
        terminals: dict[Look, PseudoTerminal] = {}
        for look in LOOKS[:-1]:
            terminals[look] = stack.enter_context(PseudoTerminal(Size(40, 10) if look == "40 x 10" else Size(80, 24)))
        programs = {}
        for look, terminal in terminals.items():
            slave = os.open(terminal.path, os.O_RDWR | os.O_NOCTTY)
            term = {"TERM": "dumb"} if look == "dumb" else {}
            programs[look] = stack.enter_context(running_up(folders[look], slave, slave, **term))
            os.close(slave)
        out, err = folders["pipe"] / "out", folders["pipe"] / "err"
        with out.open("wb") as out_file, err.open("wb") as err_file:
            streams = out_file.fileno(), err_file.fileno()
            programs["pipe"] = stack.enter_context(running_up(folders["pipe"], *streams))
        found: dict[Look, UpSeen] = {}
        for look, terminal in terminals.items():
            terminal.read_until(lambda terminal=terminal: "no image" in " ".join(terminal.raw.split()))  # type: ignore[misc]
            programs[look].send_signal(signal.SIGINT)
            terminal.read_until(lambda look=look: programs[look].poll() is not None)  # type: ignore[misc]
            terminal.read_to_end()
            found[look] = UpSeen(Seen(terminal.raw, terminal.size, programs[look].returncode))
        logs = folders["pipe"] / ".towline" / "workers"
        eventually(lambda: [log for log in logs.glob("*.log") if "no image" in log.read_text()], seconds=30)
        programs["pipe"].send_signal(signal.SIGINT)
        programs["pipe"].wait(30)
        found["pipe"] = UpSeen(Seen(out.read_text(), Size(10_000, 1), programs["pipe"].returncode), err.read_text())
        return found


def marked(name: str) -> list[object]:
    """The looks of a case, the broken ones marked."""
    return [
        pytest.param(look, marks=pytest.mark.xfail(reason=BROKEN[name, look], strict=True))
        if (name, look) in BROKEN
        else look
        for look in LOOKS
    ]


@pytest.mark.parametrize("look", marked("up"))
def test_up_is_whole_on_any_terminal(seen_ups: dict[Look, UpSeen], look: Look) -> None:
    found = seen_ups[look].terminal
    assert escapes(found, look) == set()
    assert too_long(found) == []
    assert look == "pipe" or {*PRINTED.split(), *RAISED.split()} - {*" ".join(found.lines).split()} == set()


@pytest.mark.parametrize("look", marked("up ends"))
def test_up_ends_well_after_ctrl_c(seen_ups: dict[Look, UpSeen], look: Look) -> None:
    assert seen_ups[look].terminal.code == 0, seen_ups[look]


def test_every_line_of_up_in_a_pipe_is_json(seen_ups: dict[Look, UpSeen]) -> None:
    found = seen_ups["pipe"]
    assert found.terminal.raw == ""
    lines = [json.loads(line) for line in found.errors.splitlines()]
    assert len(lines) > 2
    assert all(isinstance(line, dict) for line in lines)
