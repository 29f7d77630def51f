"""What the supervisor does when it is signalled: SIGTERM and SIGINT stop it, SIGHUP reloads."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handling_signals(*, stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    """Call these from the signals' handlers inside the block; outside the main thread signals are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_stop(_number: int, _frame: FrameType | None) -> None:
        stop()

    def on_reload(_number: int, _frame: FrameType | None) -> None:
        reload()

    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGTERM, on_stop), (signal.SIGINT, on_stop), (signal.SIGHUP, on_reload))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
