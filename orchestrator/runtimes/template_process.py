"""One template process, as its supervisor sees it: started, importing, ready to fork workers, ended (ADR 33)."""

import array
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from orchestrator.base.values import ServedTags
from orchestrator.runtimes import procfs
from orchestrator.runtimes.application_files import FileState, states_in
from queue_core.attempts.redaction import redacted_lines

COMMAND: Final = (sys.executable, "-m", "queue_core.worker.template")
CONTROL_VARIABLE: Final = "TOWLINE_TEMPLATE_FD"
"""The variable with the number of the control socket; /proc shows it for a template's workers as well."""
ROOM_VARIABLE: Final = "TOWLINE_TEMPLATE_ROOM"
"""Makes room for a worker's own variables in what /proc shows of it: see `template.environment_block`."""
ROOM_BYTES: Final = 16_384
FORK_SECONDS: Final = 5.0
"""Longest wait for a forked worker to report; a fork takes milliseconds. After it the template is given up."""
END_SECONDS: Final = 1.0
"""Longest wait for a killed template to be gone."""
MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_REPORT_BYTES: Final = 4096
MAX_LAST_WORDS_BYTES: Final = 500
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_PERHAPS_THE_KERNEL: Final = "; if nobody sent it, the kernel lacked memory: see `journalctl -k | grep -i oom`"

TemplateState: TypeAlias = Literal["importing", "ready", "unsafe", "failed", "outdated", "ended"]
"""`unsafe`: its application was imported, and no worker should be forked from it. `outdated`: a file has changed."""
LIVING: Final = frozenset({"importing", "ready", "unsafe"})


class ForkFailedError(Exception):
    """The template did not fork a worker; none is running. Start it by other means."""


@dataclass(frozen=True, slots=True)
class ForkedWorker:
    """A worker that waits for `send_go`: our child, with a pidfd of it."""

    pid: int
    start_ticks: int
    pidfd: int
    start: socket.socket

    def send_go(self) -> None:
        """Let it begin. If it has ended meanwhile, its pidfd says so."""
        with contextlib.suppress(OSError):
            self.start.send(b"go")
        self.start.close()

    def abandon(self) -> None:
        """Kill it before it begins; its exit is still to be collected."""
        procfs.send_signal(self.pidfd, signal.SIGKILL)
        os.close(self.pidfd)
        self.start.close()


