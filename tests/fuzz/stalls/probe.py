"""Runs a command of `towline` with a probe in each of its loops, and tells over a pipe how long one stood still.

A pause is the time by which a tick of the loop comes late, without the time for which its thread was ready and had no
processor, and at most the processor time that the process took meanwhile: what a busy machine takes away does not
count, and what another thread does with the interpreter's lock does.
"""

import asyncio
import json
import os
import resource
import sys
import threading
import time
import traceback
from types import FrameType

SCHEDULED = "/proc/thread-self/schedstat"
"""Of the thread that opens it: nanoseconds on a processor, nanoseconds for which it was ready and had none."""
TICK_SECONDS = 0.002
LATE_SECONDS = 0.03
"""A tick that is so late has the stack of its loop kept."""


class Probe:
    """The longest pause of all loops since it was asked last, and where the loop was then."""

    def __init__(self) -> None:
        self.pause_seconds = 0.0
        self.where = ""
        self._due: dict[int, float] = {}

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tick in a loop, from now on."""
        thread = threading.get_ident()
        scheduled = os.open(SCHEDULED, os.O_RDONLY)

        def ready_seconds() -> float:
            return int(os.pread(scheduled, 100, 0).split()[1]) / 1e9

        last_cpu, last_ready = time.process_time(), ready_seconds()

        def tick() -> None:
            nonlocal last_cpu, last_ready
            now, cpu, ready = time.perf_counter(), time.process_time(), ready_seconds()
            pause = min(now - self._due[thread] - (ready - last_ready), cpu - last_cpu)
            self.pause_seconds = max(self.pause_seconds, pause)
            last_cpu, last_ready = cpu, ready
            self._due[thread] = time.perf_counter() + TICK_SECONDS  # reading it may have taken the lock away
            loop.call_later(TICK_SECONDS, tick)

        self._due[thread] = time.perf_counter()
        loop.call_soon(tick)

    def look(self) -> None:
        """Keep the stack of a loop that is late; runs in a thread of its own."""
        while True:
            time.sleep(TICK_SECONDS)
            now = time.perf_counter()
            for thread, due in list(self._due.items()):
                frame = sys._current_frames().get(thread)
                if now - due > LATE_SECONDS and frame is not None:
                    self.where = _lines(frame)

    def answer(self, asked: int, told: int) -> None:
        """Tell what was found whenever a byte arrives; runs in a thread of its own."""
        while os.read(asked, 1):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            found = {"pause_seconds": self.pause_seconds, "where": self.where, "peak_kib": peak}
            self.pause_seconds, self.where = 0.0, ""
            os.write(told, json.dumps(found).encode() + b"\n")


def _lines(frame: FrameType) -> str:
    found = traceback.extract_stack(frame)[-4:]
    return " < ".join(f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in reversed(found))


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
