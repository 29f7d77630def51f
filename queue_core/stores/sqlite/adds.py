"""The add verb: rows, names and counters of new tasks.

A task that is added alone waits in `arrivals`, a table without an index: one page to write instead of three (ADR 21).
Nobody sees it wait: those that wait are sorted in before any other verb of a transaction, in whichever process, and
before a reader's snapshot.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.fast_values import fast_constructor
from queue_core.store import Added
from queue_core.stores.sqlite.driver import Cell
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES, Refusal, give_names, refusal_of_name, settle_used_up
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.stores.sqlite.statistics import ADDED, DELAYED, READY
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

_INSERT = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, '', '', ?, NULL, ?, ?)"

_QUEUE_OF = attrgetter("queue")
_EXISTS: Refusal = "exists"

_new_added = fast_constructor(Added)


def check_adds(step: SqliteSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> None:
    """Raise for an unknown queue or an eta out of range."""
    step.open_queue(queue)
    for new in tasks:
        if new.queue is not None:
            step.open_queue(new.queue)
        if new.eta is not None:
            semantics.effective_eta(new, now=now)


def add(step: SqliteSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
    """Add checked tasks, in order; runs of one queue are written together."""
    step.told = True
    outcomes: list[Added] = []
    for named, run in groupby(tasks, _QUEUE_OF):
        outcomes += _add_run(step, step.queue(named or queue), run, now=now)
    return outcomes


def _add_run(step: SqliteSession, queue: QueueRow, tasks: Iterable[NewTask], *, now: Instant) -> list[Added]:
    outcomes: list[Added] = []
    rows: list[tuple[Cell, ...]] = []
    long: list[tuple[int, bytes]] = []
    named: dict[str, int] = {}
    numbers: list[int] = []
    tag, last_tag = 0, None
    first = task_id = step.next_id
    for new in tasks:
        name = new.name
        if name is not None:
            refusal: Refusal | None = "exists" if name in named else _taken(step, queue, name, now=now)
            if refusal is not None:
                outcomes.append(Added(name, refusal))
                continue
            named[name] = task_id
        eta = now if new.eta is None and new.delay_seconds is None else semantics.effective_eta(new, now=now)
        is_delayed = eta > now
        if new.tag != last_tag or not rows:
            last_tag = new.tag
            tag = step.tag_id(queue, last_tag)
            numbers = step.counts.of(queue.whole, tag)
        numbers[DELAYED if is_delayed else READY] += 1
        numbers[ADDED] += 1
        payload: bytes | None = new.payload
        if len(new.payload) > LONG_PAYLOAD_BYTES:
            long.append((task_id, new.payload))
            payload = None
        rows.append((task_id, queue.id, tag, int(is_delayed), eta, eta, now, name, new.max_leases, payload))
        outcomes.append(_new_added(f"_{task_id}" if name is None else name, "added", not is_delayed))
        task_id += 1
    if rows:
        step.next_id = first + len(rows)
        step.cursor.executemany(_INSERT, rows)
    if long:
        step.connection.executemany("INSERT INTO payloads VALUES (?, ?)", long)
    if named:
        give_names(step.connection, queue, list(named.items()), now=now)
    return outcomes


def _taken(step: SqliteSession, queue: QueueRow, name: str, *, now: Instant) -> Refusal | None:
    """What refuses a name; that of a task which time has ended by now is a deleted one's."""
    refusal = refusal_of_name(step.connection, queue, name, now=now)
    if refusal == _EXISTS and settle_used_up(step, queue, name, now=now):
        return refusal_of_name(step.connection, queue, name, now=now)
    return refusal


def arrive(step: SqliteSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added] | None:
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
    return [_new_added(f"_{task_id}", "added", True)]  # noqa: FBT003 - that it is ready


def let_wait(step: SqliteSession) -> None:
    """What a transaction that only added does last: a few tasks wait, more are sorted in."""
    arriving = step.arriving
    if len(arriving) > FEW or step.arrived + len(arriving) > MAX_ARRIVALS:
        sort_in(step)
        return
    for _, cells in arriving:
        step.cursor.execute(_WAIT, cells)
    step.arrived += len(arriving)
    step.arriving = []


def sort_in(step: SqliteSession) -> None:
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
        step.cursor.executemany(_INSERT, rows)
        step.arriving = []
