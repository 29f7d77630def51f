"""Claims, how each is measured, and what a measurement says. A section of the laboratory is a module with `claims`.

`def claims() -> list[Claim]` is all that `python3 -m tests.celery` asks of a module of this folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STORES: Final = ("sqlite", "postgresql", "redis")
POOLS: Final = ("prefork", "threads", "solo", "gevent")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What to measure with.

    Args:
        version: of Celery: this process has it, and so have its workers.
        stores: of the servers: `sqlite`, `postgresql`, `redis`; a claim about one store takes the first.
        pools: Celery's.
        folder: for files; its own.
    """

    version: str
    stores: tuple[str, ...]
    pools: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured.

    Args:
        text: the figure: `15 of 15`, `one run each`.
        bar: the least that it must be.
        notes: what is worth a line of its own; each that is short, with its reason.
    """

    text: str
    bar: str
    is_met: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """One of C1 to C19. `of_versions`: measured again with each version of Celery."""

    name: str
    title: str
    measure: Callable[[Conditions], Figure]
    of_versions: bool = False
