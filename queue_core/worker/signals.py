"""SIGTERM and SIGINT of a worker, handled even while its main thread is inside a task's handler."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock, Thread, get_ident
from types import FrameType
from typing import Final, Literal, Protocol

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
MAX_SIGNALS_PER_READ: Final = 64


class StoppableWorker(Protocol):
    """A worker that signals can stop."""

    def drain(self, reason: str) -> None:
        """Lease no more and let running handlers finish."""

    def release_now(self, reason: str) -> None:
        """Release all leases at once."""


class StopSignals:
    """Drain a worker at SIGTERM or SIGINT; release its leases at the second signal of the same kind.

    Signals are counted per kind, because Ctrl-C reaches the whole process group and the supervisor's SIGTERM follows
    it. One signal may be seen twice: by Python's handler in the main thread, which may be delayed, and through the
    wake-up descriptor in a watcher thread. The number of signals is the greater of both counts.
    """

    def __init__(self, worker: StoppableWorker) -> None:
        self._worker = worker
        self._lock = RLock()  # a handler may be interrupted by another signal's
        self._counts: Mapping[str, Counter[int]] = {"handler": Counter(), "descriptor": Counter()}
        self._handled: Counter[int] = Counter()

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; to be set with `signal.signal`."""
        self.count(number, by="handler")

    def has_seen(self, number: int) -> bool:
        """Return whether a signal of this number has come."""
        return self._handled[number] > 0

    def count(self, number: int, *, by: Literal["handler", "descriptor"]) -> None:
        """Count one more signal of this number, seen by one of the two ways, and drain or release."""
        with self._lock:
            counts = self._counts[by]
            counts[number] += 1
            if counts[number] <= self._handled[number]:
                return
            self._handled[number] = counts[number]
            is_first = counts[number] == 1
        name = signal.Signals(number).name
        if is_first:
            self._worker.drain(name)
        else:
            self._worker.release_now(f"{name} again")


@contextmanager
def stop_signals_handled(
    worker: StoppableWorker, *, watcher: Literal["thread", "none"]
) -> Iterator[Callable[[], list[str]]]:
    """Handle SIGTERM and SIGINT within the block; `watcher`: `thread` reads them in a thread of their own, too.

    The value is a function for the main thread: it restores signal handlers that a task's handler replaced, and returns
    the names of those signals. Children forked within the block start with the signal handlers from before it.

    After the block the first signal of a kind that has not come yet changes nothing, as the worker ends already: it
    would be killed before it has written its files out. The next one does what it did before the block.
    """
    stop_signals = StopSignals(worker)
    before = {number: signal.signal(number, stop_signals.handle) for number in STOP_SIGNALS}
    give_children_signals({number: signal.SIG_DFL if old is None else old for number, old in before.items()})
    reading, writing = os.pipe() if watcher == "thread" else (-1, -1)
    wakeup_before = -1
    if watcher == "thread":
        os.set_blocking(writing, False)
        wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        Thread(target=_read_wakeups, args=(reading, stop_signals), name="towline-signals", daemon=True).start()

    def restore() -> list[str]:
        if writing >= 0:
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        taken = [number for number in STOP_SIGNALS if signal.getsignal(number) != stop_signals.handle]
        for number in taken:
            signal.signal(number, stop_signals.handle)
        return [number.name for number in taken]

    try:
        yield restore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if stop_signals.has_seen(number) else _restorer(handler))
        if writing >= 0:
            signal.set_wakeup_fd(wakeup_before)
            os.close(writing)  # the thread reads the end of it


def _restorer(
    handler: Callable[[int, FrameType | None], object] | int | None,
) -> Callable[[int, FrameType | None], None]:
    """Return a handler that lets a worker end that ends by itself: its first signal only restores `handler`."""

    def restore(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, handler)

    return restore


def give_children_signals(handlers: Mapping[signal.Signals, object]) -> None:
    """Make forked children start with these signal handlers and without the worker's wake-up descriptor.

    Signals are blocked from the fork until the handlers are set: a signal to the child must not reach the worker. Call
    this once per process; it can't be undone.
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


def _read_wakeups(reading: int, stop_signals: StopSignals) -> None:
    with contextlib.suppress(OSError):
        while numbers := os.read(reading, MAX_SIGNALS_PER_READ):
            for number in numbers:
                if number in STOP_SIGNALS:
                    stop_signals.count(number, by="descriptor")
    os.close(reading)
