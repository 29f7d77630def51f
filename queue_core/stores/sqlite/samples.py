"""Finished leases as rows: those of one transaction and queue together, column by column, a bounded number kept."""

from collections.abc import Sequence
from typing import TypeAlias

from pydantic_core import from_json, to_json

from queue_core.building import builder
from queue_core.clock import MICROSECONDS, Instant
from queue_core.stats import FinishedLease, LeaseOutcome, Samples
from queue_core.stores.sqlite.driver import Connection

KEPT_SAMPLES = 10_000
TRIM_EVERY = 512
_SHIFT = 40
_LARGEST = (1 << _SHIFT) - 1

Sample: TypeAlias = tuple[str, str | None, str, int, LeaseOutcome, int, int, Instant, bool, str]
"""A finished lease as it is kept: the fields of a `FinishedLease` but its queue, the two durations in microseconds."""

new_finished_lease = builder(FinishedLease)


def write_samples(connection: Connection, queue_id: int, finished: Sequence[Sample], *, before: int | None) -> int:
    """Note finished leases of a queue, in order; now and then forget those beyond the number kept.

    Args:
        before: how many were noted before; None: it is read.

    Returns how many were noted by now.
    """
    if before is None:
        before = last_sample(connection, queue_id)
    last = before + len(finished)
    base = queue_id << _SHIFT
    connection.execute("INSERT INTO samples VALUES (?, ?, ?)", (base + last, len(finished), pack(finished)))
    if last // TRIM_EVERY != before // TRIM_EVERY:
        connection.execute("DELETE FROM samples WHERE id > ? AND id <= ?", (base, base + last - KEPT_SAMPLES))
    return last


def read_samples(connection: Connection, queue: str, queue_id: int, *, after: int, limit: int) -> Samples:
    """Up to `limit` finished leases beyond the cursor, oldest first."""
    base = queue_id << _SHIFT
    finished: list[FinishedLease] = []
    missed = False
    cursor = after
    for key, size, packed in connection.execute(
        "SELECT id, size, finished FROM samples WHERE id > ? AND id <= ? ORDER BY id", (base + after, base + _LARGEST)
    ):
        first = key - base - size
        if first > cursor:
            missed = True
            cursor = first
        taken = unpack(queue, packed, size)[cursor - first : cursor - first + limit - len(finished)]
        finished.extend(taken)
        cursor += len(taken)
        if len(finished) >= limit:
            break
    return Samples(tuple(finished), cursor, missed)


def last_sample(connection: Connection, queue_id: int) -> int:
    """How many finished leases of the queue were ever noted."""
    base = queue_id << _SHIFT
    row = connection.execute(
        "SELECT id FROM samples WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT 1", (base, base + _LARGEST)
    ).fetchone()
    return 0 if row is None else int(row[0]) - base


def sample_of(finished: FinishedLease) -> Sample:
    """How a finished lease is kept."""
    return (
        finished.name,
        finished.tag,
        finished.worker,
        finished.lease_number,
        finished.outcome,
        round(finished.waited_seconds * MICROSECONDS),
        round(finished.held_seconds * MICROSECONDS),
        finished.ended_at,
        finished.died,
        finished.reason,
    )


def finished_of(queue: str, sample: Sample) -> FinishedLease:
    """The finished lease that was kept so."""
    name, tag, worker, number, outcome, waited, held, ended_at, died, reason = sample
    return new_finished_lease(
        queue, name, tag, worker, number, outcome, waited / MICROSECONDS, held / MICROSECONDS, ended_at, died, reason
    )


def pack(samples: Sequence[Sample]) -> str:
    """JSON of the columns; a column whose values are all the same is written as that value."""
    size = len(samples)
    if size == 1:
        return to_json(samples[0]).decode()
    columns = zip(*samples, strict=True)
    return to_json([column[0] if column.count(column[0]) == size else column for column in columns]).decode()


def unpack(queue: str, packed: str, size: int) -> list[FinishedLease]:
    """The finished leases of one row."""
    columns = (column if isinstance(column, list) else [column] * size for column in from_json(packed))
    return [finished_of(queue, sample) for sample in zip(*columns, strict=True)]
