"""A record of an import: what can not be seen afterwards, as the origins of threads, exit hooks, seeds and identities.

Functions of the standard library are replaced within the block, and do what they always do. A value that is meant to
be of one process only, as a pid or a UUID that a module keeps, would be that of all forked workers.
"""

import atexit
import os
import random
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from queue_core.attempts.failures import shown_path
from queue_core.clock import SystemClock
from queue_core.worker.template.imported_files import is_of_application
from queue_core.worker.template.kept_values import ImportSpan
from queue_core.worker.template.started_threads import StartedThreads, recorded_threads

OWN_VARIABLES: Final = frozenset(
    {"TOWLINE_WORKER", "TOWLINE_POOL", "TOWLINE_SPEC", "TOWLINE_STATE_DIR", "TOWLINE_CONCURRENCY"}
)
"""Variables that a worker has and its template has not, or has with another value."""
MAX_DRAWN: Final = 10_000
"""Random values of libraries that are remembered."""
_OF_MAPPINGS: Final = frozenset({"os", "collections.abc", "_collections_abc"})
_SOURCES: Final = frozenset({"uuid", "secrets", "random"})
_FILES: Final = frozenset({"tempfile"})
IDENTITIES: Final[tuple[tuple[Any, str, str, frozenset[str]], ...]] = (
    (os, "getpid", "the process id", frozenset({"multiprocessing.process"})),
    (os, "getppid", "the process id of the parent", frozenset()),
    (threading, "get_native_id", "the id of the thread", frozenset()),
    (os, "urandom", "random bytes", _SOURCES),
    (os, "getrandom", "random bytes", frozenset()),
    (random, "_urandom", "random bytes", _SOURCES),
    (uuid, "uuid1", "a UUID", frozenset()),
    (tempfile, "mkdtemp", "a temporary folder", _FILES),
    (tempfile, "mkstemp", "a temporary file", _FILES),
    (tempfile, "mktemp", "the name of a temporary file", _FILES),
)
"""Functions whose results differ from process to process, what they return, and modules that pass it on."""
_Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ExitHook:
    """A function that runs at the exit of the process, and the module and line that registered it."""

    function: _Function
    module: str
    place: str


@dataclass(slots=True)
class RecordedImport:
    """A record of one import.

    Attributes:
        threads: the places that started threads.
        exit_hooks: what was registered by `atexit.register`.
        identities: what an application took from its process, by the line of code.
        fresh: generators that took their seed from the system last, so that a new one is as good.
        is_over: whether the import has ended. A module may have kept one of the replaced functions.
        is_seeded: whether the generator behind the functions of `random` was given a seed.
        streams: the files behind the standard streams before the import.
        folder: the working directory before the import; "" where it is gone.
        blocked: the signals that were blocked before the import.
        span: when it began and ended.
        drawn: random bytes and UUIDs that libraries took from the system, as bytes, the first ones.
    """

    threads: StartedThreads
    exit_hooks: list[ExitHook] = field(default_factory=list)
    identities: dict[str, str] = field(default_factory=dict)
    fresh: "WeakKeyDictionary[random.Random, bool]" = field(default_factory=WeakKeyDictionary)
    is_over: bool = False
    is_seeded: bool = False
    streams: tuple[tuple[int, int] | None, ...] = ()
    folder: str = ""
    blocked: frozenset[int] = frozenset()
    span: ImportSpan | None = None
    drawn: list[bytes] = field(default_factory=list)


@contextmanager
def recorded_import() -> Iterator[RecordedImport]:
    """Record what an application does within the block."""
    clock = SystemClock()
    began_at, began = clock.now(), clock.monotonic()
    with ExitStack() as replaced, recorded_threads() as threads:
        recorded = RecordedImport(
            threads, streams=standard_streams(), folder=current_directory(), blocked=blocked_signals()
        )
        for module, name, what, between in IDENTITIES:
            original = getattr(module, name)
            replaced.callback(setattr, module, name, original)
            setattr(module, name, _noting(recorded, original, what, between))
        _replace_exit_hooks(recorded, replaced)
        _replace_seeds(recorded, replaced)
        _replace_draws(recorded, replaced)
        _replace_variables(recorded, replaced)
        _replace_functions_of_random(recorded, replaced)
        try:
            yield recorded
        finally:
            recorded.is_over = True
            recorded.span = ImportSpan(began_at / 10**6, clock.now() / 10**6, began, clock.monotonic())


