"""Handle signals to the supervisor while it runs, and ignore control signals while it starts."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

CONTROL_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals with which an operator controls a supervisor. Their default action would end a process that is starting."""
_KEPT_TERMINAL: Final = "TOWLINE_KEPT_TERMINAL"


@contextmanager
def handling_signals(handlers: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Call these handlers on their signals inside the block; outside the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        handlers[number]()

    before = {number: signal.signal(number, handle) for number in handlers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class OwnTerminal:
    """The terminal that controls this process, from the start on; a daemon has none.

    Make it before hang-ups are ignored: where they are already, as by `nohup`, the process is to outlive its terminal.
    """

    def __init__(self) -> None:
        is_kept = os.environ.pop(_KEPT_TERMINAL, "") == str(os.getpid())
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.is_there = has_controlling_terminal() and (is_kept or not is_ignored)

    def keep(self) -> None:
        """Let the program that is executed in place of this one know it, although hang-ups are ignored meanwhile."""
        if self.is_there:
            os.environ[_KEPT_TERMINAL] = str(os.getpid())

    def is_gone(self) -> bool:
        """Return whether it was there at the start, and hung up since."""
        return self.is_there and not has_controlling_terminal()


def has_controlling_terminal() -> bool:
    """Return whether a terminal controls this process. After a hang-up none does."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def ignore_control_signals() -> None:
    """Ignore control signals until `handling_signals`, also through an exec: they must not end a process that starts.

    Outside the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in CONTROL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
