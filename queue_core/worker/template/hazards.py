"""The hazards of a fork in this process, as it is after the import of an application.

Nothing is imported to look, and nothing of the application runs. Signal handlers and timers are no hazards: a forked
process has no timer, and the worker sets the handlers it needs. A lock that the importing thread still holds can't be
seen: `with lock:` at the top of a module is over at its end, `lock.acquire()` is the application's mistake with a
single process already. Generators of random numbers that a library keeps for itself are not looked for; see `reseed`.
"""

import contextlib
import gc
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from queue_core.attempts.failures import shown_path
from queue_core.worker.template.descriptors import descriptor_hazards
from queue_core.worker.template.hazard import REMEDY, ForkHazard
from queue_core.worker.template.imported_files import application_modules
from queue_core.worker.template.native_threads import native_thread_hazards
from queue_core.worker.template.started_threads import StartedThreads, python_thread_hazards

_GENERATORS = (("numpy.random", "Generator"), ("numpy.random", "RandomState"))
"""Modules and classes of generators beside Python's `random.Random`."""
_RESEEDED = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))
"""The generators behind the functions of `random`, which CPython reseeds at a fork, and of `numpy.random`: `reseed`."""


def find_hazards(*, own_descriptors: Collection[int], threads: StartedThreads | None = None) -> tuple[ForkHazard, ...]:
    """Return why this process can't be forked into workers; nothing when it can.

    A trial fork is made only when threads of C libraries are all that was found.

    Args:
        own_descriptors: descriptors of the caller, who closes or replaces them in the child.
        threads: what `recorded_threads` has seen of the import.
    """
    found = [
        *python_thread_hazards(threads),
        *descriptor_hazards(own=own_descriptors),
        *_event_loop_hazards(),
        *_grpc_hazards(),
        *_cuda_hazards(),
        *_child_hazards(),
    ]
    return (*found, *native_thread_hazards(may_fork=not found), *_generator_hazards())


def _event_loop_hazards() -> Iterator[ForkHazard]:
    running = _loaded("asyncio.events", "_get_running_loop")
    if running is not None and running() is not None:
        yield ForkHazard(
            "event_loop",
            "a running event loop",
            f"an asyncio event loop runs while the application is imported: run it {REMEDY}",
        )


def _grpc_hazards() -> Iterator[ForkHazard]:
    channels = tuple(
        kind
        for module in ("grpc._channel", "grpc.aio._channel")
        if isinstance(kind := _loaded(module, "Channel"), type)
    )
    if channels and any(_is_a(each, channels) for each in gc.get_objects()):
        yield ForkHazard(
            "grpc",
            "a gRPC channel",
            f"a gRPC channel was made while the application was imported (a Google client makes one): make it {REMEDY}",
        )


def _cuda_hazards() -> Iterator[ForkHazard]:
    is_initialized = _loaded("torch.cuda", "is_initialized")
    if is_initialized is not None and is_initialized():
        yield ForkHazard(
            "gpu",
            "a CUDA context",
            f"the import made a CUDA context, which no forked process can use: move tensors to the GPU {REMEDY}",
        )


def _loaded(module: str, name: str) -> Callable[[], object] | None:
    """Return a function or class of a module that is imported already, else None."""
    found = getattr(sys.modules.get(module), name, None)
    return found if callable(found) else None


def _is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Return whether a value is of a class, by its type: `isinstance` would set up the object behind a lazy proxy."""
    return issubclass(type(value), kinds)


def _child_hazards() -> Iterator[ForkHazard]:
    for pid, name in _children():
        yield ForkHazard(
            "child_process",
            f"process {pid} ({name})",
            f"the import started the process {pid} ({name}), which forked workers can't wait for: start it {REMEDY}",
        )


def _children() -> list[tuple[int, str]]:
    """Return the pid and name of each living child; without arguments, which may hold a secret."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")
            pid, _, name = before.partition(" (")
            state, parent = after.split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                found.append((int(pid), name))
    return sorted(found)


def _generator_hazards() -> Iterator[ForkHazard]:
    kinds: tuple[type, ...] = (random.Random,)
    for library, name in _GENERATORS:
        kind = _loaded(library, name)
        if isinstance(kind, type):
            kinds += (kind,)
    reseeded = {id(getattr(sys.modules.get(library), name, None)) for library, name in _RESEEDED}
    found: dict[int, tuple[str, str, str]] = {}
    for module_name, path, values in application_modules():
        for name, value in list(values.items()):
            if _is_a(value, kinds) and not _is_a(value, random.SystemRandom) and id(value) not in reseeded:
                # The first one that has it made it: a module moves to the end of `sys.modules` when it is imported.
                found.setdefault(id(value), (module_name, shown_path(path), name))
    for module_name, place, name in found.values():
        yield ForkHazard(
            "generator",
            f"{module_name}.{name}",
            f"{place} makes the generator of random numbers {name!r} while it is imported, from which all forked "
            f"workers would draw the same numbers: make it {REMEDY}",
        )
