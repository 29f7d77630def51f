"""Rewrites what /proc/PID/environ shows of this process: a supervisor finds its workers again by it.

The kernel shows the memory that held the environment when the program was executed. A forked worker has its
template's there until it overwrites it, in its own copy of that memory.
"""

import ctypes
import os
from collections.abc import Mapping
from typing import Final

ROOM_VARIABLE: Final = "TOWLINE_TEMPLATE_ROOM"
"""A variable whose value only makes room: workers have more variables than their template."""
ROOM_BYTES: Final = 16_384
_ENV_START, _ENV_END = 49, 50
"""Fields of /proc/self/stat, counted from 0; see proc_pid_stat(5)."""


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replace all variables, for this program and for those that read /proc/PID/environ.

    Variables of Towline come first there; what does not fit is left out of /proc alone. Call it while no other thread
    runs: C code that kept a pointer to an old variable would read the new text.
    """
    os.environ.clear()  # removes every pointer into the old memory
    os.environ.update(environment)
    start, end = _block()
    ours_first = sorted(environment.items(), key=lambda item: (not item[0].startswith("TOWLINE_"), item[0]))
    entries = [os.fsencode(f"{name}={text}") + b"\0" for name, text in ours_first]
    block = bytearray()
    for entry in entries:
        if len(block) + len(entry) > end - start:
            break
        block += entry
    ctypes.memmove(start, bytes(block).ljust(end - start, b"\0"), end - start)


def _block() -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - imports little
        text = file.read()
    fields = text[text.rindex(b")") + 2 :].split()
    return int(fields[_ENV_START - 2]), int(fields[_ENV_END - 2])
