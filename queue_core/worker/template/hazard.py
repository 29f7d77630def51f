"""A hazard: a state of a process after its import that a forked worker can't use, or would share. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

HazardKind = Literal[
    "python_thread",
    "native_thread",
    "socket",
    "pipe",
    "kernel_object",
    "device",
    "memory_file",
    "database_file",
    "lock",
    "event_loop",
    "grpc",
    "gpu",
    "child_process",
    "generator",
    "file",
    "shared_memory",
    "finalizer",
    "identity",
    "timer",
    "stream",
    "fork_handler",
]

REMEDY: Final = "in @app.on_start, then workers can fork"


@dataclass(frozen=True, slots=True)
class ForkHazard:
    """A reason for which workers are started anew rather than forked.

    Attributes:
        detail: the thing itself, such as `PostgreSQL at 10.0.0.3:5432`: no connection string, argument or variable.
        sentence: what was found, and its remedy, for people.
    """

    kind: HazardKind
    detail: str
    sentence: str
