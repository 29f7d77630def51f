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

from orchestrator.runtimes import procfs

COMMAND: Final = (sys.executable, "-m", "queue_core.worker.template")
CONTROL_VARIABLE: Final = "TOWLINE_TEMPLATE_FD"
ROOM_VARIABLE: Final = "TOWLINE_TEMPLATE_ROOM"
"""Makes room for a worker's variables in what /proc shows of it: see `template.environment_block`."""
ROOM_BYTES: Final = 16_384
FORK_SECONDS: Final = 2.0
"""Longest wait for a forked worker to report; a fork takes milliseconds. After it the template is given up."""
MAX_MESSAGE_BYTES: Final = 1 << 20
_PR_SET_CHILD_SUBREAPER: Final = 36
_PERHAPS_THE_KERNEL: Final = "; if nobody sent it, the kernel lacked memory: see `journalctl -k | grep -i oom`"

TemplateState: TypeAlias = Literal["importing", "ready", "unsafe", "failed", "outdated", "ended"]
"""`unsafe`: its application was imported, and no worker should be forked from it. `outdated`: a file has changed."""


class ForkFailedError(Exception):
    """The template did not fork a worker; none is running. Start it by other means."""


@dataclass(frozen=True, slots=True)
class ForkedWorker:
    """A worker that waits for `TemplateProcess.let_go`: our child, with a pidfd of it."""

    pid: int
    start_ticks: int
    pidfd: int
    start: socket.socket

    def let_go(self) -> None:
        """Let it begin. If it has ended meanwhile, its pidfd says so."""
        with contextlib.suppress(OSError):
            self.start.send(b"go")
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
        self.import_seconds = 0.0
        self._is_ended_by_us = False
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

    def poll(self) -> TemplateState:
        """Read what it reports, and return its state; never waits."""
        while self.state in ("importing", "ready", "unsafe") and (message := self._message()) is not None:
            if "failed" in message:
                self.state, self.failure = "failed", str(message["failed"])
            elif "outdated" in message:
                self.state, self.failure = "outdated", f"{message['outdated']} has changed"
            else:
                hazards, seconds = message["hazards"], message["seconds"]
                self.hazards = [str(hazard) for hazard in hazards] if isinstance(hazards, list) else ()
                self.import_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
                self.state = "unsafe" if self.hazards else "ready"
        return self.state

    def _message(self) -> dict[str, object] | None:
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.state = "ended"
            return None
        message: dict[str, object] = json.loads(data)
        return message

    def fork(self, environment: Mapping[str, str], *, cwd: str | None, log: int) -> ForkedWorker:
        """Fork one worker, which waits to be let go. Raises `ForkFailedError`; then no worker runs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _adopting_orphans():
                self._request(environment, cwd=cwd, start=theirs, log=log)
                return self._reported(ours)
        except BaseException:
            ours.close()  # a worker that has not been let go ends by it
            raise

    def _request(self, environment: Mapping[str, str], *, cwd: str | None, start: socket.socket, log: int) -> None:
        request = json.dumps({"environment": dict(environment), "cwd": cwd}).encode()
        rights = array.array("i", [start.fileno(), log])
        try:
            self._control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            raise ForkFailedError(f"the template can't be reached: {error.strerror}") from error
        finally:
            start.close()

    def _reported(self, ours: socket.socket) -> ForkedWorker:
        """Wait until the worker reports its pid, and open it."""
        if not select.select([ours], [], [], FORK_SECONDS)[0]:
            self.end()
            raise ForkFailedError(f"the template did not fork within {FORK_SECONDS:g} s")
        text = ours.recv(32)
        if not text:
            self.poll()
            raise ForkFailedError(self.failure or "the template ended, or the host has no room for another process")
        pid = int(text)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise ForkFailedError(f"the forked worker can't be watched: {error.strerror}") from error
        stat = procfs.read_stat(pid)
        # It waits for us, so this is the process that reported, unless it was killed and its pid used again.
        if stat is None or stat.parent != os.getpid():
            os.close(pidfd)
            raise ForkFailedError("the forked worker ended before it began")
        return ForkedWorker(pid, stat.start_ticks, pidfd, ours)

    def end(self) -> None:
        """End it; its workers go on. `collect` returns True once it is gone."""
        self.state = "ended"
        self._is_ended_by_us = True
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def collect(self, *, timeout_seconds: float = 0.0) -> bool:
        """Collect the process if it has ended; return whether it has. A signal that ended it becomes its `failure`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)
        code = self._process.poll()
        if code is not None and code < 0 and not self._is_ended_by_us:
            name = signal.Signals(-code).name
            self.failure = f"it was ended by {name}" + (_PERHAPS_THE_KERNEL if name == "SIGKILL" else "")
        return code is not None


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Make orphans of our descendants our children meanwhile: the forked worker is one, once its parent has ended.

    Only meanwhile, as nobody collects other orphans.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ForkFailedError(f"the kernel has no child subreapers: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
