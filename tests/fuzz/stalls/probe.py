"""Runs a command of `towline` with a probe in each of its loops, and tells over a pipe how long one stood still.

A pause is the time by which a tick of the loop comes late, in parts: the processor time of the loop's own thread (what
the garbage collector took of it is known too), then as much as other threads of the process ran meanwhile, as they may
have had the interpreter's lock, then what is left, for which it waited for the kernel. The time for which the loop's
thread was ready and had no processor is what a busy machine takes away: it does not count.
"""

import asyncio
import ctypes
import faulthandler
import gc
import json
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback

SCHEDULED = "/proc/thread-self/schedstat"
"""Of the thread that opens it: nanoseconds on a processor, nanoseconds for which it was ready and had none."""
TICK_SECONDS = 0.002
LATE_SECONDS = 0.025
"""When a tick is so late, the stacks of all threads are kept."""
SHOWN_FRAMES = 5
SIGEV_THREAD_ID = 4
WAITING = frozenset({"wait", "select", "poll", "get", "sleep", "_worker", "_work", "answer", "join", "sigwait"})
"""The innermost functions of threads that do nothing."""


_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Alarm:
    """SIGALRM for the thread that makes it, and for no other: `signal.setitimer` would let any thread have it."""

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(None)
        self._timer = ctypes.c_void_p()
        event = struct.pack("Qiii44x", 0, signal.SIGALRM, SIGEV_THREAD_ID, threading.get_native_id())
        assert self._library.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._timer)) == 0

    def set(self, seconds: float) -> None:
        """Send it so many seconds from now, in place of any before."""
        self._library.timer_settime(self._timer, 0, struct.pack("qqqq", 0, 0, 0, round(seconds * 1e9)), None)


class Probe:
    """The longest pause of all loops since it was asked last, and where the loop was then."""

    def __init__(self) -> None:
        self._held_seconds = 0.0
        self._longest: dict[str, object] = {}
        self._collecting_seconds = 0.0
        self._collection_began = 0.0
        # A handler in C, which needs no lock of the interpreter: it sees a loop that waits for it, or is in C code.
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        faulthandler.register(signal.SIGALRM, self._stacks, all_threads=False)
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

        alarm = _Alarm()
        last, due = clocks(), time.perf_counter()

        def tick() -> None:
            nonlocal last, due
            found = clocks()
            _, own, others, ready, collecting = (now - then for now, then in zip(found, last, strict=True))
            late = found[0] - due
            own = min(own, late)
            lock = max(0.0, min(late - ready - own, others))
            if own + lock > self._held_seconds:
                self._held_seconds = own + lock
                self._longest = {
                    "own_seconds": own,
                    "lock_seconds": lock,
                    "waited_seconds": max(0.0, late - ready - own - lock),
                    "late_seconds": late,
                    "collecting_seconds": collecting,
                    "where": self._where() if late > LATE_SECONDS else "",
                }
            last = clocks()  # reading them may have taken the lock away
            due = last[0] + TICK_SECONDS
            alarm.set(LATE_SECONDS)
            loop.call_later(TICK_SECONDS, tick)

        loop.call_soon(tick)

    def _where(self) -> str:
        """Return the stack of this thread when its tick became late, and what others do now that it goes on."""
        text = os.pread(self._stacks.fileno(), 1 << 20, 0).decode()
        os.truncate(self._stacks.fileno(), 0)
        os.lseek(self._stacks.fileno(), 0, os.SEEK_SET)
        stacks = [re.findall(r'File "(?:[^"]*/)?([^"]+)", line (\d+) in (\S+)', text)[:SHOWN_FRAMES]]
        for thread, frame in sys._current_frames().items():
            if thread != threading.get_ident() and frame.f_code.co_name not in WAITING:
                found = reversed(traceback.extract_stack(frame)[-SHOWN_FRAMES:])
                stacks.append([(one.filename.rpartition("/")[2], str(one.lineno), one.name) for one in found])
        return " || beside ".join(" < ".join(f"{file}:{line} {name}" for file, line, name in stack) for stack in stacks)

    def answer(self, asked: int, told: int) -> None:
        """Tell what was found whenever a byte arrives; runs in a thread of its own."""
        while os.read(asked, 1):
            found, self._longest, self._held_seconds = self._longest, {}, 0.0
            os.write(told, json.dumps({**found, **memory()}).encode() + b"\n")


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
    sys.argv = ["towline", *command]
    from orchestrator.cli import main as towline

    towline()


if __name__ == "__main__":
    main()
