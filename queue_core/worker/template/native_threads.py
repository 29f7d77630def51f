"""Threads of C libraries that an import left running, and the libraries that they belong to.

A forked process has none of its parent's threads. A library that knows this ends its threads before the fork and starts
them anew on both sides (OpenBLAS); another one waits in the child for threads that it has not (GNU OpenMP, after its
first parallel region). A trial fork shows which of the two a library is. A library whose threads stay and whose child
does without them is known by name only.
"""

import bisect
import contextlib
import os
import select
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_core.worker.template.hazard import ForkHazard
from queue_core.worker.template.started_threads import python_native_ids, unlisted_frames

ENDING_CHECKS: Final = 20
ENDING_CHECK_SECONDS: Final = 0.01
"""A thread that Python or a library has joined may be in the kernel's list a moment longer."""
TRIAL_SECONDS: Final = 10.0
"""Longest that the handlers of all libraries may take in a forked child."""
MAX_STACKS: Final = 32
MAX_STACK_BYTES: Final = 1 << 18
_PF_EXITING: Final = 0x4
_TASKS: Final = Path("/proc/self/task")
_WORD_BYTES: Final = 8

LIBRARIES: Final = (
    ("libgomp", "GNU OpenMP (libgomp)"),
    ("libiomp", "Intel OpenMP (libiomp5)"),
    ("libomp", "LLVM OpenMP (libomp)"),
    ("openblas", "OpenBLAS"),
    ("libmkl", "Intel MKL"),
    ("libtbb", "oneTBB"),
    ("libtorch", "PyTorch"),
    ("libc10", "PyTorch"),
    ("libarrow", "Apache Arrow"),
    ("polars", "Polars"),
    ("cygrpc", "gRPC"),
    ("tensorflow", "TensorFlow"),
    ("jaxlib", "JAX"),
    ("cv2", "OpenCV"),
    ("libcuda", "CUDA"),
    ("librdkafka", "librdkafka"),
)
"""Parts of file names, and the libraries that they are of."""
_THREAD_NAMES: Final = (
    ("grpc_", "gRPC"),
    ("event_engine", "gRPC"),
    ("lifeguard", "gRPC"),
    ("rdk:", "librdkafka"),
    ("polars-", "Polars"),
)
_SAFE_NAMES: Final = frozenset({"jemalloc_bg_thd"})
"""Names of threads that a child does without. jemalloc, within Apache Arrow, which pandas imports, takes its locks
before a fork, and the child goes on with the thread switched off (its `background_thread_postfork_child`)."""
_ENDS_ITS_THREADS: Final = frozenset({"OpenBLAS"})
"""Libraries known to end their threads before a fork, where no trial fork can be made. Its builds on OpenMP have the
threads of that library instead."""
_RUNTIMES: Final = ("libc.", "libc-", "ld-", "libpthread", "libstdc++", "libgcc", "libm.", "[")
_ANOTHER: Final = "a C library"


@dataclass(frozen=True, slots=True)
class NativeThread:
    """A thread that is not Python's.

    Attributes:
        name: the kernel's name of it, "" where it is that of the process.
        file: the library whose code the thread began in, "" where its stack does not show it.
    """

    name: str
    file: str

    @property
    def library(self) -> str:
        """The library that the thread belongs to, as far as can be seen."""
        for part, library in _THREAD_NAMES:
            if self.name.startswith(part):
                return library
        for part, library in LIBRARIES:
            if part in self.file:
                return library
        return self.file or _ANOTHER


def native_thread_hazards(*, may_fork: bool) -> list[ForkHazard]:
    """Return a hazard for each library whose threads stay at a fork.

    Args:
        may_fork: make a trial fork, if there are such threads at all. Not with other hazards: handlers of a library
            that is in use may never return. Then libraries known to end their threads are left out.
    """
    if not _native_ids():
        return []
    if may_fork:
        refused = trial_fork()
        if refused is not None:
            return [refused]
    threads = _native_threads(_lasting_ids())
    if not may_fork:
        threads = [thread for thread in threads if thread.library not in _ENDS_ITS_THREADS]
    return hazards_of(threads, loaded=_loaded_libraries())


def hazards_of(threads: Sequence[NativeThread], *, loaded: Sequence[str]) -> list[ForkHazard]:
    """Return a hazard for each library that has threads. Pure.

    Args:
        loaded: the libraries with threads of their own that are in memory, for threads whose stacks show none.
    """
    counts = Counter((thread.library, thread.name if thread.library == _ANOTHER else "") for thread in threads)
    return [
        _hazard(library, name, count, f" (perhaps of {' or '.join(loaded)})" if library == _ANOTHER and loaded else "")
        for (library, name), count in sorted(counts.items())
    ]


def _hazard(library: str, name: str, count: int, perhaps: str) -> ForkHazard:
    called = f" {name!r}" if name else ""
    number, runs = ("a thread", "runs") if count == 1 else (f"{count} threads", "run")
    return ForkHazard(
        kind="native_thread",
        detail=f"{number}{called} of {library}{perhaps}",
        sentence=f"{number}{called} of {library}{perhaps} {runs} after the import and would be missing in a forked "
        "worker, which may hang: use the library first in a handler or in @app.on_start, then workers can fork",
    )


