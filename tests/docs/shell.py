"""The shell of a page's reader: commands in one folder, whose variables and directory last, and what goes on behind."""

import fcntl
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from queue_core.cli import exits
from tests.screens.terminal import ForkedCommands
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually

SECONDS: Final = 60.0
"""How long a command may take, and how long one that goes on may take until it is ready."""
QUIET_SECONDS: Final = 10.0
"""How long a program of the reader's own may take until it prints its first line."""
END_SECONDS: Final = 15.0
MARK: Final = "TOWLINE_DOCS_FOLDER"
"""The variable by which processes that a page has left behind are found."""
PIP: Final = Path(__file__).parent / "pip_stand_in.py"
COLUMNS: Final = 120

_FOR_EVER: Final = re.compile(r"towline (?:up|serve|supervise|console)\b(?!.*--(?:help|check|print-url))")
_LISTENS: Final = re.compile(
    r"\b(?:uvicorn|runserver|gunicorn|hypercorn|fastapi|flask|http\.server|flower|towline (?!work\b)\w+)\b"
)
_CELERY: Final = re.compile(r"\bcelery\b.*\bworker\b")
_SUPERVISES: Final = re.compile(r"\btowline (?:up|supervise)\b(?:.*?(?P<file> (?:-f|--file)[ =]\S+))?")
_PROGRAM: Final = """\
#!/bin/sh
exec {python} {arguments} "$@"
"""
_WRAPPED: Final = """\
trap '_c=$?; env -0 > "$_DOCS_STATE/env"; pwd > "$_DOCS_STATE/folder"; exit $_c' EXIT
set -a
{command}
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit status of a command, and what it printed."""

    code: int
    output: str


