"""The end of a worker that was forked from a process with an application or a template of its own.

The objects of that process are left out of all collections, so the interpreter's own teardown would reach neither the
buffers of a file that a module keeps nor what only a module leads to. What this process has made itself is finished as
the interpreter finishes it; what it has inherited is not: that belongs to all processes together (ADR 48).
"""

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from types import CoroutineType, FunctionType, GeneratorType
from typing import Final, NoReturn

_BASE: Final = io.FileIO.__mro__[-2]
"""The class of C behind all files: unlike `io.IOBase` it has no checks of its own, which would run code."""


def end_process(code: int) -> NoReturn:
    """End the process as the interpreter does: join threads, run `atexit`, finish own objects, write buffers out.

    A request to stop does not cut it short.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with contextlib.suppress(Exception):  # both print their errors themselves
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  as multiprocessing ends its children
        atexit._run_exitfuncs()  # noqa: SLF001
    with contextlib.suppress(Exception):
        gc.collect()
        _finish(gc.get_objects())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or missing
            stream.flush()
    flush_c_streams()
    os._exit(code)


def flush_c_streams() -> None:
    """Write out what libraries of C have printed."""
    import ctypes  # a template has it; a worker that is executed needs it no sooner

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def write_out(files: Iterable[object]) -> None:
    """Write the buffers of files out; those of text first, which are written into those of bytes."""
    binary = []
    for file in files:
        if type(file) is io.TextIOWrapper:
            _flush(file)
        elif type(file) in (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair):
            binary.append(file)
    for file in binary:
        _flush(file)


def _flush(file: object) -> None:
    with contextlib.suppress(Exception):
        if not file.closed:  # type: ignore[attr-defined]
            file.flush()  # type: ignore[attr-defined]


def _finish(objects: list[object]) -> None:
    """Call the finalizers in Python, the newest object's first, as that may use an older one; then write files out."""
    for each in reversed(objects):
        kind = type(each)
        finalizer = next((base.__dict__["__del__"] for base in kind.__mro__ if "__del__" in base.__dict__), None)
        try:
            if isinstance(finalizer, FunctionType):
                finalizer(each)
            elif kind in (GeneratorType, CoroutineType) or (issubclass(kind, _BASE) and kind.__module__ != "_io"):
                each.close()  # type: ignore[attr-defined]
        except BaseException:  # noqa: BLE001  as in any finalizer
            sys.stderr.write(f"Exception ignored in: {kind.__qualname__}\n{traceback.format_exc()}")
    write_out(objects)
