"""A worker that is recycled goes on in a fresh process at the cost of a fork: its parent has imported no handler yet.

The parent is what a supervisor started and knows. It passes signals on, and ends as its last child did. While a child
is at its last tasks the next one imports the handlers already.
"""

import atexit
import codecs
import contextlib
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

from queue_core.process.init_process import FORWARDED

EXIT_RECYCLED: Final = 76
"""A child that ends so is followed by the next; never the exit code of a worker as a whole."""
NAME: Final = "towline-tasks"
"""What the kernel calls a process that runs the handlers of a worker which is recycled."""
NEXT: Final = signal.SIGRTMIN + 2
"""At this signal from a child its successor imports the handlers, and waits."""
_ASKED_BY: Final = {signal.SIGTERM, signal.SIGINT}


def respawned(work: Callable[[Callable[[], bool], Callable[[], None]], int], *, may_go_on: Callable[[], bool]) -> int:
    """Run `work` in a child of this process, and in a fresh one as often as it returns `EXIT_RECYCLED`.

    Each child ends with what `work` returns. Returns the exit code of the last one; where a signal ended that, this
    process ends by the same. To be called before any thread is started.

    Args:
        work: is given two calls. The first is for when all is imported: it returns True once the child before has
            ended, False when this one is not wanted any more. The second has the next child get ready.
        may_go_on: whether another child may follow.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    gc.freeze()  # no child needs to look through what is here already
    for name in ("ascii", "idna"):
        codecs.lookup(name)  # each would import them for its first connection
    parent, is_asked = os.getpid(), False
    current, following = _forked(work, parent, before), None
    current.go()
    while True:
        number = signal.sigwaitinfo(FORWARDED).si_signo
        if number == NEXT:
            following = following or _forked(work, parent, before)
            continue
        if number != signal.SIGCHLD:
            is_asked = is_asked or number in _ASKED_BY
            os.kill(current.pid, number)  # it is there until we have collected it
            continue
        if following is not None and following.ended() is not None:
            following = None  # why it could not begin, the one in its place will tell
        code = current.ended()
        if code is None:
            continue
        if code == EXIT_RECYCLED and not is_asked and may_go_on():
            current, following = following or _forked(work, parent, before), None
            current.go()
            continue
        if following is not None:
            following.cancel()
        if code < 0:
            _end_by(-code)
        return os.EX_OK if code == EXIT_RECYCLED else code


class _Child:
    """A child, and the pipe by which it is told to begin."""

    def __init__(self, pid: int, writing: int) -> None:
        self.pid = pid
        self._writing = writing

    def go(self) -> None:
        """Let it lease."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._writing, b"g")

    def ended(self) -> int | None:
        """Its exit code, or less than 0 for the signal that ended it, once it is collected; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        os.close(self._writing)
        return os.waitstatus_to_exitcode(status)

    def cancel(self) -> None:
        """End it: it has leased nothing."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _forked(work: Callable[[Callable[[], bool], Callable[[], None]], int], parent: int, mask: Iterable[int]) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _name_process()

        def may_begin() -> bool:
            told = os.read(reading, 1)
            os.close(reading)
            return bool(told)  # nothing: the parent has ended

        _leave(work(may_begin, lambda: _prepare_next(parent)))
    os.close(reading)
    return _Child(pid, writing)


def _prepare_next(parent: int) -> None:
    with contextlib.suppress(OSError):  # not ours to signal any more: the next one gets ready later
        os.kill(parent, NEXT)


def _leave(code: int) -> NoReturn:
    """As an interpreter ends, waiting for threads and calling what is registered, but for taking itself apart: that
    would cost more than all the rest of a child's start and end."""
    with contextlib.suppress(Exception):  # told by themselves, as at any other end
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  as multiprocessing ends its children
        atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its core already
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _name_process() -> None:
    try:
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    except OSError:
        return  # people see another name, and a supervisor less of what it takes
