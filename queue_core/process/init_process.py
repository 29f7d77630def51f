"""As the first process of a container: the work is done by a child; we pass signals on and collect whoever ends.

The kernel gives the first process every orphan to collect, and keeps from it each signal that it does not handle. A
program that starts others can't collect orphans itself without taking the ends of its own children from whoever waits
for them. Run as a script as well, so it imports as little as it can.
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
_OF_THE_TERMINAL = {signal.SIGTTIN, signal.SIGTTOU}
WAITED_FOR = signal.valid_signals() - _FAULTS - _OF_THE_TERMINAL - {signal.SIGKILL, signal.SIGSTOP}
_SIGNALLED = 128


def run_as_init() -> None:
    """Go on in a child when this is the first process of its namespace; else no effect.

    To be called before any thread is started. The first process itself becomes a small program that ends with the
    child, by its exit code, or by 128 and the signal that ended it.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
    child = os.fork()
    if child:
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(child)])  # noqa: S606  it is ourselves
    os.environ.pop("WATCHDOG_PID", None)  # it named us as we were
    _take_the_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_the_terminal() -> None:
    """A group of our own, or a key pressed there would reach us twice: from the terminal and passed on."""
    os.setpgid(0, 0)
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        if os.isatty(0):
            os.tcsetpgrp(0, os.getpid())
    except OSError:
        return  # a terminal that is not ours to take
    finally:
        signal.signal(signal.SIGTTOU, before)


def watch(child: int) -> int:
    """Pass signals on to the child and collect everybody until it ends; the exit code to end with."""
    while True:
        number = signal.sigwaitinfo(WAITED_FOR).si_signo
        if number != signal.SIGCHLD:
            os.kill(child, number)  # it is there until we have collected it
            continue
        code = _collect(child)
        if code is not None:
            return code


def _collect(child: int) -> int | None:
    """Collect all that have ended: one signal may stand for many ends. The exit code, when the child is among them."""
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
            code = ended if ended >= 0 else _SIGNALLED - ended


if __name__ == "__main__":
    sys.exit(watch(int(sys.argv[1])))
