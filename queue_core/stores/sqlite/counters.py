"""Counters of queues and tags, gathered during a transaction and written once at its end; and samples of leases."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from pydantic_core import from_json, to_json

from queue_core.clock import MICROSECONDS, Instant
from queue_core.clock import after as instant_after
from queue_core.stats import FinishedLease, History, LeaseOutcome, Samples
from queue_core.stores.sqlite.driver import Cursor, SqliteConnection
from queue_core.task import QueueSpec, TaskState

READY, DELAYED, LEASED, DEAD, ADDED, LEASES, DELETED, RELEASED, EXPIRED, DIED, HELD = range(11)
COLUMNS = ("ready", "delayed", "leased", "dead", "added", "leases", "deleted", "released", "expired", "died", "held")
GAUGE_OF_STATE = {
    TaskState.READY: READY,
    TaskState.DELAYED: DELAYED,
    TaskState.LEASED: LEASED,
    TaskState.DEAD: DEAD,
    TaskState.HELD: HELD,
}
TOTAL_OF_OUTCOME = {"deleted": DELETED, "released": RELEASED, "expired": EXPIRED}

_NONE: Final = (0,) * len(COLUMNS)

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

    __slots__ = ("_limited", "_wholes", "changed", "unwritten")

    def __init__(self, limited: Container[int] = ()) -> None:
        """Args:
        limited: ids of the rows for whole queues that are limited, or whose tags are.
        """
        self.unwritten: dict[int, list[int]] = {}
        """The numbers of each tag; none: the table has the counters. Verbs of other callers may have come before."""
        self._wholes: dict[int, int] = {}
        self._limited = limited
        self.changed: dict[int, set[int]] = {}
        """The tags changed since the lanes of their limited queue were updated, by that queue's row."""

    def of(self, whole: int, tag: int) -> list[int]:
        """Return the changes of a tag's counters, by counter, to be changed in place; its queue's follow."""
        numbers = self.unwritten.get(tag)
        if numbers is None:
            numbers = self.unwritten[tag] = [0] * len(COLUMNS)
            self._wholes[tag] = whole
            if whole in self._limited:
                self.changed.setdefault(whole, set()).add(tag)
        return numbers

    def pending(self, tag: int) -> Sequence[int]:
        """Return the changes of a tag's counters that are not written yet, by counter."""
        return self.unwritten.get(tag, _NONE)

    def change(self, whole: int, tag: int, changes: Iterable[tuple[int, int]]) -> None:
        """Add to a tag's counters and its queue's: pairs of a counter and a number."""
        numbers = self.of(whole, tag)
        for counter, number in changes:
            numbers[counter] += number

    def write(self, cursor: Cursor, *, now: Instant) -> None:
        """Write all changes; rows that change alike, such as a tag and its queue, together."""
        tags, wholes = self.unwritten, self._wholes
        if not tags:
            return
        self.unwritten, self._wholes = {}, {}
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
"""Samples kept of each queue, about; more where its history is longer."""
TRIM_EVERY = 512
"""Samples between two deletions of those beyond the number kept."""
MAX_TRIMMED = 2 * TRIM_EVERY
"""Samples that one deletion removes, about: a history that is cut from a million is dropped in many."""
MAX_NAMES_SOUGHT = 8
"""Names of a search in history whose text is sought in a row before the row is parsed."""
_SHIFT = 40
_LARGEST = (1 << _SHIFT) - 1

Sample: TypeAlias = tuple[str, str | None, str, int, LeaseOutcome, int, int, Instant, bool, str, int, str]
"""A finished lease as stored: the fields of a `FinishedLease` but its queue, the two durations in microseconds.

The last but one is the age of its task in microseconds, from `added_at` to `ended_at`: shorter than an instant. The
last, Celery's id, is left out of a row in which no lease has one.
"""
_NAME: Final = 0
_ENDED_AT: Final = 7
_CELERY_ID: Final = 11

_TRIM = (
    "DELETE FROM samples WHERE id > ?1"
    " AND id <= min(?2, (SELECT id FROM samples WHERE id > ?1 ORDER BY id LIMIT 1) + ?3)"
)


def write_samples(
    connection: SqliteConnection, queue_id: int, finished: Sequence[Sample], *, before: int | None, keep: int
) -> int:
    """Append samples of a queue, in order; now and then delete those beyond the number kept.

    Args:
        before: the number of samples ever written before; None: it is read.
        keep: the number that the queue's history finds.

    Returns the number of samples ever written.
    """
    if before is None:
        before = last_sample(connection, queue_id)
    last = before + len(finished)
    base = queue_id << _SHIFT
    connection.execute("INSERT INTO samples VALUES (?, ?, ?)", (base + last, len(finished), pack(finished)))
    if last // TRIM_EVERY != before // TRIM_EVERY:
        most = max(MAX_TRIMMED, 2 * len(finished))  # more than were added, or the table would grow
        connection.execute(_TRIM, (base, base + last - max(KEPT_SAMPLES, keep), most - 1))
    return last


