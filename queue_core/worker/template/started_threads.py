"""Python threads that an import started, and the lines of code that started them."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import Final
from weakref import WeakKeyDictionary

from queue_core.attempts.failures import shown_path
from queue_core.worker.template.hazard import REMEDY, ForkHazard
from queue_core.worker.template.imported_files import is_of_application

_STARTERS: Final = ("threading", "concurrent.futures", "asyncio", "queue_core.worker.template")
"""Packages that start threads for their callers."""
_UNKNOWN: Final = "an import"


class StartedThreads:
    """The places that started the threads which still live."""

    def __init__(self) -> None:
        self._places: WeakKeyDictionary[Thread, str] = WeakKeyDictionary()

    def add(self, thread: Thread, place: str) -> None:
        """Record a thread that is about to start."""
        self._places[thread] = place

    def place_of(self, thread: Thread) -> str | None:
        """Return the line that started a thread; None for one that was not recorded."""
        return self._places.get(thread)

    @property
    def alive(self) -> dict[str, str]:
        """The names of the recorded threads that live, and the lines that started them."""
        return {thread.name: place for thread, place in list(self._places.items()) if thread.is_alive()}


@contextmanager
def recorded_threads() -> Iterator[StartedThreads]:
    """Record each thread that starts within the block, and from which line of code.

    A thread that a C library starts, or `_thread.start_new_thread`, is not recorded.
    """
    threads = StartedThreads()
    original = Thread.start

    def start(self: Thread) -> None:
        threads.add(self, place_of_frame(sys._getframe(1)))  # noqa: SLF001 - the way to the caller's line
        original(self)

    Thread.start = start  # type: ignore[method-assign]
    try:
        yield threads
    finally:
        Thread.start = original  # type: ignore[method-assign]


def place_of_frame(frame: FrameType | None) -> str:
    """Return the line that started a thread, from the frame of the start.

    `shop/db.py:12` for the user's code; for a library its module, and the user's line that called or imported it.
    """
    library = ""
    while frame is not None:
        module, filename, number = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
        if _is_starter(module) or filename.startswith("<frozen"):
            continue
        if is_of_application(filename) and not module.startswith("queue_core."):
            place = f"{shown_path(filename)}:{number}"
            return f"{library}, called by {place}," if library else place
        library = library or f"{module}:{number}"
    return library or _UNKNOWN


def _is_starter(module: str) -> bool:
    return module in _STARTERS or module.startswith(tuple(f"{name}." for name in _STARTERS))


def python_thread_hazards(threads: StartedThreads | None) -> list[ForkHazard]:
    """Return a hazard for each Python thread beside the caller's: it would not be there in a forked worker.

    Threads of `_thread.start_new_thread` are named by the line that they are at.
    """
    own = threading.current_thread()
    found = [
        _hazard(thread.name, (threads.place_of(thread) if threads else None) or _UNKNOWN)
        for thread in threading.enumerate()
        if thread not in (own, threading.main_thread())
    ]
    return [*found, *(_hazard("of _thread", place_of_frame(frame)) for frame in unlisted_frames())]


def unlisted_frames() -> Sequence[FrameType]:
    """Return the frames of threads that `threading` does not know."""
    listed = {thread.ident for thread in threading.enumerate()} | {threading.get_ident()}
    return [frame for ident, frame in sys._current_frames().items() if ident not in listed]  # noqa: SLF001


def python_native_ids() -> set[int]:
    """Return the kernel's numbers of the threads that `threading` knows, and of the caller's."""
    ids = {thread.native_id for thread in threading.enumerate()}
    return {number for number in ids if number is not None} | {threading.get_native_id()}


def _hazard(name: str, place: str) -> ForkHazard:
    return ForkHazard(
        kind="python_thread",
        detail=f"thread {name!r} of {place.rstrip(',')}",
        sentence=f"{place} started the thread {name!r} while it was imported: start it {REMEDY}",
    )