def standard_streams() -> tuple[tuple[int, int] | None, ...]:
    """Return device and inode of the three standard streams, None for one that is closed."""
    found: list[tuple[int, int] | None] = []
    for number in range(3):
        try:
            status = os.fstat(number)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def current_directory() -> str:
    """Return the working directory, "" for one that is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 - compared as text
    except OSError:
        return ""


def blocked_signals() -> frozenset[int]:
    """Return the numbers of the signals that are blocked in this thread."""
    return frozenset(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def _noting(recorded: RecordedImport, original: _Function, what: str, between: frozenset[str]) -> _Function:
    @wraps(original)
    def noting(*arguments: Any, **named: Any) -> Any:
        if recorded.is_over:
            return original(*arguments, **named)
        if place := _place_of(sys._getframe(1), between):  # noqa: SLF001 - the caller's line
            recorded.identities.setdefault(place, what)
            return original(*arguments, **named)
        taken = original(*arguments, **named)
        if len(recorded.drawn) < MAX_DRAWN and type(taken) in (bytes, uuid.UUID):
            recorded.drawn.append(taken.bytes if type(taken) is uuid.UUID else taken)
        return taken

    return noting


def _place_of(frame: FrameType | None, between: frozenset[str]) -> str:
    """Return the application's line that called, directly or by a module that only passes the value on; else ""."""
    while frame is not None and frame.f_globals.get("__name__") in between | {__name__}:
        frame = frame.f_back
    if frame is None or not _is_applications(frame):
        return ""
    return f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_applications(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return is_of_application(frame.f_code.co_filename) and not module.startswith(("queue_core.", "orchestrator."))


def _replace_exit_hooks(recorded: RecordedImport, replaced: ExitStack) -> None:
    original: _Function = atexit.register

    @wraps(original)
    def register(function: _Function, *arguments: Any, **named: Any) -> _Function:
        frame = sys._getframe(1)  # noqa: SLF001 - the way to the caller's line
        module = str(frame.f_globals.get("__name__", ""))
        place = f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        recorded.exit_hooks.append(ExitHook(function, module, place))
        original(function, *arguments, **named)
        return function

    replaced.callback(setattr, atexit, "register", original)
    atexit.register = register  # type: ignore[assignment]


def _replace_functions_of_random(recorded: RecordedImport, replaced: ExitStack) -> None:
    """Note what an application draws; a library may draw, as for the first of its own ids."""

    def noting_seed(name: str, original: _Function) -> _Function:
        @wraps(original)
        def seed(*arguments: Any, **named: Any) -> None:
            recorded.is_seeded |= not recorded.is_over and (name == "setstate" or not _is_fresh(arguments, named))
            original(*arguments, **named)

        return seed

    for name in random.__all__:
        original = getattr(random, name)
        if getattr(original, "__self__", None) is None or name == "getstate":
            continue  # a class
        replaced.callback(setattr, random, name, original)
        is_seed = name in ("seed", "setstate")
        setattr(
            random,
            name,
            noting_seed(name, original) if is_seed else _noting(recorded, original, "a random number", frozenset()),
        )


def _replace_seeds(recorded: RecordedImport, replaced: ExitStack) -> None:
    seed, setstate = random.Random.seed, random.Random.setstate

    def seed_and_note(self: random.Random, *arguments: Any, **named: Any) -> None:
        recorded.fresh[self] = _is_fresh(arguments, named)
        seed(self, *arguments, **named)

    def set_and_note(self: random.Random, state: Any) -> None:
        recorded.fresh[self] = False
        setstate(self, state)

    replaced.callback(setattr, random.Random, "seed", seed)
    replaced.callback(setattr, random.Random, "setstate", setstate)
    random.Random.seed = wraps(seed)(seed_and_note)  # type: ignore[method-assign]
    random.Random.setstate = wraps(setstate)(set_and_note)  # type: ignore[method-assign]


def _replace_draws(recorded: RecordedImport, replaced: ExitStack) -> None:
    """Note what an application draws from generators of its own that took their seed from the system."""

    def noting_draw(original: _Function) -> _Function:
        @wraps(original)
        def draw(self: random.Random, *arguments: Any) -> Any:
            is_own = not recorded.is_over and recorded.fresh.get(self)
            if is_own and (place := _place_of(sys._getframe(1), _SOURCES)):  # noqa: SLF001 - the caller's line
                recorded.identities.setdefault(place, "a random number")
            return original(self, *arguments)

        return draw

    for name in ("random", "getrandbits"):
        original = getattr(random.Random, name)  # of the class in C, which the other methods call
        setattr(random.Random, name, noting_draw(original))
        replaced.callback(delattr, random.Random, name)


def _replace_variables(recorded: RecordedImport, replaced: ExitStack) -> None:
    kind = type(os.environ)
    original = kind.__getitem__

    def get_and_note(self: Any, key: Any) -> Any:
        if key in OWN_VARIABLES or (isinstance(key, bytes) and os.fsdecode(key) in OWN_VARIABLES):  # of `environb`
            frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the way to the caller's line
            while frame is not None and frame.f_globals.get("__name__") in _OF_MAPPINGS:
                frame = frame.f_back
            if frame is not None and _is_applications(frame):
                place = f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"
                recorded.identities.setdefault(place, f"the variable {os.fsdecode(key)}")
        return original(self, key)

    replaced.callback(setattr, kind, "__getitem__", original)
    kind.__getitem__ = get_and_note  # type: ignore[method-assign]


def _is_fresh(arguments: tuple[object, ...], named: dict[str, object]) -> bool:
    """Return whether the arguments of `seed` ask for a seed of the system's."""
    return (arguments[0] if arguments else named.get("a")) is None
