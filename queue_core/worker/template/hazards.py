"""The hazards of a fork in this process, as it is after the import of an application.

Nothing is imported to look, and nothing of the application runs. What can't be told safe is a hazard: all objects that
Python's collector reaches are looked at, and what the kernel says of descriptors, memory, threads and timers
(ADR 48). Signal handlers and locks of `threading` are none: a forked process has them as its parent had.
"""

import codecs
import contextlib
import gc
import io
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from queue_core.worker.template.descriptors import (
    OpenDescriptor,
    hazards_of_descriptors,
    open_anew,
    open_descriptors,
    renewable_files,
)
from queue_core.worker.template.finalizers import (
    GENERATORS,
    finalized_objects,
    finalizer_hazards,
    has_finalizer,
    is_suspended,
)
from queue_core.worker.template.generators import (
    generator_classes,
    generator_hazards,
    sorted_generators,
)
from queue_core.worker.template.hazard import REMEDY, ForkHazard
from queue_core.worker.template.kept_values import kept_value_hazards
from queue_core.worker.template.living_objects import living_objects, names_of
from queue_core.worker.template.native_threads import native_thread_hazards
from queue_core.worker.template.preparation import ForkRenewal
from queue_core.worker.template.recorded_import import RecordedImport, standard_streams
from queue_core.worker.template.shared_memory import is_shared_class, shared_mappings, shared_memory_hazards
from queue_core.worker.template.started_threads import python_thread_hazards

_BASE = io.FileIO.__mro__[-2]
"""The class of C behind all files: unlike `io.IOBase` it has no checks of its own, which would run code."""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_COMPRESSED = frozenset({"gzip", "bz2", "lzma"})
"""Modules whose files write a beginning when they are opened and an end when they are closed."""
_MARKED = frozenset({"utf-16", "utf-32", "utf-8-sig"})
"""Encodings whose text begins with a mark, which the first to write to an empty file writes."""


@dataclass(frozen=True, slots=True)
class ImportedState:
    """The state that an import left in this process.

    Attributes:
        hazards: why this process can't be forked into workers; nothing when it can.
        renewal: what each forked worker makes its own.
    """

    hazards: Sequence[ForkHazard]
    renewal: ForkRenewal


def find_hazards(*, own_descriptors: Collection[int], recorded: RecordedImport | None = None) -> Sequence[ForkHazard]:
    """Return why this process can't be forked into workers; see `imported_state`."""
    return imported_state(own_descriptors=own_descriptors, recorded=recorded).hazards


def imported_state(*, own_descriptors: Collection[int], recorded: RecordedImport | None = None) -> ImportedState:
    """Return the hazards of a fork of this process, and what forked workers renew.

    A trial fork is made only when threads of C libraries are all that was found.

    Args:
        own_descriptors: descriptors of the caller, who closes or replaces them in the child.
        recorded: what `recorded_import` has seen of the import.
    """
    gc.collect()  # what nobody has any more is no hazard
    objects = living_objects(_is_looked_at)
    generators = sorted_generators(objects, recorded)
    mappings = shared_mappings()
    files = [each for each in objects if _is_file(type(each))]
    ends = [each for each in objects if is_suspended(each) or has_finalizer(type(each))]
    opened = {
        number: each
        for number, each in open_descriptors(own=own_descriptors).items()
        if not (each.is_written and each.target in mappings)  # it is told as memory
    }
    databases = tuple(each.path for each in opened.values() if each.is_database)
    mappings = [each for each in mappings if not each.startswith(databases)] if databases else mappings
    shared = [each for each in objects if is_shared_class(type(each))] if mappings else []
    renewed = renewable_files(opened)
    unsafe = opened.keys() - set(renewed)
    holders = [each for each in objects if _descriptor_of(each) in unsafe]
    names = names_of([*generators.others, *ends, *finalized_objects(), *shared, *holders])
    found = [
        *python_thread_hazards(recorded.threads if recorded is not None else None),
        *hazards_of_descriptors(_named(opened, holders, names)),
        *_unreadable_hazards(renewed, opened),
        *shared_memory_hazards(mappings, shared, names),
        *finalizer_hazards(recorded, ends, names),
        *_beginning_hazards(files),
        *_identity_hazards(recorded),
        *_kept_values(recorded),
        *_stream_hazards(recorded),
        *_timer_hazards(),
        *_event_loop_hazards(),
        *_grpc_hazards(objects),
        *_cuda_hazards(),
        *_child_hazards(),
    ]
    found += native_thread_hazards(may_fork=not found)
    found += generator_hazards(generators, names, recorded, files)
    return ImportedState(tuple(dict.fromkeys(found)), ForkRenewal(generators.renewed, renewed, files))


