"""The counters of queues and tags: changes are gathered during a transaction and written once, at its end."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from queue_core.clock import Instant
from queue_core.stores.sqlite.driver import Connection
from queue_core.task import TaskState

READY, DELAYED, LEASED, DEAD, ADDED, LEASES, DELETED, RELEASED, EXPIRED, DIED = range(10)
STORE = 0  # the row of the whole store; its `added` is the last id given to a task
COLUMNS = ("ready", "delayed", "leased", "dead", "added", "leases", "deleted", "released", "expired", "died")
GAUGE_OF_STATE = {
    TaskState.READY: READY,
    TaskState.DELAYED: DELAYED,
    TaskState.LEASED: LEASED,
    TaskState.DEAD: DEAD,
}
TOTAL_OF_OUTCOME = {"deleted": DELETED, "released": RELEASED, "expired": EXPIRED}

ONE_BY_ONE = 2  # up to so many rows are named in the statement, more come as a list


@lru_cache(maxsize=256)
def _write_sql(counters: tuple[int, ...], rows: int) -> str:
    """The statement that adds to these counters of so many rows."""
    sets = ", ".join(f"{COLUMNS[counter]} = {COLUMNS[counter]} + ?" for counter in counters)
    chosen = ", ".join("?" * rows) if rows <= ONE_BY_ONE else "SELECT value FROM json_each(?)"
    return f"UPDATE counts SET {sets}, changed_at = ? WHERE id IN ({chosen})"  # noqa: S608


def tally(tags: list[int]) -> Iterable[tuple[int, int]]:
    """Each tag's row and how often it occurs; nearly always all are the same."""
    return ((tags[0], len(tags)),) if tags.count(tags[0]) == len(tags) else Counter(tags).items()


class Counts:
    """Changes of counters that are not written yet: one row of numbers for each tag and each whole queue."""

    def __init__(self) -> None:
        self._changes: dict[int, list[int]] = {}

    def change_one(self, count_id: int, counter: int, number: int) -> None:
        """Add to a single row."""
        of_row = self._changes.setdefault(count_id, [0] * len(COLUMNS))
        of_row[counter] += number

    def change(self, whole: int, tag: int, changes: Iterable[tuple[int, int]]) -> None:
        """Add to a tag's counters, and to its queue's: pairs of a counter and a number."""
        of_tag = self._changes.get(tag)
        if of_tag is None:
            of_tag = self._changes[tag] = [0] * len(COLUMNS)
        of_whole = self._changes.get(whole)
        if of_whole is None:
            of_whole = self._changes[whole] = [0] * len(COLUMNS)
        for counter, number in changes:
            of_tag[counter] += number
            of_whole[counter] += number

    def write(self, connection: Connection, *, now: Instant) -> None:
        """Write what was gathered: rows that change alike, such as a tag and its queue, in one statement."""
        if not self._changes:
            return
        alike: dict[tuple[int, ...], list[int]] = {}
        for count_id, numbers in self._changes.items():
            alike.setdefault(tuple(numbers), []).append(count_id)
        self._changes = {}
        for numbers_of_rows, ids in alike.items():
            counters = tuple([counter for counter, number in enumerate(numbers_of_rows) if number])
            cells = [numbers_of_rows[counter] for counter in counters]
            if not cells:
                continue
            chosen = ids if len(ids) <= ONE_BY_ONE else [f"[{','.join(map(str, ids))}]"]
            # Few patterns of counters exist, so few statements: one for each verb, about.
            connection.execute(_write_sql(counters, min(len(ids), ONE_BY_ONE + 1)), (*cells, now, *chosen))