class Background:
    """A command that goes on, on a terminal of its own."""

    def __init__(self, text: str, folder: Path, environment: dict[str, str], ports: Collection[str] = ()) -> None:
        self.text = text
        self._ports = ports
        self._printed = bytearray()
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.ONLCR
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        try:
            self.process = subprocess.Popen(
                ["bash", "-c", text],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
        finally:
            os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def printed(self) -> str:
        """All that it has printed."""
        return self._printed.decode(errors="replace")

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None

    def await_ready(self) -> None:
        """Wait until it can be used. Raises `AssertionError`."""
        eventually(lambda: self.has_ended or self._is_ready(), seconds=SECONDS)

    def interrupt(self) -> None:
        """End it as Ctrl-C does; by force where that does not help."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
                break
        self._reader.join(1.0)

    def close(self) -> None:
        """Let its terminal go."""
        with suppress(OSError):
            os.close(self._master)

    def _is_ready(self) -> bool:
        if re.search(r"towline up\b", self.text):
            return "Ctrl-C" in self.printed
        if _CELERY.search(self.text):
            return " ready." in self.printed
        if _LISTENS.search(self.text):
            return any(_listens(process) for process in _family(self.process.pid))
        if self._ports:
            return all(_answers(port) for port in self._ports)
        return bool(self.printed) or "towline" in self.text

    def _read(self) -> None:
        with suppress(OSError):  # EIO: nobody has the terminal open any more
            while data := os.read(self._master, 1 << 16):
                self._printed += data


class Shell:
    """Runs what a page says in its folder; use it as a context manager, which ends all that was started."""

    def __init__(self, folder: Path, scratch: Path, commands: ForkedCommands, variables: dict[str, str]) -> None:
        self.folder = folder
        self.current = folder
        self.running: list[Background] = []
        self.scratch = scratch
        self._commands = commands
        self.environment = environment_of_reader(scratch, folder) | variables

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def run(self, text: str, *, seconds: float = SECONDS) -> Outcome:
        """Run one command to its end."""
        text = self._with_last_pid(text)
        if arguments := plain_towline(text):
            return self._forked(arguments)
        state = Path(tempfile.mkdtemp(dir=self.scratch))
        with (state / "output").open("w+b") as output:
            process = subprocess.Popen(
                ["bash", "-c", _WRAPPED.format(command=text)],
                cwd=self.current,
                env=self.environment | {"_DOCS_STATE": str(state)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = -signal.SIGKILL
        self._remember(state)
        return Outcome(code, (state / "output").read_text(errors="replace"))

    def start(self, text: str, ports: Collection[str] = ()) -> Background:
        """Start a command that goes on, and wait until it is ready: until those of `ports` that it names answer."""
        named = [port for port in ports if re.search(rf"\b{port}\b", text)]
        started = Background(self._with_last_pid(text), self.current, self.environment, named)
        self.running.append(started)
        started.await_ready()
        if supervises := _SUPERVISES.search(text):
            pools = f"towline pools{supervises['file'] or ''}"
            eventually(lambda: started.has_ended or self.run(pools).code != exits.UNAVAILABLE, seconds=SECONDS)
        return started

    def close(self) -> None:
        """End what goes on, the last first, and what that has left behind."""
        for started in reversed(self.running):
            started.interrupt()
        for process in self._left_behind():
            with suppress(psutil.Error):
                process.kill()
        for started in self.running:
            started.close()
        self.running = []

    def _forked(self, arguments: list[str]) -> Outcome:
        seen = self._commands.piped(
            *arguments, folder=self.current, scratch=self.scratch, environment=self._differing_environment()
        )
        return Outcome(seen.code, seen.raw)

    def _differing_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name != "TZ"}

    def _with_last_pid(self, text: str) -> str:
        """Return a command in which `$!` is the last one that was started."""
        return text.replace("$!", str(self.running[-1].process.pid)) if self.running else text

    def _remember(self, state: Path) -> None:
        """Take over the variables and the directory that a command has left."""
        with suppress(FileNotFoundError):  # it has become another program, or was killed
            pairs = (pair.partition("=") for pair in (state / "env").read_text().split("\0") if pair)
            kept = {name: value for name, _, value in pairs if name not in ("_", "_c", "_DOCS_STATE", "SHLVL")}
            self.current = Path((state / "folder").read_text().rstrip("\n"))
            self.environment = kept

    def _left_behind(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(self.folder):
                    yield process


def environment_of_reader(scratch: Path, folder: Path) -> dict[str, str]:
    """Return the environment of somebody who has installed Towline, with a home of their own."""
    home, programs = scratch / "home", scratch / "bin"
    home.mkdir(exist_ok=True)
    if not programs.is_dir():
        programs.mkdir()
        names = {
            "python": "",
            "python3": "",
            "towline": "-m orchestrator",
            "pip": str(PIP),
        }
        for name, arguments in names.items():
            program = programs / name
            program.write_text(_PROGRAM.format(python=shlex.quote(sys.executable), arguments=arguments))
            program.chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    return {
        **{name: value for name, value in program_environment().items() if name not in ("DOCKER_HOST", "COLUMNS")},
        "PATH": ":".join(path),
        "HOME": str(home),
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # else each process compiles for a second
        "PYTHONPATH": str(ROOT),
        MARK: str(folder),
    }


def goes_on(text: str) -> bool:
    """Return whether a command without ` &` is one that goes on for ever all the same."""
    return _FOR_EVER.match(text) is not None


def plain_towline(text: str) -> list[str]:
    """Return the arguments of a `towline` command that needs no shell; [] for any other."""
    outside = re.sub(r"'[^']*'", "", text.partition(" #")[0])
    if not text.startswith("towline ") or re.search(r"[$`*?~{}\[\]<>|&;()\\\n!]", outside):
        return []
    try:
        return shlex.split(text, comments=True)[1:]
    except ValueError:
        return []


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _answers(port: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
        return True
    return False


def _listens(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        if any(found.status == psutil.CONN_LISTEN for found in process.net_connections("tcp")):
            return True
        return any(str(found.laddr).startswith("/") for found in process.net_connections("unix"))
    return False
