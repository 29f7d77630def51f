"""Run programs of many seeds over one store, a new store for each; shrink those that differ."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from queue_core.store import Store
from queue_core.stores import open_store
from tests.differential.comparison import ComparisonTally, compare
from tests.differential.operations import Program
from tests.differential.programs import a_program
from tests.differential.report import Found
from tests.support.stores.shared_engines import engines_of_process

MAX_TRIES = 2000


def shrunk(program: Program, differs: Callable[[Program], bool]) -> Program:
    """Return the shortest part of a program that still differs: leave out halves first, single operations last.

    Args:
        program: one that differs.
        differs: runs a program; called 2000 times at most.
    """
    tries = 0
    size = max(1, len(program) // 2)
    while True:
        begin = 0
        is_shorter = False
        while begin < len(program):
            shorter = program[:begin] + program[begin + size :]
            tries += 1
            if tries > MAX_TRIES:
                return program
            if shorter and differs(shorter):
                program = shorter
                is_shorter = True
            else:
                begin += size
        if size == 1 and not is_shorter:
            return program
        size = size if is_shorter else max(1, size // 2)


StoreName: TypeAlias = Literal["memory", "sqlite", "postgresql", "redis"]
STORES: tuple[StoreName, ...] = ("memory", "sqlite", "postgresql", "redis")
EMBEDDED: tuple[StoreName, ...] = ("memory", "sqlite")
"""Stores that need no engine."""
MOST_FOUND = 10
"""Differences after which a run ends."""


@dataclass(frozen=True, slots=True)
class StoreOutcome:
    """The result of all programs on a store."""

    programs: int
    tally: ComparisonTally
    found: tuple[Found, ...]


def run(store: StoreName, seeds: Sequence[int], steps: int) -> StoreOutcome:
    """Run the programs of the seeds."""
    tally = ComparisonTally()
    found: list[Found] = []
    for seed in seeds:
        program = a_program(seed, steps)
        with fresh(store) as opened:
            compared, difference = compare(program, opened)
        tally.add(compared)
        if difference is None:
            continue
        short = shrunk(program, lambda shorter: _differs(store, shorter))
        with fresh(store) as opened:
            _, again = compare(short, opened)
        found.append(Found(store, seed, short, again or difference))
        if len(found) >= MOST_FOUND:
            break
    return StoreOutcome(len(seeds), tally, tuple(found))


def _differs(store: StoreName, program: Program) -> bool:
    with fresh(store) as opened:
        return compare(program, opened)[1] is not None


@contextmanager
def fresh(store: StoreName) -> Iterator[Store]:
    """Return an empty store; the caller closes it."""
    if store == "memory":
        yield open_store("memory:")
        return
    if store in ("postgresql", "redis"):
        yield open_store(engines_of_process().new_store_url(store))
        return
    with TemporaryDirectory(prefix="towline-differential-") as folder:
        yield open_store(f"sqlite:///{Path(folder) / 'queue.db'}")
