"""Runs a command of `towline` with a probe in each of its loops, and tells over a pipe how long one stood still.

A pause is the time by which a tick of the loop comes late, in parts: the processor time of the loop's own thread (what
the garbage collector took of it is known too), then as much as other threads of Python's ran meanwhile, as they may
have had the interpreter's lock, then what is left, for which it waited for the kernel. Threads that know no Python, as
gRPC's, never have that lock: what they ran is told, and is no part of it. The time for which the loop's thread was
ready and had no processor is what a busy machine takes away: it does not count.
"""

import asyncio
import ctypes
import gc
import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import FrameType

SCHEDULED = "/proc/thread-self/schedstat"
"""Of the thread that opens it: nanoseconds on a processor, nanoseconds for which it was ready and had none."""
PROCESSOR_TIME = 6
"""With the number of a thread, the clock of its processor time: `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` of Linux."""
TICK_SECONDS = 0.002
LATE_SECONDS = 0.025
"""When a tick is so late, the stacks of all threads are kept."""
WITH_MEMORY = b"m"
"""The byte by which the memory is asked for too."""
SHOWN_FRAMES = 5
WAITING = frozenset({"wait", "look", "select", "poll", "get", "sleep", "_worker", "_work", "answer", "join", "sigwait"})
"""The innermost functions of threads that do nothing."""


_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class Probe:
    """The longest pause of all loops since it was asked last, and where the loop was then."""

    def __init__(self) -> None:
        self._held_seconds = 0.0
        self._longest: dict[str, object] = {}
        self._collecting_seconds = 0.0
        self._collection_began = 0.0
        self._due: dict[int, float] = {}
        self._stacks: dict[int, str] = {}
        gc.callbacks.append(self._collect)

    def _collect(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting_seconds += time.thread_time() - self._collection_began

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tick in a loop, from now on."""
        scheduled = os.open(SCHEDULED, os.O_RDONLY)

        def clocks() -> tuple[float, float, float, float, float]:
            ready = int(os.pread(scheduled, 100, 0).split()[1]) / 1e9
            own = time.thread_time()
            return time.perf_counter(), own, time.process_time() - own, ready, self._collecting_seconds

        thread = threading.get_ident()
        last, due, beside = clocks(), time.perf_counter(), thread_seconds(thread)

        def tick() -> None:
            nonlocal last, due, beside
            found = clocks()
            _, own, others, ready, collecting = (now - then for now, then in zip(found, last, strict=True))
            late = found[0] - due
            own = min(own, late)
            ran = {one: seconds - beside.get(one, 0.0) for one, seconds in thread_seconds(thread).items()}
            of_python = min(others, sum(ran.values()))
            lock = max(0.0, min(late - ready - own, of_python))
            if own + lock > self._held_seconds:
                self._held_seconds = own + lock
                self._longest = {
                    "own_seconds": own,
                    "lock_seconds": lock,
                    "waited_seconds": max(0.0, late - ready - own - lock),
                    "late_seconds": late,
                    "collecting_seconds": collecting,
                    "where": self._stacks.get(thread, ""),
                    "beside": f"{max(ran, key=ran.__getitem__)[1]}" if of_python > own else "",
                    "unlocked_seconds": others - of_python,
                }
            self._stacks.pop(thread, None)
            last, beside = clocks(), thread_seconds(thread)  # reading them may have taken the lock away
            due = last[0] + TICK_SECONDS
            self._due[thread] = due
            loop.call_later(TICK_SECONDS, tick)

        loop.call_soon(tick)

    def look(self) -> None:
        """Keep the stacks when a loop is late; runs in a thread of its own.

        It needs the interpreter's lock: what holds that in C is seen as it comes out. (A handler of `faulthandler`
        needs none, but a program that goes on breaks by it now and then.)
        """
        while True:
            time.sleep(TICK_SECONDS)
            now = time.perf_counter()
            for thread, due in list(self._due.items()):
                if now - due > LATE_SECONDS and thread not in self._stacks:
                    frames = sys._current_frames()
                    first = [frames.pop(thread)] if thread in frames else []
                    others = [one for one in frames.values() if one.f_code.co_name not in WAITING]
                    self._stacks[thread] = " || beside ".join(map(_lines, [*first, *others]))

    def answer(self, asked: int, told: int) -> None:
        """Tell what was found whenever a byte arrives; runs in a thread of its own.

        With the memory where that is asked for: to count it holds the interpreter's lock for up to 50 ms.
        """
        while byte := os.read(asked, 1):
            found, self._longest, self._held_seconds = self._longest, {}, 0.0
            sizes = memory() if byte == WITH_MEMORY else {}
            os.write(told, json.dumps({**found, **sizes}).encode() + b"\n")


def thread_seconds(but: int) -> dict[tuple[int, str], float]:
    """Return the processor time of each thread of Python's, by its number and name; but not that of one."""
    found: dict[tuple[int, str], float] = {}
    for thread in list(threading._active.values()):  # type: ignore[attr-defined]  # `enumerate` waits for a lock
        number = thread.native_id
        if number is not None and thread.ident != but:
            with suppress(OSError):  # it has ended
                found[number, thread.name] = time.clock_gettime(~number << 3 | PROCESSOR_TIME)
    return found


def _lines(frame: FrameType) -> str:
    found = reversed(traceback.extract_stack(frame)[-SHOWN_FRAMES:])
    return " < ".join(f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in found)


class _Mallinfo(ctypes.Structure):
    """What `mallinfo2` of glibc returns, of all arenas together."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]


def memory() -> dict[str, int]:
    """Return what of this process's memory is in use: bytes of malloc, its free bytes, and Python's own blocks."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    used = int(found.uordblks + found.hblkhd)
    return {"malloc_bytes": used, "free_bytes": int(found.fordblks), "blocks": sys.getallocatedblocks()}


def main() -> None:
    asked, told, *command = sys.argv[1:]
    probe = Probe()
    run_forever = asyncio.base_events.BaseEventLoop.run_forever

    def run_watched(loop: asyncio.base_events.BaseEventLoop) -> None:
        probe.watch(loop)
        run_forever(loop)

    asyncio.base_events.BaseEventLoop.run_forever = run_watched  # type: ignore[method-assign]
    threading.Thread(target=probe.answer, args=(int(asked), int(told)), daemon=True).start()
    threading.Thread(target=probe.look, daemon=True).start()
    sys.argv = ["towline", *command]
    from orchestrator.cli import main as towline

    towline()


if __name__ == "__main__":
    main()
