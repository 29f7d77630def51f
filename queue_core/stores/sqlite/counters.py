"""Counters of queues and tags, gathered during a transaction and written once at its end; and samples of leases."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from pydantic_core import from_json, to_json

from queue_core.clock import MICROSECONDS, Instant
from queue_core.stats import FinishedLease, LeaseOutcome, Samples
from queue_core.stores.sqlite.driver import Cursor, SqliteConnection
from queue_core.task import TaskState

READY, DELAYED, LEASED, DEAD, ADDED, LEASES, DELETED, RELEASED, EXPIRED, DIED = range(10)
COLUMNS = ("ready", "delayed", "leased", "dead", "added", "leases", "deleted", "released", "expired", "died")
GAUGE_OF_STATE = {
    TaskState.READY: READY,
    TaskState.DELAYED: DELAYED,
    TaskState.LEASED: LEASED,
    TaskState.DEAD: DEAD,
}
TOTAL_OF_OUTCOME = {"deleted": DELETED, "released": RELEASED, "expired": EXPIRED}

MAX_ROWS_ONE_BY_ONE = 4
"""Rows written one after the other; more are written as a list, which costs a table in memory."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of counters: the statement for one row and for a list of rows, and the numbers they add."""

    one: str
    many: str
    numbers: tuple[int, ...]


@lru_cache(maxsize=1024)
def _change(numbers: tuple[int, ...]) -> _Change:
    """Return the change that adds `numbers`, by counter. There are few patterns: about one for each verb."""
    chosen = [COLUMNS[at] for at, number in enumerate(numbers) if number]
    sets = "".join(f"{column} = {column} + ?, " for column in chosen)
    sql = f"UPDATE counts SET {sets}changed_at = ? WHERE id"  # noqa: S608
    many = f"{sql} IN (SELECT value FROM json_each(?))"  # noqa: S608
    return _Change(f"{sql} = ?", many, tuple([number for number in numbers if number]))


def tally(tags: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Return each tag's row id and how often it occurs; nearly always all are the same."""
    return ((tags[0], len(tags)),) if tags.count(tags[0]) == len(tags) else Counter(tags).items()


class CounterChanges:
    """Changes of counters not written yet: a list of numbers for each tag. The changes of a queue are their sum."""

    __slots__ = ("_tags", "_wholes")

    def __init__(self) -> None:
        self._tags: dict[int, list[int]] = {}
        self._wholes: dict[int, int] = {}

    def of(self, whole: int, tag: int) -> list[int]:
        """Return the changes of a tag's counters, by counter, to be changed in place; its queue's follow."""
        numbers = self._tags.get(tag)
        if numbers is None:
            numbers = self._tags[tag] = [0] * len(COLUMNS)
            self._wholes[tag] = whole
        return numbers

    def change(self, whole: int, tag: int, changes: Iterable[tuple[int, int]]) -> None:
        """Add to a tag's counters and its queue's: pairs of a counter and a number."""
        numbers = self.of(whole, tag)
        for counter, number in changes:
            numbers[counter] += number

    def write(self, cursor: Cursor, *, now: Instant) -> None:
        """Write all changes; rows that change alike, such as a tag and its queue, together."""
        tags, wholes = self._tags, self._wholes
        if not tags:
            return
        self._tags, self._wholes = {}, {}
        if len(tags) == 1:
            ((tag, numbers),) = tags.items()
            change = _change(tuple(numbers))
            cells = (*change.numbers, now)
            cursor.executemany(change.one, ((*cells, tag), (*cells, wholes[tag])))
            return
        sums: dict[int, list[int]] = {}
        alike: dict[tuple[int, ...], list[int]] = {}
        for tag, numbers in tags.items():
            alike.setdefault(tuple(numbers), []).append(tag)
            of_whole = sums.setdefault(wholes[tag], [0] * len(COLUMNS))
            for counter, number in enumerate(numbers):
                of_whole[counter] += number
        for whole, numbers in sums.items():
            alike.setdefault(tuple(numbers), []).append(whole)
        for key, ids in alike.items():
            _write(cursor, key, ids, now=now)


def _write(cursor: Cursor, numbers: tuple[int, ...], ids: list[int], *, now: Instant) -> None:
    change = _change(numbers)
    if len(ids) <= MAX_ROWS_ONE_BY_ONE:
        cursor.executemany(change.one, [(*change.numbers, now, count_id) for count_id in ids])
    else:
        cursor.execute(change.many, (*change.numbers, now, f"[{','.join(map(str, ids))}]"))


KEPT_SAMPLES = 10_000
"""Samples kept of each queue, about."""
TRIM_EVERY = 512
"""Samples between two deletions of those beyond `KEPT_SAMPLES`."""
_SHIFT = 40
_LARGEST = (1 << _SHIFT) - 1

Sample: TypeAlias = tuple[str, str | None, str, int, LeaseOutcome, int, int, Instant, bool, str]
"""A finished lease as stored: the fields of a `FinishedLease` but its queue, the two durations in microseconds."""


def write_samples(
    connection: SqliteConnection, queue_id: int, finished: Sequence[Sample], *, before: int | None
) -> int:
    """Append samples of a queue, in order; now and then delete those beyond the number kept.

    Args:
        before: the number of samples ever written before; None: it is read.

    Returns the number of samples ever written.
    """
    if before is None:
        before = last_sample(connection, queue_id)
    last = before + len(finished)
    base = queue_id << _SHIFT
    connection.execute("INSERT INTO samples VALUES (?, ?, ?)", (base + last, len(finished), pack(finished)))
    if last // TRIM_EVERY != before // TRIM_EVERY:
        connection.execute("DELETE FROM samples WHERE id > ? AND id <= ?", (base, base + last - KEPT_SAMPLES))
    return last


def read_samples(connection: SqliteConnection, queue: str, queue_id: int, *, after: int, limit: int) -> Samples:
    """Return up to `limit` finished leases beyond the cursor `after`, oldest first."""
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


def last_sample(connection: SqliteConnection, queue_id: int) -> int:
    """Return the number of samples ever written of the queue."""
    base = queue_id << _SHIFT
    row = connection.execute(
        "SELECT id FROM samples WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT 1", (base, base + _LARGEST)
    ).fetchone()
    return 0 if row is None else int(row[0]) - base


def sample_of(finished: FinishedLease) -> Sample:
    """Return a finished lease as stored."""
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
    """Return the finished lease of a sample."""
    name, tag, worker, number, outcome, waited, held, ended_at, died, reason = sample
    return FinishedLease(
        queue, name, tag, worker, number, outcome, waited / MICROSECONDS, held / MICROSECONDS, ended_at, died, reason
    )


def pack(samples: Sequence[Sample]) -> str:
    """Return the samples' columns as JSON; a column whose values are all the same is written as that value."""
    size = len(samples)
    if size == 1:
        return to_json(samples[0]).decode()
    columns = zip(*samples, strict=True)
    return to_json([column[0] if column.count(column[0]) == size else column for column in columns]).decode()


def unpack(queue: str, packed: str, size: int) -> list[FinishedLease]:
    """Return the finished leases of one row."""
    columns = (column if isinstance(column, list) else [column] * size for column in from_json(packed))
    return [finished_of(queue, sample) for sample in zip(*columns, strict=True)]
