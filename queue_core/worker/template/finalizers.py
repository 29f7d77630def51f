"""The ends of a process that an import arranged: exit hooks, finalizers, suspended generators.

An executed worker does it for what it has made itself. A forked one would do it for what it shares with all others:
the first that ends would remove the temporary folder of all. So what is not known to concern the memory of one process
alone is a hazard.
"""

import atexit
import io
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any, Final

from queue_core.worker.template.hazard import REMEDY, ForkHazard
from queue_core.worker.template.recorded_import import ExitHook, RecordedImport

GENERATORS: Final = (GeneratorType, CoroutineType)
HARMLESS_HOOKS: Final = frozenset(
    {
        *("PIL", "asyncio", "billiard", "certifi", "concurrent", "joblib", "logging", "matplotlib._pylab_helpers"),
        *("multiprocessing", "opentelemetry", "pymongo", "queue_core", "sentry_sdk", "weakref"),
    }
)
"""Modules whose own hooks at exit end what a process has in memory, or see that they run in another process."""
HARMLESS_FINALIZERS: Final = HARMLESS_HOOKS | {
    *("anthropic", "boto3", "botocore", "celery", "django", "google", "googleapiclient", "httpcore", "httplib2"),
    *("httpx", "jinja2", "kombu", "numpy", "openai", "pandas", "psycopg", "psycopg_pool", "redis", "requests"),
    *("sqlalchemy", "urllib3", "werkzeug"),
}
"""Modules whose finalizers close connections and files, which are hazards of their own while they are open."""
_WRITES: Final = frozenset({"dbm", "mailbox", "shelve", "tempfile"})
"""Modules of the standard library whose finalizers write or remove files."""
_KNOWN: Final = HARMLESS_FINALIZERS | (sys.stdlib_module_names - _WRITES)
_FILE: Final = io.FileIO.__mro__[-2]
"""The base class of all files, whose finalizer in C calls `close`."""


def has_finalizer(kind: type) -> bool:
    """Return whether instances of a class have a finalizer in Python that is not known to be harmless."""
    for name in ("__del__", "close") if issubclass(kind, _FILE) else ("__del__",):
        for base in kind.__mro__:
            method = base.__dict__.get(name)
            if isinstance(method, FunctionType):
                if not _is_of(method.__module__, _KNOWN):
                    return True
                break
    return False


def is_suspended(generator: object) -> bool:
    """Return whether this is a generator or coroutine that waits in its middle, with what it would do at its end."""
    if isinstance(generator, GeneratorType):
        return generator.gi_suspended and not _is_known(generator.gi_frame)
    if isinstance(generator, CoroutineType):
        return generator.cr_suspended and not _is_known(generator.cr_frame)
    return False


def _is_known(frame: FrameType | None) -> bool:
    return frame is not None and _is_of(str(frame.f_globals.get("__name__", "")), _KNOWN)


def finalizer_hazards(
    recorded: RecordedImport | None, objects: Sequence[object], names: Mapping[int, str]
) -> Iterator[ForkHazard]:
    """Return a hazard for each hook, finalizer and suspended generator.

    Args:
        objects: those of classes that `has_finalizer` names, and generators.
        names: how modules reach them, by `id`.
    """
    for hook in _hooks(recorded):
        function = name_of_function(hook.function)
        yield _hazard(
            f"{function} at exit, of {hook.place}",
            f"{hook.place} registers {function} for the exit of the process while it is imported",
        )
    for function in _finalizers_of_processes():
        yield _hazard(f"{function} of multiprocessing.util.Finalize", f"{function} is to be called at the exit")
    for entry in _finalizers():
        kind, function = type(entry[0]).__name__, name_of_function(entry[1])
        name = _called(names, entry[0])
        yield _hazard(f"{kind}{name}, finalized by {function}", f"a {kind}{name} is finalized by {function}")
    for each in objects:
        name = _called(names, each)
        if is_suspended(each):
            code = getattr(each, "__qualname__", "")
            yield _hazard(f"generator {code}{name}", f"the generator {code}{name} is suspended after the import")
        elif has_finalizer(type(each)):
            kind = f"{type(each).__module__}.{type(each).__qualname__}"
            yield _hazard(f"{kind}{name}, with a finalizer", f"a {kind}{name} has a finalizer")


def finalized_objects() -> list[object]:
    """Return the objects that `weakref.finalize` watches for functions that are not known to be harmless."""
    return [entry[0] for entry in _finalizers()]


def disarm(recorded: RecordedImport) -> None:
    """Let a forked worker not do at its exit what its template was to do at its own. For `start: fork`."""
    for hook in _hooks(recorded):
        atexit.unregister(hook.function)
    for _, _, finalizer in _finalizers():
        finalizer.atexit = False


def _hooks(recorded: RecordedImport | None) -> list[ExitHook]:
    hooks = recorded.exit_hooks if recorded is not None else ()
    return [hook for hook in hooks if not _is_of(hook.module, HARMLESS_HOOKS)]


def _finalizers() -> list[tuple[object, Callable[..., object], "weakref.finalize[Any, Any]"]]:
    registry: Mapping[weakref.finalize[Any, Any], object] = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001
    found = []
    for finalizer in list(registry):
        entry = finalizer.peek()
        if entry is not None and finalizer.atexit:
            module = getattr(entry[1], "__module__", "") or ""
            if not _is_of(module, HARMLESS_FINALIZERS):
                found.append((entry[0], entry[1], finalizer))
    return found


def _finalizers_of_processes() -> list[str]:
    """Return the functions that `multiprocessing` calls at the exit of the process which registered them."""
    registry = getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", {})
    callbacks = [getattr(each, "_callback", None) for each in list(registry.values())]
    own = [each for each in callbacks if not _is_of(getattr(each, "__module__", ""), HARMLESS_HOOKS)]
    return [
        name_of_function(each) for each in own if each is not os.close
    ]  # that of shared memory, a hazard of its own


def name_of_function(function: object) -> str:
    """Return a function's name for people, without its arguments."""
    return str(getattr(function, "__qualname__", "")) or type(function).__qualname__


def _is_of(module: str, modules: frozenset[str]) -> bool:
    """Return whether a module is one of these, or within one."""
    while module:
        if module in modules:
            return True
        module = module.rpartition(".")[0]
    return False


def _called(names: Mapping[int, str], each: object) -> str:
    name = names.get(id(each))
    return f" ({name})" if name else ""


def _hazard(detail: str, does: str) -> ForkHazard:
    return ForkHazard(
        "finalizer",
        detail,
        f"{does}, which one forked worker would do for all: make it {REMEDY}",
    )
