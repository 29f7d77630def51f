"""What the supervisor does when it is signalled, for as long as it runs."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

CONTROL_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Their default is the end of the process: not what somebody wants who asks for a reload while we start."""


@contextmanager
def handling_signals(handlers: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Call these from the signals' handlers inside the block; outside the main thread signals are left alone."""
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


def ignore_control_signals() -> None:
    """Until `handling_signals`, and through an exec: what can't be heeded yet must not end us.

    Outside the main thread signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in CONTROL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
