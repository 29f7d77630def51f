"""Finished leases as rows: those of one transaction and queue together, column by column, a bounded number kept."""

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from queue_core.clock import MICROSECONDS
from queue_core.stats import FinishedLease, Samples
from queue_core.stores.sqlite.driver import Connection

KEPT_SAMPLES = 10_000
TRIM_EVERY = 512
_SHIFT = 40
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode
_LARGEST = (1 << _SHIFT) - 1
_COLUMNS = attrgetter(
    "name",
    "tag",
    "worker",
    "lease_number",
    "outcome",
    "waited_seconds",
    "held_seconds",
    "ended_at",
    "died",
    "reason",
)
_WAITED, _HELD = 5, 6


def write_samples(
    connection: Connection, queue_id: int, finished: Sequence[FinishedLease], *, before: int | None
) -> int:
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


def pack(finished: Sequence[FinishedLease]) -> str:
    """JSON of the columns; a column whose values are all the same is written as that value."""
    if len(finished) == 1:
        return _pack_one(finished[0])
    columns: list[Sequence[Any]] = list(zip(*map(_COLUMNS, finished), strict=True))
    for at in (_WAITED, _HELD):
        columns[at] = [round(seconds * MICROSECONDS) for seconds in columns[at]]
    size = len(finished)
    return _encode([column[0] if column.count(column[0]) == size else column for column in columns])


def _pack_one(lease: FinishedLease) -> str:
    columns = list(_COLUMNS(lease))
    for at in (_WAITED, _HELD):
        columns[at] = round(columns[at] * MICROSECONDS)
    return _encode(columns)


def unpack(queue: str, packed: str, size: int) -> list[FinishedLease]:
    """The finished leases of one row."""
    columns = (column if isinstance(column, list) else [column] * size for column in json.loads(packed))
    names, tags, workers, numbers, outcomes, waited, held, ended, died, reasons = columns
    return [
        FinishedLease(
            queue,
            names[at],
            tags[at],
            workers[at],
            numbers[at],
            outcomes[at],
            waited[at] / MICROSECONDS,
            held[at] / MICROSECONDS,
            ended[at],
            died[at],
            reasons[at],
        )
        for at in range(size)
    ]
