"""Which workers to start, let go, ask to finish and end, so that a pool gets the size decided. Pure."""

from dataclasses import dataclass
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import Decision
from orchestrator.fleet import Fleet

MAX_ACTIONS: Final = 64
"""Actions of one plan, at most; what is left over is done in the next turn."""
START_LIMIT_SECONDS: Final = 600.0
"""A worker that has not asked for a lease by then never will: its start has failed."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start one worker; when it is up, `replaces` is let go."""

    why: str
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """One worker goes, and why."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order.

    `retire`: idle workers; fence each at the queue first, and leave it alone if it holds a lease after all.
    `drain`: asked to finish whether or not they hold a lease. `kill`: their deadline is past.
    """

    spawn: tuple[Spawn, ...] = ()
    retire: tuple[Leave, ...] = ()
    drain: tuple[Leave, ...] = ()
    kill: tuple[Leave, ...] = ()


def plan(decision: Decision, *, fleet: Fleet, spec: PoolSpec, now: Monotonic) -> Plan:
    """The actions that bring `fleet` to `decision.target`."""
    raise NotImplementedError
