"""Tasks that are added one at a time wait in a table without an index: one page to write instead of three.

Nobody sees them wait: they are sorted in before any other verb of a transaction, in whichever process, and before a
reader's snapshot. See ADR 21.
"""

from collections.abc import Sequence

from queue_core.clock import Instant
from queue_core.store import Added
from queue_core.stores.sqlite.adding import INSERT, new_added
from queue_core.stores.sqlite.counts import ADDED, READY
from queue_core.stores.sqlite.driver import Cell
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.step import Step
from queue_core.task import NewTask

MAX_ARRIVALS = 48
"""How many may wait. Sorted in, so many keep a reader for 0.15 to 0.22 ms, one alone for 0.06 to 0.08."""
FEW = 4
"""A transaction that adds more than these sorts in at once: writing a row twice costs more than the pages do."""

_WAIT = "INSERT INTO arrivals VALUES (?, ?, ?, ?, ?, ?)"
_COUNT = (
    "SELECT c.id, a.tag, count(*), max(a.added_at) FROM arrivals a JOIN counts c ON c.queue = a.queue AND c.tag IS NULL"
    " GROUP BY a.tag"
)
_SORT_IN = (
    "INSERT INTO tasks SELECT id, queue, tag, 0, added_at, added_at, added_at, 0, 0, '', '', NULL, NULL,"
    " max_leases, payload FROM arrivals"
)


def arrive(step: Step, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added] | None:
    """Add one checked task that is ready at once, has a short payload, no name, and a tag that is counted already.

    None: nothing is done, as it is not so plain; nor is it where payloads are limited, as only tasks are measured.
    """
    if len(tasks) != 1:
        return None
    new = tasks[0]
    if new.name is not None or new.eta is not None or new.delay_seconds is not None:
        return None
    row = step.queue(new.queue or queue)
    tag = step.known_tag_id(row, new.tag)
    if tag is None or len(new.payload) > LONG_PAYLOAD_BYTES or step.known.is_limited:
        return None
    task_id = step.next_id
    step.next_id += 1
    step.told = True
    step.arriving.append((row.whole, (task_id, row.id, tag, now, new.max_leases, new.payload)))
    return [new_added(f"_{task_id}", "added", True)]  # noqa: FBT003 - that it is ready


def let_wait(step: Step) -> None:
    """What a transaction that only added does last: a few tasks wait, more are sorted in."""
    arriving = step.arriving
    if len(arriving) > FEW or step.arrived + len(arriving) > MAX_ARRIVALS:
        sort_in(step)
        return
    for _, cells in arriving:
        step.cursor.execute(_WAIT, cells)
    step.arrived += len(arriving)
    step.arriving = []


def sort_in(step: Step) -> None:
    """Put the tasks that wait, and those that this transaction added, where tasks are, and count them."""
    if step.arrived:
        for whole, tag, number, added_at in step.cursor.execute(_COUNT).fetchall():
            step.counts.change(whole, tag, ((READY, number), (ADDED, number)))
            step.now = step.now or added_at
        step.cursor.execute(_SORT_IN)
        step.cursor.execute("DELETE FROM arrivals")
        step.arrived = 0
    if step.arriving:
        rows: list[tuple[Cell, ...]] = []
        for whole, (task_id, queue_id, tag, added_at, max_leases, payload) in step.arriving:
            step.counts.change(whole, tag, ((READY, 1), (ADDED, 1)))
            rows.append((task_id, queue_id, tag, 0, added_at, added_at, added_at, None, max_leases, payload))
        step.cursor.executemany(INSERT, rows)
        step.arriving = []
