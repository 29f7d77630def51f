"""The objects of this process by class, and the names by which an application reaches them.

Python's collector knows most objects; what it does not track (a dict of numbers, a semaphore of C) is reached from
those. No code of an object runs: a lazy proxy stays as it is.
"""

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Final

from queue_core.worker.template.imported_files import application_modules

AT_ONCE: Final = 20_000
"""Objects whose contents are listed at a time: a list of those of all would take as much memory as a large table."""
MAX_VISITED: Final = 500_000
"""Objects that are gone through for a name, at most."""
_CONTAINERS: Final = frozenset({dict, tuple})
"""Classes whose instances the collector stops to track where none of their values can be part of a cycle."""


def living_objects(is_wanted: Callable[[type], bool]) -> list[object]:
    """Return each object of a class that is wanted, once."""
    known: dict[type, bool] = {}
    found: dict[int, object] = {}

    def select(objects: Sequence[object]) -> None:
        for kind in set(map(type, objects)) - known.keys():
            known[kind] = is_wanted(kind)
        if any(known[kind] for kind in set(map(type, objects))):
            found.update((id(each), each) for each in objects if known[type(each)])

    level: Sequence[object] = gc.get_objects()
    select(level)
    seen: set[int] = set()
    while level:
        untracked: dict[int, object] = {}
        for start in range(0, len(level), AT_ONCE):
            inner = gc.get_referents(*level[start : start + AT_ONCE])
            select(inner)
            for each in inner:
                if type(each) in _CONTAINERS and not gc.is_tracked(each) and id(each) not in seen:
                    untracked[id(each)] = each
        seen |= untracked.keys()
        level = list(untracked.values())
    return list(found.values())


def names_of(objects: Iterable[object]) -> Mapping[int, str]:
    """Return the names by which modules reach these objects, as `shop.sampler`, by the objects' `id`.

    The name is that of the module's value which leads to the object in the fewest steps; an application's before a
    library's. An object that none leads to is left out.
    """
    wanted = {id(each) for each in objects}
    found: dict[int, str] = {}
    if not wanted:
        return found
    modules = {id(values) for _, values in _modules()}
    for values_of in ({name: values for name, _, values in application_modules()}, dict(_modules())):
        if wanted - found.keys():
            _follow(values_of, wanted, modules, found)
    return found


def _modules() -> list[tuple[str, dict[str, object]]]:
    return [
        (name, object.__getattribute__(module, "__dict__"))
        for name, module in list(sys.modules.items())
        if issubclass(type(module), ModuleType)
    ]


def _follow(
    values_of: Mapping[str, Mapping[str, object]], wanted: set[int], modules: set[int], found: dict[int, str]
) -> None:
    """Add the names of wanted objects, nearest first, without passing through another module."""
    closed = set(modules)
    ahead: deque[tuple[object, str]] = deque(
        (value, f"{module}.{name}")
        for module, values in values_of.items()
        if not module.startswith("queue_core.")
        for name, value in list(values.items())
        if not name.startswith("__")
    )
    while ahead and len(closed) < MAX_VISITED and not wanted <= found.keys():
        value, name = ahead.popleft()
        if id(value) in closed or issubclass(type(value), (ModuleType, FrameType)):
            continue
        closed.add(id(value))
        if id(value) in wanted:
            found.setdefault(id(value), name)
        ahead.extend((each, name) for each in gc.get_referents(value))
