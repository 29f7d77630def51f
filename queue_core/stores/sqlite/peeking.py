"""The peek verb: tasks by id, in their settled state, by whichever path reads the fewest rows."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.semantics import Ending
from queue_core.store import Page
from queue_core.stores.sqlite.administering import gauge, in_state, row_of_name
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.rows import COLUMNS, task_of
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import StoredTask, TagFilter, TaskState

SORTED_AT_MOST = 5000
"""Up to so many tasks of the states asked for are read by their index and sorted; more are met soon in id order."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a peek asks for."""

    tags: TagFilter
    states: frozenset[TaskState]
    names: Sequence[str] | None
    after: int
    limit: int
    payload_bytes: int
    now: Instant


def peek(step: Step, name: str, look: Look) -> Page:
    """See `Transaction.peek`."""
    queue = step.queue(name)
    tag_ids = step.tag_ids(queue, look.tags)
    shown: list[StoredTask] = []
    for row in _rows(step, queue, look, tag_ids):
        task = _settled(task_of(step, queue, row), queue, now=look.now)
        if task is None or task.id <= look.after or task.state not in look.states:
            continue
        if tag_ids is not None and row[1] not in tag_ids:
            continue
        if len(shown) == look.limit:
            return Page(_with_payloads(step, shown, look.payload_bytes), shown[-1].id if shown else None)
        shown.append(task)
    return Page(_with_payloads(step, shown, look.payload_bytes))


def _settled(task: StoredTask, queue: QueueRow, *, now: Instant) -> StoredTask | None:
    settled = semantics.settle(task, queue.spec, now=now)
    return settled.task if isinstance(settled, Ending) else settled


def _rows(step: Step, queue: QueueRow, look: Look, tag_ids: list[int] | None) -> Iterable[Row]:
    """Rows in id order among which are all that are asked for."""
    if look.names is not None:
        named = (row_of_name(step, queue, name) for name in dict.fromkeys(look.names))
        return sorted(row for row in named if row is not None)
    stored = _stored_states(look.states)
    counted = [queue.whole] if tag_ids is None else tag_ids
    if sum(gauge(step, counted, state) for state in stored) <= SORTED_AT_MOST:
        return sorted(row for state in stored for row in in_state(step, queue, state, tag_ids, limit=SORTED_AT_MOST))
    return _by_id(step, queue, look, tag_ids)


def _stored_states(states: frozenset[TaskState]) -> list[TaskState]:
    """The states as stored from which the settled ones may come: time makes READY and DEAD tasks of others."""
    stored = set(states)
    if TaskState.READY in states:
        stored |= {TaskState.DELAYED, TaskState.LEASED}
    if TaskState.DEAD in states:
        stored.add(TaskState.LEASED)
    return sorted(stored)


def _by_id(step: Step, queue: QueueRow, look: Look, tag_ids: list[int] | None) -> Iterator[Row]:
    of_tags, cells = ("", ()) if tag_ids is None else (" AND tag IN (SELECT value FROM json_each(?))", (tag_ids,))
    return iter(
        step.connection.execute(
            f"SELECT {COLUMNS} FROM tasks NOT INDEXED WHERE id > ? AND queue = ?{of_tags} ORDER BY id",  # noqa: S608
            (look.after, queue.id, *(json.dumps(cell) for cell in cells)),
        )
    )


def _with_payloads(step: Step, tasks: Sequence[StoredTask], payload_bytes: int) -> tuple[StoredTask, ...]:
    cut = (
        "SELECT coalesce(substr(coalesce(tasks.payload, payloads.payload), 1, ?), x'')"
        " FROM tasks LEFT JOIN payloads USING (id) WHERE id = ?"
    )
    shown = []
    for task in tasks:
        row = step.connection.execute(cut, (payload_bytes, task.id)).fetchone()
        payload = b"" if row is None else row[0]
        shown.append(replace(task, payload=payload))
    return tuple(shown)
