"""The counters of queues and tags: changes are gathered during a transaction and written once, at its end."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from queue_core.clock import Instant
from queue_core.stores.sqlite.driver import Cursor
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

FEW = 4  # up to so many rows are written one after the other, more as a list: that costs a table in memory


@dataclass(frozen=True, slots=True)
class _Change:
    """What is added to a row: the statement for one row and for a list of rows, and the numbers they take."""

    one: str
    many: str
    numbers: tuple[int, ...]


@lru_cache(maxsize=1024)
def _change(numbers: tuple[int, ...]) -> _Change:
    """Few patterns of counters exist, so few statements: one for each verb, about."""
    chosen = [COLUMNS[at] for at, number in enumerate(numbers) if number]
    sets = "".join(f"{column} = {column} + ?, " for column in chosen)
    sql = f"UPDATE counts SET {sets}changed_at = ? WHERE id"  # noqa: S608
    many = f"{sql} IN (SELECT value FROM json_each(?))"  # noqa: S608
    return _Change(f"{sql} = ?", many, tuple([number for number in numbers if number]))


def tally(tags: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Each tag's row and how often it occurs; nearly always all are the same."""
    return ((tags[0], len(tags)),) if tags.count(tags[0]) == len(tags) else Counter(tags).items()


class Counts:
    """Changes of counters that are not written yet: one row of numbers for each tag. A whole queue's are their sum."""

    __slots__ = ("_tags", "_wholes")

    def __init__(self) -> None:
        self._tags: dict[int, list[int]] = {}
        self._wholes: dict[int, int] = {}

    def of(self, whole: int, tag: int) -> list[int]:
        """What is to be added to a tag's counters, and to its queue's: by counter, to be changed in place."""
        numbers = self._tags.get(tag)
        if numbers is None:
            numbers = self._tags[tag] = [0] * len(COLUMNS)
            self._wholes[tag] = whole
        return numbers

    def change(self, whole: int, tag: int, changes: Iterable[tuple[int, int]]) -> None:
        """Add to a tag's counters, and to its queue's: pairs of a counter and a number."""
        numbers = self.of(whole, tag)
        for counter, number in changes:
            numbers[counter] += number

    def write(self, cursor: Cursor, *, now: Instant) -> None:
        """Write what was gathered: rows that change alike, such as a tag and its queue, together."""
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
    if len(ids) <= FEW:
        cursor.executemany(change.one, [(*change.numbers, now, count_id) for count_id in ids])
    else:
        cursor.execute(change.many, (*change.numbers, now, f"[{','.join(map(str, ids))}]"))
