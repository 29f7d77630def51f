"""The primitives of `ChangeVerbs`: which tasks a verb means, and what is written of its outcomes."""

from collections.abc import Callable, Sequence
from functools import partial

from queue_core.attempts.attempt import attempts_text
from queue_core.clock import Instant
from queue_core.semantics import LeaseEnd
from queue_core.stores.postgres import queues
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Row, Statement
from queue_core.stores.postgres.reads import tag_values
from queue_core.stores.postgres.results import TASK_COLUMNS, task_of
from queue_core.stores.postgres.session import PostgresSession
from queue_core.task import StoredTask, TaskState
from queue_core.verbs.change_verbs import Depth, HeldTasks, InStates, LeasedBy, Named, Outcome, Removed, Selector
from queue_core.verbs.validation import check_not_moved

_NAME = 3
_FROM_HELD = "FROM towline.hold_tasks($1, $2, $3, $4, $5, $6, $7, $8) AS t"
_PACKS = (pack.text, pack.int8, pack.texts, pack.int2s, pack.texts, pack.text, pack.int8, pack.boolean)
_HOLD: dict[Depth, Statement] = {
    "id": Statement("towline_hold_ids", f"SELECT t.id {_FROM_HELD}", _PACKS),
    "task": Statement("towline_hold", f"SELECT {TASK_COLUMNS}, ''::bytea {_FROM_HELD}", _PACKS),
    "whole": Statement("towline_hold_whole", f"SELECT {TASK_COLUMNS}, t.payload {_FROM_HELD}", _PACKS),
}
_CHANGE = Statement(
    "towline_change",
    "SELECT towline.change_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
    (
        pack.text,
        pack.int8,
        pack.int8s,
        pack.boolean,
        pack.int8s,
        pack.int2s,
        pack.some_int8s,
        pack.some_int8s,
        pack.texts,
        pack.int4s,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.booleans,
    ),
)
_TAKEN = Statement(
    "towline_taken_names",
    "SELECT * FROM towline.taken_names($1, $2, $3)",
    (pack.text, pack.texts, pack.int8),
)
_FENCE = Statement("towline_fence_holder", "SELECT * FROM towline.fence_holder($1, $2)", (pack.text, pack.int8))


def hold(session: PostgresSession, name: str, selector: Selector, *, now: Instant) -> HeldTasks[Row]:
    """See `ChangeVerbs.hold`: one round trip."""
    names: Sequence[str] | None = None
    states: list[int] = []
    tags, worker, limit, settles = None, None, 0, True
    depth: Depth = "task"
    match selector:
        case Named():
            names, settles, depth = selector.names, selector.settles, selector.depth
        case InStates():
            states, tags = [int(state) for state in selector.states if state is not TaskState.HELD], selector.tags
            limit, depth = selector.limit, selector.depth
        case LeasedBy():
            worker, limit = selector.worker, selector.limit
    wanted = None if tags is None else tag_values(tags)
    spec, rows = queues.find_with(session, name, _HOLD[depth], name, now, names, states, wanted, worker, limit, settles)
    check_not_moved(spec)
    read = partial(_task_of, name, spec.per_tag.holds_tasks)
    shown = [] if names is None else [row[_NAME] or f"_{row[0]}" for row in rows]
    rest = selector.rest(len(rows)) if isinstance(selector, LeasedBy) else None
    return HeldTasks(spec, rows, read, shown, rest=rest)


def _task_of(queue: str, has_lanes: bool, row: Row) -> StoredTask:  # noqa: FBT001 - bound by `partial`
    return task_of(queue, row, has_lanes=has_lanes)


def change(session: PostgresSession, name: str, changes: Sequence[tuple[Row, Outcome]], *, now: Instant) -> bool:
    """See `ChangeVerbs.change`. The rows are locked, so that it always succeeds."""
    gone = [row[0] for row, outcome in changes if isinstance(outcome, Removed)]
    counts_deleted = any(outcome is Removed.DELETED for _, outcome in changes)
    ids = [row[0] for row, outcome in changes if not isinstance(outcome, Removed)]
    others = [outcome for _, outcome in changes if not isinstance(outcome, Removed)]
    xid = session.write(_CHANGE, name, now, gone, counts_deleted, ids, *_columns(others))[0][0]
    session.note_xid(xid)
    session.is_xid_known = True
    return True


def _columns(outcomes: Sequence[StoredTask | LeaseEnd]) -> tuple[list[object], ...]:
    """Return the arrays that `change_tasks` takes from `states` on."""
    ends = [outcome if isinstance(outcome, LeaseEnd) else None for outcome in outcomes]
    tasks = [outcome.task if isinstance(outcome, LeaseEnd) else outcome for outcome in outcomes]

    def of(read: Callable[[StoredTask], object]) -> list[object]:
        return [None if task is None else read(task) for task in tasks]

    def of_ends(read: Callable[[LeaseEnd], object]) -> list[object]:
        return [None if end is None else read(end) for end in ends]

    return (
        of(_stored_state),
        of(lambda task: task.eta),
        of(lambda task: task.ready_at),
        of(lambda task: task.tag),
        of(lambda task: task.leases),
        of(lambda task: task.reason or None),
        of(lambda task: "{" + ",".join(map(str, task.spent)) + "}" if task.spent else None),
        of_ends(lambda end: None if end.task is None else attempts_text(end.task.attempts)),
        of_ends(lambda end: end.finished.outcome),
        of_ends(lambda end: end.finished.reason or None),
        of_ends(lambda end: end.finished.died),
    )


def _stored_state(task: StoredTask) -> int:
    """Return the state as `change_tasks` takes it: what becomes ready waits for its tag's lane, if there is one."""
    return 0 if task.state is TaskState.HELD else int(task.state)


def taken_names(session: PostgresSession, name: str, names: Sequence[str], *, now: Instant) -> set[str]:
    """See `ChangeVerbs.taken_names`."""
    return {row[0] for row in session.rows(_TAKEN, name, names, now)}


def fence(session: PostgresSession, worker: str, *, now: Instant) -> list[str]:
    """See `ChangeVerbs.fence_worker`."""
    return [row[0] for row in session.write(_FENCE, worker, now)]
