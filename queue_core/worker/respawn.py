"""A worker that is recycled goes on in a fresh process at the cost of a fork: its parent has imported no handler yet.

The parent is what a supervisor started and knows. It passes signals on, and ends as its last child did.
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
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from queue_core.first_process import WAITED_FOR, watch

EXIT_RECYCLED: Final = 76
"""A child that ends so is followed by the next; never the exit code of a worker as a whole."""
NAME: Final = "towline-tasks"
"""What the kernel calls a process that runs the handlers of a worker which is recycled."""
_ASKED_BY: Final = {signal.SIGTERM, signal.SIGINT}


def respawned(work: Callable[[], int], *, may_go_on: Callable[[], bool]) -> int:
    """Run `work` in a child of this process, and in a fresh one as often as it returns `EXIT_RECYCLED`.

    Each child ends with what `work` returns. Returns the exit code of the last one; where a signal ended that, this
    process ends by the same. To be called before any thread is started.

    Args:
        may_go_on: whether another child may follow; it is asked before each.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
    gc.freeze()  # no child needs to look through what is here already
    for name in ("ascii", "idna"):
        codecs.lookup(name)  # each would import them for its first connection
    passed: set[int] = set()
    while may_go_on():
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _name_process()
            _leave(work())
        code = watch(child, passed)
        if code < 0:
            _end_by(-code)
        if code != EXIT_RECYCLED:
            return code
        if passed & _ASKED_BY:
            break
    return os.EX_OK


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
