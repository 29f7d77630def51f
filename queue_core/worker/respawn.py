"""Recycle a worker by a fork: the parent, which has imported no handler, starts a fresh child for each batch of tasks.

The supervisor started and knows the parent. The parent forwards signals and exits as its last child did. While a child
works on its last tasks, the next one already imports the handlers.
"""

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from queue_core.process.init_process import FORWARDED
from queue_core.process.process_end import end_process
from queue_core.worker.template.preparation import load_codecs

EXIT_RECYCLED: Final = 76
"""Exit code of a child that the next one follows; a worker as a whole never exits with it."""
PROCESS_NAME: Final = "towline-tasks"
"""Kernel name (`comm`) of the child process that runs the handlers."""
PREPARE_SIGNAL: Final = signal.SIGRTMIN + 2
"""Signal from a child to its parent: fork the successor, which imports the handlers and waits."""
_STOP_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT}


Work = Callable[[Callable[[], bool], Callable[[], None]], int]


def run_in_children(work: Work, *, may_continue: Callable[[], bool], renew: Callable[[], None]) -> int:
    """Run `work` in a child of this process, and in a new child each time it returns `EXIT_RECYCLED`.

    A child's exit code is the value of `work`. Returns the exit code of the last child; where a signal ended that
    child, this process ends by the same signal. Call it before any thread is started.

    Args:
        work: takes two functions. The first waits, after all imports, for the end of the previous child; it returns
            False when this child is not needed any more. The second makes the parent prepare the next child.
        may_continue: returns whether another child may follow.
        renew: called first in each child, which makes its own what it must not share with the next one.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    gc.freeze()  # no child needs to look through what is here already
    load_codecs()
    parent, is_stopping = os.getpid(), False
    current, following = _fork_child(work, parent, before, renew), None
    current.go()
    while True:
        number = signal.sigwaitinfo(FORWARDED).si_signo
        if number == PREPARE_SIGNAL:
            following = following or _fork_child(work, parent, before, renew)
            continue
        if number != signal.SIGCHLD:
            is_stopping = is_stopping or number in _STOP_SIGNALS
            os.kill(current.pid, number)  # its pid stays valid until we have reaped it
            continue
        if following is not None and following.ended() is not None:
            following = None  # its replacement fails the same way and logs why
        code = current.ended()
        if code is None:
            continue
        if code == EXIT_RECYCLED and not is_stopping and may_continue():
            current, following = following or _fork_child(work, parent, before, renew), None
            current.go()
            continue
        if following is not None:
            following.cancel()
        if code < 0:
            _end_by(-code)
        return os.EX_OK if code == EXIT_RECYCLED else code


class _Child:
    """A child process, and the pipe that lets it begin."""

    def __init__(self, pid: int, writing: int) -> None:
        self.pid = pid
        self._writing = writing

    def go(self) -> None:
        """Let the child lease."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._writing, b"g")

    def ended(self) -> int | None:
        """Reap the child and return its exit code, negative for the signal that ended it; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        os.close(self._writing)
        return os.waitstatus_to_exitcode(status)

    def cancel(self) -> None:
        """Kill a child that has leased nothing yet."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _fork_child(work: Work, parent: int, mask: Iterable[int], renew: Callable[[], None]) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _name_process()

        def may_begin() -> bool:
            byte = os.read(reading, 1)
            os.close(reading)
            return bool(byte)  # nothing: the parent has ended

        renew()
        end_process(work(may_begin, lambda: _prepare_next(parent)))
    os.close(reading)
    return _Child(pid, writing)


def _prepare_next(parent: int) -> None:
    with contextlib.suppress(OSError):  # we may not signal the parent any more: the next child starts later
        os.kill(parent, PREPARE_SIGNAL)


def _end_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its core already
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _name_process() -> None:
    with contextlib.suppress(OSError):  # the process keeps another name; a supervisor then sees less of its memory
        Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="ascii")
