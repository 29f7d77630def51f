"""Preparation of a process that forks workers, and of each worker right after its fork."""

import codecs
import contextlib
import gc
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.process.process_end import flush_c_streams
from queue_core.worker.template.descriptors import open_anew

CODECS: Final = ("ascii", "idna", "latin-1")
"""Codecs that a worker's first connection imports."""
SEED_BYTES: Final = 8
MAX_NUMPY_SEED_WORDS: Final = 4
_WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ForkRenewal:
    """The things of an import that each forked worker makes its own.

    Attributes:
        generators: generators of random numbers that took their seed from the system.
        descriptors: files that are read, or appended to.
        files: all of the import's files, whose buffers a worker writes out at its end.
    """

    generators: Sequence[random.Random] = ()
    descriptors: Sequence[int] = ()
    files: Sequence[object] = ()

    def apply(self) -> None:
        """Do it, in a process right after its fork. Raises `OSError` when a file can't be opened again."""
        open_anew([number for number in self.descriptors if _is_open(number)])
        for generator in self.generators:
            random.Random.seed(generator)
        reseed()


def _is_open(number: int) -> bool:
    """Return whether a descriptor is open: a worker that forks children of its own may have closed it."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def prepare_to_fork() -> None:
    """Do once what each forked worker would do for itself, and keep the memory shared.

    Objects of now are left out of all later collections: the first full collection in a child would write the header
    of each of them, and copy every page that holds one. What is printed already must not be printed by each child.
    """
    load_codecs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or missing
            stream.flush()
    flush_c_streams()
    gc.collect()
    gc.freeze()


def load_codecs() -> None:
    """Import what a process would import for its first connection, so that its children need not."""
    for name in CODECS:
        codecs.lookup(name)


def reseed(*, entropy: Callable[[int], bytes] = os.urandom, others: Iterable[Callable[[bytes], object]] = ()) -> None:
    """Give the known generators of random numbers of a forked worker a state of their own.

    CPython does so for `random` itself. `secrets`, `uuid4` and `random.SystemRandom` keep no state: they ask the kernel
    each time. A library that registers with `os.register_at_fork` has done it before.

    Args:
        entropy: returns so many random bytes.
        others: further generators; each is called with bytes of its own.
    """
    numpy_seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if callable(numpy_seed):
        content = entropy(MAX_NUMPY_SEED_WORDS * _WORD_BYTES)
        numpy_seed(
            [int.from_bytes(content[at : at + _WORD_BYTES], "little") for at in range(0, len(content), _WORD_BYTES)]
        )
    torch_seed = getattr(sys.modules.get("torch"), "manual_seed", None)
    if callable(torch_seed):
        torch_seed(int.from_bytes(entropy(SEED_BYTES), "little", signed=True))
    for other in others:
        other(entropy(SEED_BYTES))
