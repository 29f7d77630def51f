"""Handle signals to the supervisor while it runs, and ignore control signals while it starts."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

CONTROL_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals with which an operator controls a supervisor. Their default action would end a process that is starting."""


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


def ignore_control_signals() -> None:
    """Ignore control signals until `handling_signals`, also through an exec: they must not end a process that starts.

    Outside the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in CONTROL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
