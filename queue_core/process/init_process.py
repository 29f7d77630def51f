"""An init for containers: as process 1, it forwards signals to a child that does the work, and reaps orphans.

The kernel makes process 1 the parent of all orphans, and drops signals that it does not handle. A program that starts
workers can't reap orphans itself without also reaping its workers before their waiters do. This file also runs as a
script, so it imports little.
"""

import os
import signal
import sys

_FAULTS = {
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}
_TERMINAL_SIGNALS = {signal.SIGTTIN, signal.SIGTTOU}
FORWARDED = signal.valid_signals() - _FAULTS - _TERMINAL_SIGNALS - {signal.SIGKILL, signal.SIGSTOP}
_SIGNAL_EXIT_CODE = 128


def run_as_init() -> None:
    """Continue in a child if this is process 1; otherwise do nothing.

    Call it before any thread starts. Process 1 becomes a small program that exits when the child does, with its exit
    code, or 128 plus the signal that ended it.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child:
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(child)])  # noqa: S606  this very file
    os.environ.pop("WATCHDOG_PID", None)  # it names process 1
    _take_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_terminal() -> None:
    """Make the child the terminal's foreground group, so that it gets Ctrl-C once, not also forwarded."""
    os.setpgid(0, 0)
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        if os.isatty(0):
            os.tcsetpgrp(0, os.getpid())
    except OSError:
        return  # another session's terminal
    finally:
        signal.signal(signal.SIGTTOU, before)


def watch(child: int) -> int:
    """Forward signals to the child and reap processes until the child ends; return the exit code."""
    while True:
        number = signal.sigwaitinfo(FORWARDED).si_signo
        if number != signal.SIGCHLD:
            os.kill(child, number)  # it exists until it is reaped
            continue
        code = _reap(child)
        if code is not None:
            return code


def _reap(child: int) -> int | None:
    """Reap all ended processes, as one SIGCHLD may stand for several; return the child's exit code if it ended."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not pid:
            return code
        if pid == child:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else _SIGNAL_EXIT_CODE - ended


if __name__ == "__main__":
    sys.exit(watch(int(sys.argv[1])))
