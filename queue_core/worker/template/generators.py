"""Generators of random numbers that an import made: which are renewed in each forked worker, and which are a hazard.

One that took its seed from the system is renewed: a new seed of the system is as good as the first. One with a seed of
the application's can't be told from a generator that was meant to repeat itself; neither can numpy's. A seed given to
the functions of `random` or `numpy.random` would be lost, as these are renewed after a fork.
"""

import io
import random
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.worker.template.hazard import REMEDY, ForkHazard
from queue_core.worker.template.recorded_import import RecordedImport

LIBRARIES: Final = (
    ("numpy.random", "Generator"),
    ("numpy.random", "RandomState"),
    ("numpy.random", "BitGenerator"),
    ("torch", "Generator"),
)
"""Modules and classes of generators beside Python's `random.Random`."""
_RESEEDED: Final = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))
"""The generators behind the functions of `random`, which CPython renews at a fork, and of `numpy.random`: `reseed`."""
_RANDOM_DEVICES: Final = frozenset({"/dev/random", "/dev/urandom", "/dev/hwrng"})
_STATE: Final = ("seed", "getstate", "setstate", "random", "getrandbits", "__reduce__")
"""Methods of `random.Random`; a class with one of its own keeps another state."""
_FULL: Final = 623
"""The least position of a Mersenne Twister that has drawn nothing since its seed."""


@dataclass(frozen=True, slots=True)
class Generators:
    """The generators of an application: those that each worker renews, and the others."""

    renewed: Sequence[random.Random]
    others: Sequence[object]


def generator_classes() -> tuple[type, ...]:
    """Return the classes of generators that are loaded."""
    found: list[type] = [random.Random]
    for module, name in LIBRARIES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append(kind)
    return tuple(found)


def sorted_generators(objects: Sequence[object], recorded: RecordedImport | None) -> Generators:
    """Sort the generators among these objects. Nobody needs to renew those of `random.SystemRandom`."""
    known = [getattr(sys.modules.get(module), name, None) for module, name in _RESEEDED]
    known += [getattr(each, "_bit_generator", None) for each in known]
    renewed: list[random.Random] = []
    others: list[object] = []
    kinds = generator_classes()
    for each in objects:
        kind = type(each)
        if not issubclass(kind, kinds) or issubclass(kind, random.SystemRandom) or any(each is one for one in known):
            continue
        if isinstance(each, random.Random) and _is_renewable(each, recorded):
            renewed.append(each)
        else:
            others.append(each)
    inner = {id(getattr(each, "_bit_generator", None)) for each in others}
    return Generators(renewed, [each for each in others if id(each) not in inner])


def _is_renewable(generator: random.Random, recorded: RecordedImport | None) -> bool:
    """Return whether its state is that of a seed of the system's. Those of the template's own modules are."""
    kind = type(generator)
    if any(method in base.__dict__ for base in kind.__mro__[: kind.__mro__.index(random.Random)] for method in _STATE):
        return False
    return recorded is None or recorded.fresh.get(generator, True)


def generator_hazards(
    generators: Generators, names: Mapping[int, str], recorded: RecordedImport | None, files: Collection[object]
) -> Iterator[ForkHazard]:
    """Return a hazard for each generator that can't be renewed.

    Args:
        names: how modules reach the generators, by `id`.
        files: open files: one that reads the kernel's random numbers ahead gives the same ones to all workers.
    """
    for each in generators.others:
        kind = f"{type(each).__module__}.{type(each).__qualname__}".removeprefix("numpy.random._generator.")
        name = names.get(id(each), "")
        yield _hazard(name or kind, f"the generator of random numbers {name or 'of class'} ({kind}) is made")
    if recorded is not None and recorded.is_seeded:
        yield _hazard("random", "a seed for the functions of the module random is given")
    if _is_numpy_seeded():
        yield _hazard("numpy.random", "the functions of numpy.random are used or given a seed")
    for file in files:
        if type(file) is io.BufferedReader and str(getattr(file, "name", "")) in _RANDOM_DEVICES:
            yield _hazard(str(file.name), f"{file.name} is opened, to be read ahead,")


def _is_numpy_seeded() -> bool:
    """Return whether the generator behind `numpy.random` was used, or given a seed."""
    state = getattr(getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None), "_bit_generator", None)
    if state is None or type(state).__name__ != "MT19937":
        return False
    return getattr(state, "seed_seq", True) is None or bool(state.state["state"]["pos"] < _FULL)


def _hazard(detail: str, does: str) -> ForkHazard:
    return ForkHazard(
        "generator",
        detail,
        f"{does} while the application is imported, and all forked workers would draw the same numbers: make it "
        f"{REMEDY}",
    )
