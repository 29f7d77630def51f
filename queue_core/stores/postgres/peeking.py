"""The peek verb: tasks by id, in their settled state, by whichever path reads the fewest rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.semantics import Ending
from queue_core.store import Page
from queue_core.stores.postgres import packing as pack
from queue_core.stores.postgres.calling import Statement
from queue_core.stores.postgres.looking import asked
from queue_core.stores.postgres.queues import find
from queue_core.stores.postgres.rows import COLUMNS, task_of
from queue_core.stores.postgres.step import Step
from queue_core.task import QueueSpec, StoredTask, TagFilter, TaskState

_PEEK = Statement(
    "towline_peek",
    f"SELECT {COLUMNS}, coalesce(substr(t.payload, 1, $8), '') FROM towline.peek($1, $2, $3, $4, $5, $6, $7) AS t",  # noqa: S608
    (pack.text, pack.texts, pack.int2s, pack.texts, pack.int8, pack.int4, pack.int8, pack.int4),
)


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


def peek(step: Step, queue: str, look: Look) -> Page:
    """See `Transaction.peek`."""
    spec = find(step, queue)
    rows = step.rows(
        _PEEK,
        queue,
        asked(look.tags),
        sorted(look.states),
        look.names,
        look.after,
        look.limit + 1,
        look.now,
        look.payload_bytes,
    )
    shown = [_settled(task_of(queue, row), spec, now=look.now) for row in rows]
    if len(shown) > look.limit:
        return Page(tuple(shown[: look.limit]), shown[look.limit - 1].id)
    return Page(tuple(shown))


def _settled(task: StoredTask, spec: QueueSpec, *, now: Instant) -> StoredTask:
    settled = semantics.settle(task, spec, now=now)
    shown = settled.task if isinstance(settled, Ending) else settled
    assert shown is not None, "the statement leaves out what time has deleted"
    return shown