def read_samples(connection: SqliteConnection, queue: str, queue_id: int, *, after: int, limit: int) -> Samples:
    """Return up to `limit` finished leases beyond the cursor `after`, oldest first."""
    base = queue_id << _SHIFT
    finished: list[FinishedLease] = []
    missed = False
    cursor = after
    for key, size, packed in connection.execute(
        "SELECT id, size, finished FROM samples WHERE id > ? AND id <= ? ORDER BY id",
        (base + min(after, _LARGEST), base + _LARGEST),
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


def read_history(
    connection: SqliteConnection,
    queue_id: int,
    spec: QueueSpec,
    *,
    names: Sequence[str] | None,
    before: int | None,
    limit: int,
    now: Instant,
) -> History:
    """See `Transaction.history`. A row is parsed only if its text may contain one of a few names."""
    wanted = None if names is None else frozenset(names)
    oldest_at = instant_after(now, -spec.history_seconds)
    last = last_sample(connection, queue_id) if spec.history_keep else 0
    first = max(1, last - spec.history_keep + 1)
    until = last + 1 if before is None else min(before, last + 1)
    found: list[FinishedLease] = []
    for number, sample in _newest_first(connection, queue_id, wanted, first=first, until=until):
        if sample[_ENDED_AT] < oldest_at or (
            wanted is not None and wanted.isdisjoint((sample[_NAME], sample[_CELERY_ID]))
        ):
            continue
        if len(found) == limit:
            return History(tuple(found), number + 1)
        found.append(finished_of(spec.name, sample))
    return History(tuple(found))


def _newest_first(
    connection: SqliteConnection, queue_id: int, names: frozenset[str] | None, *, first: int, until: int
) -> Iterator[tuple[int, Sample]]:
    """Yield samples and numbers, from before `until` down to `first`, those of these names or Celery ids among them."""
    if until <= first or names == frozenset():
        return
    base = queue_id << _SHIFT
    sought = [] if names is None or len(names) > MAX_NAMES_SOUGHT else [to_json(name).decode() for name in names]
    containing = f" AND ({' OR '.join(len(sought) * ['instr(finished, ?)'])})" if sought else ""
    for key, size, packed in connection.execute(
        "SELECT id, size, finished FROM samples WHERE id >= ? AND id <="  # noqa: S608
        f" (SELECT id FROM samples WHERE id >= ? ORDER BY id LIMIT 1){containing} ORDER BY id DESC",
        (base + first, base + until - 1, *sought),
    ):
        samples = _samples_of(packed, size)
        top = key - base
        for back in range(max(0, top - until + 1), min(size, top - first + 1)):
            yield top - back, samples[size - 1 - back]


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
        finished.ended_at - finished.added_at,
        finished.celery_id,
    )


def finished_of(queue: str, sample: Sample) -> FinishedLease:
    """Return the finished lease of a sample."""
    name, tag, worker, number, outcome, waited, held, ended_at, died, reason, age, celery_id = sample
    return FinishedLease(
        queue,
        name,
        tag,
        worker,
        number,
        outcome,
        waited / MICROSECONDS,
        held / MICROSECONDS,
        ended_at,
        died,
        reason,
        Instant(ended_at - age),
        celery_id,
    )


def pack(samples: Sequence[Sample]) -> str:
    """Return the samples' columns as JSON; a column whose values are all the same is written as that value."""
    size = len(samples)
    if size == 1:
        only = samples[0]
        return to_json(only if only[_CELERY_ID] else only[:_CELERY_ID]).decode()
    columns = list(zip(*samples, strict=True))
    if not any(columns[_CELERY_ID]):
        columns.pop()
    return to_json([column[0] if column.count(column[0]) == size else column for column in columns]).decode()


def unpack(queue: str, packed: str, size: int) -> list[FinishedLease]:
    """Return the finished leases of one row."""
    return [finished_of(queue, sample) for sample in _samples_of(packed, size)]


def _samples_of(packed: str, size: int) -> list[Sample]:
    found = from_json(packed)
    if len(found) == _CELERY_ID:
        found.append("")
    if size == 1:
        return [tuple(found)]
    columns = (column if isinstance(column, list) else [column] * size for column in found)
    return list(zip(*columns, strict=True))
