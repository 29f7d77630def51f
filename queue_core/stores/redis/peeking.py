"""The peek verb: tasks by id, in their settled states, by whichever way reads the fewest."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, unpack_from

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.semantics import Ending
from queue_core.store import Page
from queue_core.stores.redis.administering import queue as settings_of
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.keys import key_of
from queue_core.stores.redis.line import Cell
from queue_core.stores.redis.packing import pack_filter, pack_instants, parse_task
from queue_core.task import QueueSpec, StoredTask, TagFilter, TaskState

_LOOK = Struct(">QBBQIIH")
_SPARSE = b"s"


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

    def cells(self) -> list[Cell]:
        """The look as the functions take it."""
        kind, tags = pack_filter(self.tags)
        states = sum(1 << state for state in self.states)
        fixed = _LOOK.pack(self.now, kind, states, self.after, self.limit, self.payload_bytes, len(tags))
        return [fixed, *tags]


def peek(calls: Calls, queue: str, look: Look) -> Page:
    """See `Transaction.peek`. Where the ids of very many tasks are sparse it takes many calls, not one instant."""
    spec = settings_of(calls, queue)
    if look.names is not None:
        return _page(spec, calls.look("peek_names", queue, *look.cells(), *dict.fromkeys(look.names)), look)
    answer = calls.link.look("peek", (key_of(queue),), look.cells())
    if answer != _SPARSE:
        return _page(spec, calls.done(answer), look)
    ids = heapq.nsmallest(look.limit + 1, set(_ids(calls, queue, look)))
    page = _page(spec, calls.look("peek_ids", queue, *look.cells(), pack_instants(ids[: look.limit])), look)
    return Page(page.tasks, ids[look.limit - 1] if len(ids) > look.limit else None)


def _ids(calls: Calls, queue: str, look: Look) -> Iterator[int]:
    """The least ids of each piece of the queue; each task is in one piece at least, as long as it is there."""
    cursor = 0
    while True:
        data = calls.look("peek_piece", queue, *look.cells(), cursor)
        cursor, *ids = unpack_from(f">{(len(data) - DATA) // 8}Q", data, DATA)
        yield from ids
        if not cursor:
            return


def _page(spec: QueueSpec, data: bytes, look: Look) -> Page:
    tasks: list[StoredTask] = []
    at = DATA
    while at < len(data):
        task, at = parse_task(spec.name, data, at)
        settled = semantics.settle(task, spec, now=look.now)
        shown = settled.task if isinstance(settled, Ending) else settled
        if shown is not None and shown.state in look.states:
            tasks.append(shown)
    return Page(tuple(tasks), tasks[-1].id if data[1] and tasks else None)
