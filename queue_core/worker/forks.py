"""Children that handlers fork: they start with the signals of a fresh program, and never become a second worker."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from mmap import mmap
from threading import get_ident
from typing import Final

from structlog.typing import FilteringBoundLogger

from queue_core.worker import events

EXIT_CHILD_FAILED: Final = 1


class Forks:
    """Ends a forked child that comes back from its handler: only its parent is a worker."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._pid = os.getpid()
        self._told = mmap(-1, 1)  # shared with the children: the first that ends is logged, in whichever process

    def is_child(self) -> bool:
        """Whether this process was forked from the worker."""
        return os.getpid() != self._pid

    def end_child(self, *, handler: str, error: BaseException | None = None) -> None:
        """End this process if it is a forked child: 0, the code of its `SystemExit`, or 1 for any other exception."""
        if not self.is_child():
            return
        if not self._told[0]:
            self._told[0] = 1
            self._log.warning(
                events.CHILD_ENDED,
                pid=os.getpid(),
                handler=handler,
                reason="forked by the handler, and returned from it; only the worker itself goes on. "
                "End a forked child by os._exit, or use multiprocessing; said once",
            )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_exit_code(error))


def give_children_signals(handlers: Mapping[signal.Signals, object]) -> None:
    """Have forked children begin with these handlers, and without the worker's wake-up descriptor.

    A signal that comes before they are set waits for them: it is the child's, and must not reach the worker. To be
    called once in a process: it can't be undone.
    """
    masks: dict[int, set[int]] = {}

    def before() -> None:
        masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, handlers.keys())

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(get_ident(), set()))

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave us
        mask = masks.pop(get_ident(), set())
        masks.clear()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return EXIT_CHILD_FAILED
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else EXIT_CHILD_FAILED
