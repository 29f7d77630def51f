"""Run a Python program under strace and return the order of its writes, syncs and replies."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.support.commands import program_environment
from tests.support.eventually import eventually

SYNCS = ("fsync", "fdatasync")
CALLS = (*SYNCS, "pwrite64", "write", "writev", "sendto", "sendmsg")
SHOWN_BYTES = 5000
OUTPUT = "output.txt"
ANSWERS = ("socket:", "UNIX", "TCP")

_BEGUN = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\(\d+<(?P<file>[^>]*)>(?P<rest>.*)$")
_ENDED = re.compile(r"^(?P<pid>\d+) +<\.\.\. (?P<call>\w+) resumed>")


@dataclass(frozen=True, slots=True)
class SyncEvent:
    """A write to a file, pipe or socket with strace's text, or a successful sync.

    Args:
        began: the position among all events at which a sync began.
    """

    kind: Literal["wrote", "synced"]
    file: str
    text: str = ""
    began: int = 0


def strace() -> str:
    """Return the path of strace; skip, by name, where it is absent or may not trace."""
    found = shutil.which("strace")
    if found is None or subprocess.run([found, "-qq", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs strace, and a host that lets it trace")
    return found


@contextmanager
def traced(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run `python ARGUMENTS` in `folder`, ended by SIGTERM, with its calls traced to a file."""
    trace = folder / "trace.txt"
    # -D: the tracer is the child, so that our child process is the program itself.
    command = [
        strace(),
        "-D",
        "-f",
        "-q",
        "-y",
        "-s",
        str(SHOWN_BYTES),
        "-e",
        f"trace={','.join(CALLS)}",
        "-o",
        str(trace),
    ]
    with (folder / OUTPUT).open("wb") as output:
        program = subprocess.Popen(
            [*command, sys.executable, *arguments],
            cwd=folder,
            env=program_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        yield program, trace
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGTERM)
        program.wait(30)
        ended = [str(program.pid), "+++"]
        eventually(lambda: any(line.split()[:2] == ended for line in trace.read_text(errors="replace").splitlines()))


def events(trace: Path) -> list[SyncEvent]:
    """Return the events of a trace in order."""
    found: list[SyncEvent] = []
    under_way: dict[str, tuple[str, int]] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if (begun := _BEGUN.match(line)) is not None:
            pid, call, file, rest = begun.group("pid", "call", "file", "rest")
            if call not in SYNCS:
                found.append(SyncEvent("wrote", file, rest))
            elif "<unfinished" in rest:
                under_way[pid] = file, len(found)
            else:
                found.append(SyncEvent("synced", file, began=len(found)))
        elif (ended := _ENDED.match(line)) is not None and ended["call"] in SYNCS and ended["pid"] in under_way:
            file, began = under_way.pop(ended["pid"])
            found.append(SyncEvent("synced", file, began=began))
    return found


def unsynced(told: Sequence[SyncEvent], *, log: Path, marks: Sequence[str]) -> list[str]:
    """Return the marks whose reply was sent before a sync of the log that followed their write."""
    return [mark for mark in marks if not _is_kept(told, log=str(log), mark=mark)]


def _is_kept(told: Sequence[SyncEvent], *, log: str, mark: str) -> bool:
    with_mark = [at for at, one in enumerate(told) if one.kind == "wrote" and mark in one.text]
    written = [at for at in with_mark if told[at].file == log]
    answered = [at for at in with_mark if told[at].file.startswith(ANSWERS) or told[at].file.endswith(OUTPUT)]
    assert answered, f"{mark} was never answered"
    if not written:
        return False
    synced = [one for one in told[: answered[0]] if one.kind == "synced" and one.file == log]
    return any(one.began > written[0] for one in synced)
