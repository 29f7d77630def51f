"""Memory that an import shares with processes to come: a lock of `multiprocessing`, a `Value`, an anonymous `mmap`.

An executed worker makes its own. Forked ones would have one together, and one that is killed with the lock would stop
all others. The kernel's list shows it, whichever library made it.
"""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from queue_core.worker.template.hazard import REMEDY, ForkHazard

_MODULES: Final = frozenset(
    f"{package}.{module}"
    for package in ("multiprocessing", "billiard", "multiprocess")
    for module in ("heap", "queues", "shared_memory", "sharedctypes", "synchronize")
)
_NAME_FIELD: Final = 5


def is_shared_class(kind: type) -> bool:
    """Return whether instances of a class may be memory that is shared."""
    return issubclass(kind, mmap.mmap) or kind.__module__ in _MODULES or kind.__name__ == "SemLock"


def shared_mappings() -> list[str]:
    """Return the kernel's names of the memory that this process can write and a forked one would share."""
    found = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=_NAME_FIELD)
        if "w" in fields[1] and "s" in fields[1]:
            found.add(fields[_NAME_FIELD] if len(fields) > _NAME_FIELD else "anonymous memory")
    return sorted(found)


def shared_memory_hazards(
    mappings: Sequence[str], objects: Sequence[object], names: Mapping[int, str]
) -> Iterator[ForkHazard]:
    """Return a hazard for each object with shared memory that a module reaches, else for the mappings themselves. Pure.

    Args:
        objects: those of classes that may share memory.
        names: how modules reach them, by `id`.
    """
    if not mappings:
        return
    found = {
        name: f"{type(each).__module__.removeprefix('_')}.{type(each).__qualname__}"
        for each in reversed(objects)
        if is_shared_class(type(each)) and (name := names.get(id(each)))
        if not name.startswith(tuple(_MODULES))
    }
    for name, kind in sorted(found.items()):
        yield _hazard(f"{name} ({kind})")
    if not found:
        yield from (_hazard(mapping.removesuffix(" (deleted)")) for mapping in mappings)


def _hazard(detail: str) -> ForkHazard:
    return ForkHazard(
        "shared_memory",
        detail,
        f"the import makes the shared memory {detail}, which would be one for all forked workers: make it {REMEDY}",
    )
