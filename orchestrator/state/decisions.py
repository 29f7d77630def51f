"""The journals of a state directory, read for one pool: its decisions, those of a time, and their inputs."""

from dataclasses import dataclass
from typing import Final

from orchestrator.state.directory import StateDir
from orchestrator.state.journal import member_text

_SAME_SECONDS: Final = 0.01
"""Time between a decision's two records, at most: both have one time, rounded."""

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """The record of a pool at a time.

    Args:
        current: the decision in force then; None: none is on record.
        decisions: the newest up to then, newest first.
        inputs: all inputs of the newest one; None: not asked for, or no longer recorded.
    """

    current: Json | None
    decisions: list[Json]
    inputs: object = None


def pool_record(files: StateDir, pool: str, *, at: float | None, last: int, full: bool) -> PoolRecord:
    """Return what is on record of a pool at `at`, in seconds since the epoch, or now.

    `last`: decisions, at most. `full`: with the inputs of the newest one.
    """
    found = decisions_of(files, pool, limit=max(1, last), until=at)
    if at is None:
        pools = (files.shared_snapshot() or {}).get("pools")
        shown = pools.get(pool) if isinstance(pools, dict) else None
        decision = shown.get("decision") if isinstance(shown, dict) else None
        current = decision if isinstance(decision, dict) else None
    else:
        current = next(iter(found), None)
    inputs = inputs_of(files, pool, found[0]) if full and found else None
    return PoolRecord(current, found[:last], inputs)


def decisions_of(
    files: StateDir, pool: str, *, limit: int, until: float | None = None, before: float | None = None
) -> list[Json]:
    """Return a pool's newest decisions, newest first.

    `until`, `before`: none that is later than this second since the epoch; none that is not earlier than it.
    """

    def is_wanted(record: Json) -> bool:
        at = instant_in(record)
        return record.get("pool") == pool and (until is None or at <= until) and (before is None or at < before)

    return files.read_decisions(limit=limit, keep=is_wanted, text=member_text("pool", pool))


def inputs_of(files: StateDir, pool: str, decision: Json) -> object:
    """Return all inputs of a decision, if they are still recorded."""
    at = instant_in(decision)

    def is_wanted(record: Json) -> bool:
        return record.get("pool") == pool and abs(instant_in(record) - at) < _SAME_SECONDS

    found = files.read_replays(limit=1, keep=is_wanted, text=member_text("pool", pool))
    return found[0].get("inputs") if found else None


def instant_in(record: Json) -> float:
    """Return the instant of a record, in seconds since the epoch; 0 where it has none."""
    at = record.get("at")
    return float(at) if isinstance(at, int | float) else 0.0