class TemplateProcess:
    """A child of the supervisor that has imported, or imports, a pool's application."""

    def __init__(self, environment: Mapping[str, str], *, cwd: str | None, log: int) -> None:
        """Start it. Raises `OSError` where the host has no room for it.

        Args:
            environment: the variables that all its workers share.
            log: a descriptor for what the import writes.
        """
        self.state: TemplateState = "importing"
        self.hazards: Sequence[str] = ()
        """Sentences that say why no worker should be forked from it."""
        self.failure = ""
        self.files: dict[str, FileState] = {}
        """The application's own files as they were at its import."""
        self.import_seconds = 0.0
        self.handlers = 0
        """The number of the application's handlers for the pool's tasks."""
        self.schedules: list[Mapping[str, object]] = []
        """The schedules of the application's functions, as JSON."""
        self.served: ServedTags | None = None
        """The tags that the pool's workers lease."""
        self._is_ended_by_us = False
        self.orphans: set[int] = set()
        """Children that became ours during forks and are no known worker; whoever collects them takes them out."""
        self._environment = dict(environment)
        self._output, self._output_begins = os.readlink(f"/proc/self/fd/{log}"), os.fstat(log).st_size  # noqa: PTH115
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env={
                    **environment,
                    CONTROL_VARIABLE: str(theirs.fileno()),
                    ROOM_VARIABLE: "-" * ROOM_BYTES,
                },
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._control.settimeout(0.0)

    @property
    def pid(self) -> int:
        """Its process id, valid until `collect` has returned True."""
        return self._process.pid

    @property
    def is_collected(self) -> bool:
        """True once it has ended and `collect` has seen that."""
        return self._process.returncode is not None

    def poll(self) -> TemplateState:
        """Read what it reports, and return its state; never waits."""
        while self.state in LIVING and (message := self._message()) is not None:
            self._take(message)
        if self.state in LIVING and self.collect():  # while another process of it holds the socket open
            self.state = "ended"
        return self.state

    def _message(self) -> dict[str, object] | None:
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        try:
            message = json.loads(data)
        except ValueError:  # the end of the stream, or the application has written to it
            message = None
        if not isinstance(message, dict):
            self.state = "ended"
            return None
        return message

    def _take(self, message: Mapping[str, object]) -> None:
        if "files" in message:
            self.files.update(states_in(message["files"]))
        elif isinstance(found := message.get("schedule"), dict):
            self.schedules.append(found)
        elif isinstance(served := message.get("served"), list):
            self.served = tuple(None if tag is None else str(tag) for tag in served)
        elif "failed" in message:
            self.state, self.failure = "failed", str(message["failed"])
        elif "outdated" in message:
            self.state, self.failure = "outdated", f"{message['outdated']} has changed"
        else:
            hazards, seconds, handlers = (message.get(name) for name in ("hazards", "seconds", "handlers"))
            self.hazards = [str(hazard) for hazard in hazards] if isinstance(hazards, list) else ()
            self.import_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
            self.handlers = handlers if isinstance(handlers, int) else 0
            self.state = "unsafe" if self.hazards else "ready"

    def fork(self, environment: Mapping[str, str], *, cwd: str | None, log: int) -> ForkedWorker:
        """Fork one worker, which waits to be let go.

        Raises `ForkFailedError`; then no worker runs. The template may still be well: see `poll`.
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise ForkFailedError(f"this process has no room for a socket: {error.strerror}") from error
        came: set[int] = set()
        try:
            with _adopting_orphans(came):
                with theirs:
                    self._request(environment, cwd=cwd, start=theirs, log=log)
                forked = self._reported(ours, worker=environment.get("TOWLINE_WORKER"))
        except BaseException:
            theirs.close()
            ours.close()  # a worker that has not been let go ends by it
            self._kill_unknown(came, worker=environment.get("TOWLINE_WORKER"))
            self.orphans |= came
            raise
        self.orphans |= came - {forked.pid}
        return forked

    def _request(self, environment: Mapping[str, str], *, cwd: str | None, start: socket.socket, log: int) -> None:
        own = {name: text for name, text in environment.items() if self._environment.get(name) != text}
        request = json.dumps({"environment": own, "cwd": cwd}).encode()
        rights = array.array("i", [start.fileno(), log])
        try:
            self._control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            raise ForkFailedError(f"the template can't be reached: {error.strerror}") from error

    def _reported(self, ours: socket.socket, *, worker: str | None) -> ForkedWorker:
        """Wait until the worker reports its pid, and open it."""
        report = self._report(ours)
        if not report.isdecimal():
            raise ForkFailedError(report)
        pid = int(report)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise ForkFailedError(f"the forked worker can't be watched: {error.strerror}") from error
        try:
            stat = procfs.read_stat(pid)
            shown = procfs.environment_of(pid) or {}
        except OSError as error:
            os.close(pidfd)
            raise ForkFailedError(f"the forked worker can't be looked at: {error.strerror}") from error
        # It waits for us, so this is the process that reported, unless it was killed and its pid used again.
        if stat is None or stat.parent != os.getpid() or not stat.is_alive:
            os.close(pidfd)
            raise ForkFailedError("the forked worker ended before it began")
        if shown.get("TOWLINE_WORKER") != worker:
            os.close(pidfd)
            raise ForkFailedError("the forked worker's variables are not shown in /proc")
        return ForkedWorker(pid, stat.start_ticks, pidfd, ours)

    def _report(self, ours: socket.socket) -> str:
        poller = select.poll()  # select() knows no descriptor above 1023
        poller.register(ours, select.POLLIN)
        if not poller.poll(FORK_SECONDS * 1000):
            self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=END_SECONDS)  # meanwhile what it was forking becomes ours, to be collected
            raise ForkFailedError(f"the template did not fork within {FORK_SECONDS:g} s")
        try:
            report = ours.recv(MAX_REPORT_BYTES)
        except OSError:
            report = b""
        if not report:
            self.poll()
            raise ForkFailedError(self.failure or "the template ended, or the host has no room for another process")
        return report.decode(errors="replace")

    def _kill_unknown(self, orphans: set[int], *, worker: str | None) -> None:
        """Kill a forked worker that did not report, lest one that is stopped stays."""
        for pid in orphans:  # our children until we collect them
            shown = procfs.environment_of(pid) or {}
            if CONTROL_VARIABLE in shown and shown.get("TOWLINE_WORKER") in (None, worker):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End it and what it has started; its workers go on. `collect` returns True once it is gone."""
        self.state = "ended"
        self._is_ended_by_us = True
        self._control.close()
        if not self.collect():
            self._kill_group()

    def collect(self) -> bool:
        """Collect the process if it has ended; return whether it has. How it ended becomes its `failure`."""
        if self._process.returncode is None:
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return False
                self._kill_group()
            code = self._process.poll()
            if code is not None and not self._is_ended_by_us and self.state not in ("failed", "outdated"):
                self.failure = f"{_ending(code)}{self._last_words()}"
        return True

    def _last_words(self) -> str:
        """Return the last line that it wrote, as the end of a sentence; "" where it wrote nothing."""
        with contextlib.suppress(OSError), open(self._output, "rb") as file:  # noqa: PTH123
            size = file.seek(0, os.SEEK_END)
            begins = self._output_begins if self._output_begins <= size else 0  # else it was rotated
            file.seek(max(begins, size - MAX_LAST_WORDS_BYTES))
            lines = file.read(MAX_LAST_WORDS_BYTES).decode(errors="replace").split("\n")
            last = [line.strip() for line in lines if line.strip()][-1:]
            return "".join(f"; its last line: {one}" for one in redacted_lines(last, environment=self._environment))
        return ""

    def wait(self) -> None:
        """Wait until a template that was ended is gone, and collect it; not longer than `END_SECONDS`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_SECONDS)

    def _kill_group(self) -> None:
        """Kill it and what is left in its group: a process between it and a worker, or what the import started.

        It is not collected yet, so the group's number can't be another's.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    """Return how a template ended that nobody here has asked to, from its exit code as `subprocess` has it."""
    if code >= 0:
        return f"it exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal without a name
        name = f"signal {-code}"
    return f"it was ended by {name}" + (_PERHAPS_THE_KERNEL if name == "SIGKILL" else "")


@contextlib.contextmanager
def _adopting_orphans(came: set[int]) -> Iterator[None]:
    """Make orphans of our descendants our children meanwhile: the forked worker is one, once its parent has ended.

    Only meanwhile, as others would have to be collected for ever; those of this moment are added to `came`.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    was_adopting = ctypes.c_int()
    try:
        before = _children()
    except OSError as error:
        raise ForkFailedError(f"this process has no room for another file: {error.strerror}") from error
    is_known = prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was_adopting), 0, 0, 0) == 0
    if not is_known or prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ForkFailedError(f"the kernel has no child subreapers: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, was_adopting.value, 0, 0, 0)
        with contextlib.suppress(OSError):
            came |= {pid for pid in _children() - before if _is_of_another_session(pid)}


def _is_of_another_session(pid: int) -> bool:
    """Return False for a child that another thread has started meanwhile, which is not ours to collect."""
    stat = procfs.read_stat(pid)
    return stat is not None and stat.session != os.getsid(0)


def _children() -> set[int]:
    """Return the children that the first thread has: those that were orphans are."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children") as file:  # noqa: PTH123
            return {int(word) for word in file.read().split()}
    except FileNotFoundError:  # a kernel without this file
        return set(procfs.children_of(own))
