"""Tells in our own log what a worker in a container tells in its: with worker, pool and, where it is about one, task.

A worker's own lines are objects of JSON with an event; what else a program prints may hold anything, payloads included,
and is told at level debug only. All of it is in the worker's log file.
"""

import json
from typing import Final

import structlog

from orchestrator import events

log = structlog.get_logger()

MAX_LINE_CHARS: Final = 500
MAX_PAIRS: Final = 20

_OURS: Final = frozenset({"worker", "pool", "event", "level", "timestamp", "wrote"})
_LOUD: Final = frozenset({"warning", "error", "critical"})


def told(data: bytes, *, worker: str, pool: str) -> None:
    """Tell one piece of a worker's output."""
    line = data.decode(errors="replace").rstrip("\n")
    said = parsed(line)
    if said is None:
        log.debug(events.WORKER_WROTE, worker=worker, pool=pool, line=line[:MAX_LINE_CHARS])
        return
    tell = log.warning if said.get("level") in _LOUD else log.info
    pairs = [(name, value) for name, value in said.items() if name not in _OURS][:MAX_PAIRS]
    tell(events.WORKER_WROTE, worker=worker, pool=pool, wrote=said["event"], **dict(pairs))


def parsed(line: str) -> dict[str, object] | None:
    """A line of a worker's log as values, long texts cut; None for anything else."""
    if not line.startswith("{"):
        return None
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("event"), str):
        return None
    return {
        name: value[:MAX_LINE_CHARS] if isinstance(value, str) else value
        for name, value in said.items()
        if isinstance(value, str | int | float | bool | None)
    }
