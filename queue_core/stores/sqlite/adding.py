"""The add verb: rows, names and counters of new tasks."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from queue_core import semantics
from queue_core.building import builder
from queue_core.clock import Instant
from queue_core.store import Added
from queue_core.stores.sqlite import names
from queue_core.stores.sqlite.counts import ADDED, DELAYED, READY
from queue_core.stores.sqlite.driver import Cell
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.settling import settle_used_up
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import NewTask

INSERT = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, '', '', ?, NULL, ?, ?)"

_QUEUE_OF = attrgetter("queue")
EXISTS: names.Refusal = "exists"

new_added = builder(Added)


def check_adds(step: Step, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> None:
    """Raise for an unknown queue or an eta out of range."""
    step.open_queue(queue)
    for new in tasks:
        if new.queue is not None:
            step.open_queue(new.queue)
        if new.eta is not None:
            semantics.effective_eta(new, now=now)


def add(step: Step, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
    """Add checked tasks, in order; runs of one queue are written together."""
    step.told = True
    outcomes: list[Added] = []
    for named, run in groupby(tasks, _QUEUE_OF):
        outcomes += _add_run(step, step.queue(named or queue), run, now=now)
    return outcomes


def _add_run(step: Step, queue: QueueRow, tasks: Iterable[NewTask], *, now: Instant) -> list[Added]:
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
            refusal: names.Refusal | None = "exists" if name in named else _taken(step, queue, name, now=now)
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
        outcomes.append(new_added(f"_{task_id}" if name is None else name, "added", not is_delayed))
        task_id += 1
    if rows:
        step.next_id = first + len(rows)
        step.cursor.executemany(INSERT, rows)
    if long:
        step.connection.executemany("INSERT INTO payloads VALUES (?, ?)", long)
    if named:
        names.give(step.connection, queue, list(named.items()), now=now)
    return outcomes


def _taken(step: Step, queue: QueueRow, name: str, *, now: Instant) -> names.Refusal | None:
    """What refuses a name; that of a task which time has ended by now is a deleted one's."""
    refusal = names.taken(step.connection, queue, name, now=now)
    if refusal == EXISTS and settle_used_up(step, queue, name, now=now):
        return names.taken(step.connection, queue, name, now=now)
    return refusal
