"""A worker's death certificate: what is put on record of its end, and how that is read again. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from orchestrator.fleet import Death
from orchestrator.runtime import Exit
from orchestrator.source import ReleasedTask
from orchestrator.suspects import Fate, Key

Record: TypeAlias = dict[str, object]

MAX_HELD_TOLD: Final = 100
"""Tasks that one certificate names; `held_total` tells how many there were."""


def certificate(death: Death, ended: Exit) -> Record:
    """Why a worker ended, after how long, and its last words."""
    told: Record = {
        "worker": death.worker,
        "pool": ended.pool,
        "ref": ended.ref,
        "cause": death.cause.value,
        "detail": death.detail,
        "code": ended.code,
        "signal": ended.signal,
        "lived_seconds": round(death.lived_seconds, 3),
        "failed_start": death.failed_start,
        "memory_peak_bytes": ended.memory_peak_bytes,
        "memory_limit_bytes": ended.memory_limit_bytes,
        "reason": ended.reason,
        "last_lines": list(ended.last_lines),
        "stack": list(ended.stack),
    }
    return told


def told_fates(fates: Iterable[Fate]) -> list[Record]:
    """Tasks that were held back, or became dead with their worker."""
    return [
        {
            "queue": fate.task.queue,
            "task": fate.task.task,
            "tag": fate.task.tag,
            "held_seconds": round(fate.task.held_seconds, 3),
            "lease_number": fate.task.lease_number,
            "fate": fate.verdict,
            "deaths": fate.record.deaths,
            "alone": fate.record.alone,
            "hold_seconds": fate.hold_seconds or None,
            "why": fate.why or None,
        }
        for fate in fates
    ]


def told_released(released: Iterable[ReleasedTask], known: Mapping[Key, Fate]) -> list[Record]:
    """Tasks that were given back; `known` has the records of those that are."""
    told: list[Record] = []
    for task in released:
        one: Record = {
            "queue": task.queue,
            "task": task.task,
            "tag": task.tag,
            "held_seconds": round(task.held_seconds, 3),
            "lease_number": task.lease_number,
            "fate": "dead" if task.died else "given back",
        }
        fate = known.get((task.queue, task.task))
        if fate is not None:
            one |= {"deaths": fate.record.deaths, "alone": fate.record.alone}
        told.append(one)
    return told
