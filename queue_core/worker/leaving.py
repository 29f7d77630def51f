"""The end of a worker's process: threads and processes that a handler left running do not hold it up for long."""

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from structlog.typing import FilteringBoundLogger

from queue_core.worker import events
from queue_core.worker.invocation import line_of

if TYPE_CHECKING:
    import psutil

TERMINATE_SECONDS: Final = 0.5
"""From SIGTERM to SIGKILL for the processes that a worker would leave."""
MAX_SHOWN: Final = 10


def leave_within(seconds: float, *, code: int, log: FilteringBoundLogger) -> None:
    """Let the interpreter end by itself, which waits for threads and pools; after `seconds`, end it as `leave_now`."""

    def cut() -> None:
        threading.Event().wait(seconds)
        leave_now(code, log=log)

    threading.Thread(target=cut, name="towline-exit", daemon=True).start()


def leave_now(code: int, *, log: FilteringBoundLogger) -> NoReturn:
    """End the process with this code, and before it the processes that it has started; log what was left running."""
    threads, children = _threads(), _children()
    if threads or children:
        log.warning(
            events.WORKER_CUT_OFF,
            reason="its grace is over, and these still run: a handler should end what it starts",
            threads=threads[:MAX_SHOWN],
            processes=[_shown(child) for child in children[:MAX_SHOWN]],
        )
    _end(children)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _threads() -> list[str]:
    """Threads that Python would wait for at its end, with the line each is at."""
    frames = sys._current_frames()  # noqa: SLF001  the only way to see another thread's stack
    waited_for = [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    return [
        f"{thread.name} at {line_of(frame)}" if (frame := frames.get(thread.ident or 0)) else thread.name
        for thread in waited_for
    ]


def _children() -> "list[psutil.Process]":
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    import psutil  # only a worker that leaves children pays for the import

    try:
        return psutil.Process().children(recursive=True)
    except (psutil.Error, OSError):
        return []


def _shown(child: "psutil.Process") -> str:
    """Its pid and program, not its arguments: they may hold what a task holds."""
    import psutil

    try:
        return f"{child.pid} {child.name()}"
    except psutil.Error:
        return str(child.pid)


def _end(children: "Sequence[psutil.Process]") -> None:
    if not children:
        return
    import psutil

    for child in children:
        with contextlib.suppress(psutil.Error):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=TERMINATE_SECONDS)
    for child in alive:
        with contextlib.suppress(psutil.Error):
            child.kill()