def _is_looked_at(kind: type) -> bool:
    return (
        issubclass(kind, (*generator_classes(), *_channels(), *GENERATORS, socket.socket))
        or _is_file(kind)
        or is_shared_class(kind)
        or has_finalizer(kind)
    )


def _is_file(kind: type) -> bool:
    return issubclass(kind, _BASE)


def _descriptor_of(each: object) -> int:
    """Return the descriptor of a socket or file, -1 where it has none."""
    with contextlib.suppress(OSError, ValueError):
        if issubclass(type(each), socket.socket):
            return socket.socket.fileno(each)  # type: ignore[arg-type]
        if type(each) is io.FileIO:
            return each.fileno()
    return -1


def _named(
    opened: Mapping[int, OpenDescriptor], holders: Sequence[object], names: Mapping[int, str]
) -> list[OpenDescriptor]:
    name_of = {_descriptor_of(each): names.get(id(each), "") for each in holders}
    return [replace(each, name=name_of.get(number, "")) for number, each in opened.items()]


def _unreadable_hazards(renewed: Sequence[int], opened: Mapping[int, OpenDescriptor]) -> Iterator[ForkHazard]:
    """Return a hazard for each file that can't be opened anew, after the attempt to do so."""
    for number in renewed:
        try:
            open_anew([number])
        except OSError as error:
            yield ForkHazard(
                "file",
                f"file {opened[number].path}",
                f"the file {opened[number].path} is open after the import and can't be opened again "
                f"({error.strerror}), so forked workers would share it: open it {REMEDY}",
            )


def _beginning_hazards(files: Sequence[object]) -> Iterator[ForkHazard]:
    """Return a hazard for each file that is open to be written and whose content has a beginning of its own."""
    for each in files:
        kind = type(each)
        if kind.__module__ in _COMPRESSED:
            what = f"{kind.__module__} file", f"a file of the module {kind.__module__}"
        elif kind is io.TextIOWrapper and (encoding := _normal(each.encoding)) in _MARKED:  # type: ignore[attr-defined]
            what = f"{encoding} file", f"a file in the encoding {encoding}"
        else:
            continue
        if not each.closed and each.writable():  # type: ignore[attr-defined]
            yield ForkHazard(
                "file",
                what[0],
                f"{what[1]} is open to be written after the import, and forked workers would share its beginning: open "
                f"it {REMEDY}",
            )


def _normal(encoding: str) -> str:
    return codecs.lookup(encoding).name


def _identity_hazards(recorded: RecordedImport | None) -> Iterator[ForkHazard]:
    for place, what in (recorded.identities if recorded is not None else {}).items():
        yield ForkHazard(
            "identity",
            f"{what}, of {place}",
            f"{place} takes {what} while it is imported, which would be the same in all forked workers: take it "
            f"{REMEDY}",
        )


def _kept_values(recorded: RecordedImport | None) -> Iterator[ForkHazard]:
    if recorded is not None and recorded.span is not None:
        yield from kept_value_hazards(recorded.span, recorded.drawn)


def _stream_hazards(recorded: RecordedImport | None) -> Iterator[ForkHazard]:
    if recorded is not None and recorded.streams != standard_streams():
        yield ForkHazard(
            "stream",
            "a standard stream",
            f"the import replaces a standard stream of the process, which a forked worker would lose: do it {REMEDY}",
        )


def _timer_hazards() -> Iterator[ForkHazard]:
    if any(signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS):
        yield ForkHazard(
            "timer", "a timer", f"the import sets a timer, which a forked worker does not have: set it {REMEDY}"
        )


def _event_loop_hazards() -> Iterator[ForkHazard]:
    running = _loaded("asyncio.events", "_get_running_loop")
    if running is not None and running() is not None:
        yield ForkHazard(
            "event_loop",
            "a running event loop",
            f"an asyncio event loop runs while the application is imported: run it {REMEDY}",
        )


def _channels() -> tuple[type, ...]:
    return tuple(
        kind
        for module in ("grpc._channel", "grpc.aio._channel")
        if isinstance(kind := _loaded(module, "Channel"), type)
    )


def _grpc_hazards(objects: Sequence[object]) -> Iterator[ForkHazard]:
    if any(issubclass(type(each), _channels()) for each in objects):
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


def _child_hazards() -> Iterator[ForkHazard]:
    for pid, name in _children():
        yield ForkHazard(
            "child_process",
            f"process {pid} ({name})",
            f"the import started the process {pid} ({name}), which forked workers can't wait for: start it {REMEDY}",
        )


def _children() -> list[tuple[int, str]]:
    """Return the pid and name of each child that lives, or that nobody has waited for; without arguments, which may
    hold a secret."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")
            pid, _, name = before.partition(" (")
            parent = after.split()[1]
            if int(parent) == os.getpid():
                found.append((int(pid), name))
    return sorted(found)
