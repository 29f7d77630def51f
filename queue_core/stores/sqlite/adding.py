"""The add verb: rows, names and counters of new tasks."""

from collections.abc import Sequence

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.store import Added
from queue_core.stores.building import builder
from queue_core.stores.sqlite import names
from queue_core.stores.sqlite.counts import ADDED, DELAYED, READY, tally
from queue_core.stores.sqlite.driver import Cell
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.settling import settle_used_up
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import NewTask

_INSERT = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, '', '', ?, NULL, ?, ?)"

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
    named = tasks[0].queue if tasks else None
    if all(new.queue == named for new in tasks):
        return _add_run(step, step.queue(named or queue), tasks, now=now)
    outcomes: list[Added] = []
    start = 0
    for end in range(1, len(tasks) + 1):
        if end == len(tasks) or tasks[end].queue != tasks[start].queue:
            row = step.queue(tasks[start].queue or queue)
            outcomes += _add_run(step, row, tasks[start:end], now=now)
            start = end
    return outcomes


def _add_run(step: Step, queue: QueueRow, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
    outcomes: list[Added] = []
    rows: list[tuple[Cell, ...]] = []
    long: list[tuple[int, bytes]] = []
    named: dict[str, int] = {}
    ready: list[int] = []
    delayed: list[int] = []
    tag, last_tag = 0, None
    first = task_id = step.take_ids(len(tasks))
    for new in tasks:
        name = new.name
        if name is not None:
            refusal: names.Refusal | None = "exists" if name in named else _taken(step, queue, name, now=now)
            if refusal is not None:
                outcomes.append(Added(name, refusal))
                continue
            named[name] = task_id
        eta = now if new.eta is None and new.delay_seconds is None else semantics.effective_eta(new, now=now)
        is_ready = eta <= now
        if new.tag != last_tag or not rows:
            last_tag = new.tag
            tag = step.tag_id(queue, last_tag)
        (ready if is_ready else delayed).append(tag)
        payload: bytes | None = new.payload
        if len(new.payload) > LONG_PAYLOAD_BYTES:
            long.append((task_id, new.payload))
            payload = None
        rows.append((task_id, queue.id, tag, 0 if is_ready else 1, eta, eta, now, name, payload, new.max_leases))
        outcomes.append(new_added(f"_{task_id}" if name is None else name, "added", is_ready))
        task_id += 1
    step.give_back_ids(first + len(tasks) - task_id)
    step.told = True
    if rows:
        step.connection.executemany(_INSERT, rows)
    if long:
        step.connection.executemany("INSERT INTO payloads VALUES (?, ?)", long)
    if named:
        names.give(step.connection, queue, list(named.items()), now=now)
    for gauge, tags in ((READY, ready), (DELAYED, delayed)):
        if tags:
            for tag, number in tally(tags):
                step.counts.change(queue.whole, tag, ((gauge, number), (ADDED, number)))
    return outcomes


def _taken(step: Step, queue: QueueRow, name: str, *, now: Instant) -> names.Refusal | None:
    """What refuses a name; that of a task which time has ended by now is a deleted one's."""
    refusal = names.taken(step.connection, queue, name, now=now)
    if refusal == EXISTS and settle_used_up(step, queue, name, now=now):
        return names.taken(step.connection, queue, name, now=now)
    return refusal
