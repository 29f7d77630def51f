"""Signals that ask a worker to finish: heard also while its main thread is inside a handler."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock, Thread
from types import FrameType
from typing import Final, Literal, Protocol

from queue_core.worker.forks import give_children_signals

ASKED_BY: Final = (signal.SIGTERM, signal.SIGINT)
READ_BYTES: Final = 64


class StopState(Protocol):
    """The worker, as it is asked to finish."""

    def drain(self, reason: str) -> None:
        """Finish what runs."""

    def release_now(self, reason: str) -> None:
        """Let go at once."""


class Requests:
    """SIGTERM and SIGINT ask a worker to drain; the second of a kind, to let go at once.

    Of a kind: Ctrl-C reaches a whole group of processes, and their supervisor's SIGTERM right after it is no
    impatience. A signal may be heard twice, by Python's handler in the main thread and by the wake-up descriptor in a
    thread beside it, where the main thread may be long in coming: how often it came is the greater count of the two.
    """

    def __init__(self, worker: StopState) -> None:
        self._worker = worker
        self._lock = RLock()  # a handler may be interrupted by another signal's
        self._counts: Mapping[str, Counter[int]] = {"handler": Counter(), "descriptor": Counter()}
        self._done: Counter[int] = Counter()

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """As a signal handler."""
        self.came(number, by="handler")

    def came(self, number: int, *, by: Literal["handler", "descriptor"]) -> None:
        """One more signal of this number was heard in one of the two ways."""
        with self._lock:
            counts = self._counts[by]
            counts[number] += 1
            if counts[number] <= self._done[number]:
                return
            self._done[number] = counts[number]
            is_first = counts[number] == 1
        name = signal.Signals(number).name
        if is_first:
            self._worker.drain(name)
        else:
            self._worker.release_now(f"{name} again")


@contextmanager
def heard(worker: StopState, *, beside: Literal["yes", "no"]) -> Iterator[Callable[[], list[str]]]:
    """Hear SIGTERM and SIGINT for the length of the block; `beside`: in a thread of their own, too.

    The value sets back what a handler has changed, and names the signals that it took; for the main thread only.
    Children that are forked meanwhile begin with the handlers of before.
    """
    requests = Requests(worker)
    before = {number: signal.signal(number, requests.handle) for number in ASKED_BY}
    give_children_signals({number: signal.SIG_DFL if old is None else old for number, old in before.items()})
    reading, writing = os.pipe() if beside == "yes" else (-1, -1)
    wakeup_before = -1
    if beside == "yes":
        os.set_blocking(writing, False)
        wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        Thread(target=_listen, args=(reading, requests), name="towline-signals", daemon=True).start()

    def restore() -> list[str]:
        if writing >= 0:
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        taken = [number for number in ASKED_BY if signal.getsignal(number) != requests.handle]
        for number in taken:
            signal.signal(number, requests.handle)
        return [number.name for number in taken]

    try:
        yield restore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if writing >= 0:
            signal.set_wakeup_fd(wakeup_before)
            os.close(writing)  # the thread reads the end of it


def _listen(reading: int, requests: Requests) -> None:
    with contextlib.suppress(OSError):
        while numbers := os.read(reading, READ_BYTES):
            for number in numbers:
                if number in ASKED_BY:
                    requests.came(number, by="descriptor")
    os.close(reading)
