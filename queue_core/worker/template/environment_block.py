"""Shows further variables of this process in /proc/PID/environ: a supervisor finds its workers again by them.

The kernel shows the memory that held the environment when the program was executed. A forked worker has its template's
there, in a copy of its own. The variables that both have stay where they are, as C code may have kept pointers to
them; the others are written over one variable, whose value only makes room.
"""

import ctypes
import os
from collections.abc import Mapping
from typing import Final

ROOM_VARIABLE: Final = "TOWLINE_TEMPLATE_ROOM"
"""The variable that makes room."""
_ARG_START, _ENV_START = 47, 49
"""Fields of /proc/self/stat, counted from 0, each before that of the end; see proc_pid_stat(5)."""


class NoRoomError(Exception):
    """The environment that /proc shows of this process can't be added to."""


def find_room() -> tuple[int, int]:
    """Return the address and the size, in bytes, of the entry that makes room.

    Raises `NoRoomError` when it is not there: the kernel does not tell, or a library has written over the environment,
    as those do that change a process's title.
    """
    start, end = _block(_ENV_START)
    if not 0 < start < end:
        raise NoRoomError("the kernel does not tell where the environment is")
    block = b"\0" + ctypes.string_at(start, end - start)
    found = block.find(f"\0{ROOM_VARIABLE}=".encode())
    ends_at = block.find(b"\0", found + 1)
    if found < 0 or ends_at < 0:
        raise NoRoomError("a library has written over the environment, for example to change the process's title")
    return start + found, ends_at - found


def add_variables(variables: Mapping[str, str]) -> None:
    """Set variables, for this program and for those that read /proc/PID/environ. Raises `NoRoomError`.

    Variables of Towline come first there; those that do not fit are left out of /proc alone.
    """
    os.environ.update(variables)
    start, size = find_room()
    block = bytearray()
    for name, text in sorted(variables.items(), key=lambda item: (not item[0].startswith("TOWLINE_"), item[0])):
        entry = os.fsencode(f"{name}={text}") + b"\0"
        if len(block) + len(entry) > size:
            break
        block += entry
    ctypes.memmove(start, bytes(block).ljust(size, b"\0"), size)


def shorten_command(ending: str) -> None:
    """Take this ending off the last argument that `ps` shows, from /proc/PID/cmdline, if that ends so."""
    start, end = _block(_ARG_START)
    text = os.fsencode(ending) + b"\0"
    if 0 < start <= end - len(text) and ctypes.string_at(end - len(text), len(text)) == text:
        ctypes.memset(end - len(text), 0, len(text))


def _block(field: int) -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - imports little
        text = file.read()
    fields = text[text.rindex(b")") + 2 :].split()
    return int(fields[field - 2]), int(fields[field - 1])