def trial_fork(*, seconds: float = TRIAL_SECONDS) -> ForkHazard | None:
    """Fork a child that ends at once; return a hazard when that takes longer, as a handler of forks does not return.

    Handlers before a fork have then run: the threads of libraries that end them are gone.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: "use of fork() may lead to deadlocks"
        child = os.fork()
    if not child:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):  # a handler of the application has reaped it
        ending = os.pidfd_open(child)
        try:
            waiting = select.poll()
            waiting.register(ending, select.POLLIN)
            has_ended = bool(waiting.poll(seconds * 1000))
            if not has_ended:
                signal.pidfd_send_signal(ending, signal.SIGKILL)
        finally:
            os.close(ending)
        os.waitpid(child, 0)
        if not has_ended:
            return ForkHazard(
                kind="fork_handler",
                detail=f"a trial fork did not end within {seconds:g} s",
                sentence=f"a trial fork of the imported application did not end within {seconds:g} s, in a "
                "library's own handler of forks: import or use that library first in @app.on_start, then workers can "
                "fork",
            )
    return None


def _lasting_ids() -> list[int]:
    """Return the kernel's numbers of native threads that do not end within a moment."""
    ids = _native_ids()
    for _ in range(ENDING_CHECKS):
        if not ids:
            break
        threading.Event().wait(ENDING_CHECK_SECONDS)
        ids = _native_ids()
    return ids


def _native_ids() -> list[int]:
    """Return the kernel's numbers of native threads, none where all may be threads of `_thread`."""
    python = python_native_ids()
    living = sorted(int(task.name) for task in _TASKS.iterdir() if not _is_ending(task))
    ids = [number for number in living if number not in python and _name_of(number) not in _SAFE_NAMES]
    return ids if len(ids) > len(unlisted_frames()) else []


def _is_ending(task: Path) -> bool:
    try:
        fields = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def _native_threads(ids: Sequence[int]) -> list[NativeThread]:
    """Return the native threads with these numbers, without those that Python runs."""
    process = _name_of(os.getpid())
    code = CodeMap.read()
    found = []
    for count, number in enumerate(ids):
        name = _name_of(number)
        file = code.origin_of(number) if count < MAX_STACKS else ""
        found.append(NativeThread("" if name == process else name, file))
    # A thread of `_thread` begins in the interpreter, and has a hazard of its own.
    found.sort(key=lambda thread: (bool(thread.name), bool(thread.file)))
    return found[len(unlisted_frames()) :]


def _name_of(number: int) -> str:
    with contextlib.suppress(OSError):
        return (_TASKS / str(number) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _loaded_libraries() -> list[str]:
    files = {name for name in CodeMap.read().files if name}
    return sorted({library for part, library in LIBRARIES if any(part in name for name in files)} - _ENDS_ITS_THREADS)


def _stack_pointer_of(number: int) -> int:
    """Return where the stack of a waiting thread ends. Raises `ValueError` or `OSError` when it can't be read."""
    for _ in range(ENDING_CHECKS):
        fields = (_TASKS / str(number) / "syscall").read_text(encoding="ascii").split()
        if fields != ["running"]:
            return int(fields[-2], 16)
        threading.Event().wait(ENDING_CHECK_SECONDS)
    raise ValueError(f"thread {number} runs without a pause")


class CodeMap:
    """The files whose code is in this process, by address."""

    def __init__(self, code: Sequence[tuple[int, int, str]], stacks: Sequence[tuple[int, int]]) -> None:
        self._starts = [start for start, _, _ in code]
        self._code = code
        self._stacks = stacks

    @classmethod
    def read(cls) -> "CodeMap":
        """Read the kernel's list of this process."""
        code, stacks = [], []
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            fields = line.split(maxsplit=5)
            start, _, end = fields[0].partition("-")
            if "x" in fields[1]:
                code.append((int(start, 16), int(end, 16), Path(fields[5]).name if len(fields) > 5 else ""))
            elif "w" in fields[1]:
                stacks.append((int(start, 16), int(end, 16)))
        return cls(code, stacks)

    @property
    def files(self) -> Sequence[str]:
        """The names of the files."""
        return [name for _, _, name in self._code]

    def file_at(self, address: int) -> str:
        """Return the name of the file whose code is at an address, "" if none is."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return ""
        _, end, name = self._code[position]
        return name if address < end else ""

    def origin_of(self, number: int) -> str:
        """Return the file that a thread began in: the outermost address of code on its stack, but for the C library's.

        "" when the stack can't be read, as that of a thread that never waits can't.
        """
        try:
            pointer = _stack_pointer_of(number)
            end = next(end for start, end in self._stacks if start <= pointer < end)
            with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                memory.seek(pointer)
                content = memory.read(min(end - pointer, MAX_STACK_BYTES))
        except (OSError, ValueError, IndexError, StopIteration, OverflowError):
            return ""
        own = (Path(sys.executable).resolve().name, "libpython", *_RUNTIMES)
        words = memoryview(content[: len(content) - len(content) % _WORD_BYTES]).cast("Q")
        for address in reversed(words):
            name = self.file_at(address)
            if name and not name.startswith(own):
                return name
        return ""
