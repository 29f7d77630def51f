"""Ask a worker that runs for the stacks of its threads: places in files, never values, which may be payloads.

A worker of an `app:` writes them into its output on a signal, whatever its handler does (see `queue_core.worker.main`).
It is asked from any process of the same user, once a second at most for all that ask.
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from orchestrator.base.clock import MonotonicClock
from orchestrator.base.json_fields import mapping_of, mappings_of, text_in
from orchestrator.runtimes import procfs
from orchestrator.runtimes.process import STACK_SIGNAL
from orchestrator.runtimes.worker_logs import LOG_SUFFIX, MAX_LINE_CHARS, MAX_STACK_LINES
from orchestrator.state.directory import StateDir

WAIT_SECONDS: Final = 2.0
"""How long a worker may take to write: its signal handler needs no interpreter lock."""
SHARED_SECONDS: Final = 1.0
"""For so long the same stacks answer everybody that asks for one worker's."""
POLL_SECONDS: Final = 0.02
MAX_BYTES: Final = 128 * 1024
"""Output after the signal that is looked at, at most."""
MAX_KEPT: Final = 100
"""Workers whose last stacks are kept for others that ask."""

_HEADING: Final = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):|Stack \(.*\):")
_FRAME: Final = re.compile(r'  File "[^"\n]*", line \d+ in \S.*|  \.\.\.')
_FILE: Final = re.compile(r'  File "([^"\n]*)", line ')
_CURRENT: Final = re.compile(r"(?:Current thread 0x|Stack \()")
"""The heading that `faulthandler` writes last: of the thread that took the signal."""


@dataclass(frozen=True, slots=True)
class RunningStack:
    """The stacks of a worker's threads, most recent call first; without `lines`, `why` says why there are none."""

    worker: str
    lines: tuple[str, ...] = ()
    why: str = ""


@dataclass
class StackRequests:
    """Asks workers of one state directory. Thread-safe."""

    files: StateDir
    clock: MonotonicClock
    _lock: Lock = field(default_factory=Lock)
    _known: dict[str, tuple[float, RunningStack]] = field(default_factory=dict)

    def stack_of(self, worker: Mapping[str, object], settings: Mapping[str, object]) -> RunningStack:
        """Return the stacks of a worker of the supervisor's snapshot; `settings` are its pool's."""
        name = text_in(worker, "worker")
        if why := why_not(worker, settings):
            return RunningStack(name, why=why)
        with self._lock:
            known = self._known.get(name)
            if known is not None and self.clock.monotonic() - known[0] < SHARED_SECONDS:
                return known[1]
            found = self._read(name, text_in(worker, "ref"))
            self._known[name] = self.clock.monotonic(), found
            for oldest in list(self._known)[:-MAX_KEPT]:
                del self._known[oldest]
            return found

    def _read(self, name: str, ref: str) -> RunningStack:
        process = procfs.find(ref)
        if process is None:
            return RunningStack(name, why="its process has ended: `towline why-died` tells how")
        path = self.files.path / "workers" / f"{name}{LOG_SUFFIX}"
        try:
            if standstill := procfs.standstill(process):
                return RunningStack(name, why=f"its process is {standstill}, and writes nothing until it continues")
            if not procfs.catches(process.pid, STACK_SIGNAL):
                return RunningStack(name, why="it has not started yet: try again in a second")
            with path.open("rb") as output:
                before = output.seek(0, os.SEEK_END)
                pidfd = procfs.open_exactly(process.pid, process.start_ticks)
                if pidfd is None:
                    return RunningStack(name, why="its process has ended: `towline why-died` tells how")
                try:
                    procfs.send_signal(pidfd, STACK_SIGNAL)
                finally:
                    os.close(pidfd)
                return self._written(name, lambda: _read_from(output.fileno(), before))
        except OSError as error:
            return RunningStack(name, why=f"can't ask it: {error.strerror or error}")

    def _written(self, name: str, read: Callable[[], str]) -> RunningStack:
        """Return the stacks once they have been written; nothing else is known to follow their last line."""
        until = self.clock.monotonic() + WAIT_SECONDS
        seen: tuple[str, ...] = ()
        while True:
            lines = stacks_in(read())
            if lines and lines == seen and any(_CURRENT.match(line) for line in lines):
                return RunningStack(name, lines)
            if self.clock.monotonic() >= until:
                return RunningStack(name, lines, "" if lines else f"it has written none within {WAIT_SECONDS:g} s")
            seen = lines
            time.sleep(POLL_SECONDS)


def why_not(worker: Mapping[str, object], settings: Mapping[str, object]) -> str:
    """Return why a worker's stack can't be had, as a sentence; "" where it can be asked for. Pure."""
    kind = text_in(settings, "runtime")
    if settings.get("celery"):
        return "it is a worker of Celery, which writes none; `py-spy dump --pid PID` reads it from outside"
    if not settings.get("app"):
        return "its pool runs a program of your own (`command:`): only workers of an `app:` write where they are"
    if kind == "external":
        return "another system started it, on a host that is not known here"
    if kind != "process" or not text_in(worker, "ref").startswith("pid:"):
        return "it runs in a container: `docker kill -s RTMIN+1 CONTAINER` has it write its stack into its output"
    return ""


def worker_in(snapshot: Mapping[str, object], name: str) -> tuple[dict[str, object], dict[str, object]] | None:
    """Return a worker of a snapshot and the settings of its pool; None where there is none of this name. Pure."""
    for one in mappings_of(snapshot.get("workers")):
        if one.get("worker") == name:
            pool = mapping_of(mapping_of(snapshot.get("pools")).get(text_in(one, "pool")))
            return one, mapping_of(pool.get("settings"))
    return None


def stacks_in(output: str) -> tuple[str, ...]:
    """Return the lines of a dump of `faulthandler` in an output; whatever else is written meanwhile is left out. Pure.

    The thread that took the signal, usually the main one, comes first.
    """
    threads: list[list[str]] = []
    for line in output.splitlines():
        if _HEADING.fullmatch(line):
            threads.append([line])
        elif threads and _FRAME.fullmatch(line):
            threads[-1].append(line)
    threads.sort(key=lambda lines: not _CURRENT.match(lines[0]))
    flat = [line[:MAX_LINE_CHARS] for lines in threads for line in lines]
    return tuple(flat[:MAX_STACK_LINES])


def own_lines(lines: Sequence[str], is_library: Callable[[str], bool]) -> list[str]:
    """Return the lines of the user's program: its calls, and the headings of threads that are in one. Pure."""
    own: list[str] = []
    heading = ""
    for line in lines:
        frame = _FILE.match(line)
        if frame is None:
            heading = line
        elif not is_library(frame[1]):
            own += [heading, line] if heading else [line]
            heading = ""
    return own


def _read_from(descriptor: int, position: int) -> str:
    if os.fstat(descriptor).st_size < position:  # rotated meanwhile
        position = 0
    return os.pread(descriptor, MAX_BYTES, position).decode(errors="replace")
