"""The verbs that move a queue to or from another store: tasks as they were, and names of deleted tasks."""

from collections.abc import Sequence

from queue_core import semantics
from queue_core.attempts.attempt import attempts_text
from queue_core.clock import Instant
from queue_core.stores.postgres.adds import EXISTS, given
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.queues import find
from queue_core.stores.postgres.results import progress_text
from queue_core.stores.postgres.session import PostgresSession
from queue_core.stores.rare_text import rare_text
from queue_core.task import StoredTask, TaskState
from queue_core.verbs import Added, HeldName

_RESTORE = Statement(
    "towline_restore",
    "SELECT * FROM towline.restore("
    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
    (
        pack.text,
        pack.int8,
        pack.int2s,
        pack.int8s,
        pack.int8s,
        pack.int8s,
        pack.int8s,
        pack.int4s,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.byteas,
        pack.int4s,
        pack.texts,
        pack.texts,
        pack.texts,
        pack.byteas,
        pack.int2s,
    ),
)
_HELD = Statement(
    "towline_held_names",
    "SELECT * FROM towline.held_names($1, $2, $3, $4)",
    (pack.text, pack.text, pack.int4, pack.int8),
)
_HOLD = Statement(
    "towline_hold_names",
    "SELECT towline.hold_names($1, $2, $3, $4)",
    (pack.text, pack.int8, pack.texts, pack.int8s),
)


def restore(session: PostgresSession, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
    """See `Transaction.restore`."""
    has_lanes = find(session, queue).per_tag.holds_tasks
    if not tasks:
        return []
    kept = [semantics.restore(moved, task_id=moved.id, queue=queue, now=now) for moved in tasks]
    ((xid, ids, outcomes),) = session.rows(
        _RESTORE,
        queue,
        now,
        [int(task.state) for task in kept],
        [task.eta for task in kept],
        [task.ready_at for task in kept],
        [task.added_at for task in kept],
        [task.leased_at for task in kept],
        [task.leases for task in kept],
        [task.tag for task in kept],
        [task.name for task in kept],
        [task.worker for task in kept],
        [task.reason for task in kept],
        [f"{{{','.join(map(str, task.spent))}}}" if task.spent else None for task in kept],
        [task.payload for task in kept],
        given([task.max_leases for task in kept]),
        given([rare_text(task) for task in kept]),
        given([attempts_text(task.attempts) for task in kept]),
        given([progress_text(task.progress) for task in kept]),
        given([task.checkpoint for task in kept]),
        given([task.priority or None for task in kept]),
    )
    session.note_xid(xid)
    return [
        _outcome(task, task_id, refusal, has_lanes=has_lanes)
        for task, task_id, refusal in zip(kept, ids, outcomes, strict=True)
    ]


def _outcome(task: StoredTask, task_id: int, refusal: int, *, has_lanes: bool) -> Added:
    if refusal:
        return Added(task.shown_name, "exists" if refusal == EXISTS else "tombstoned")
    ready = task.state is TaskState.READY and (task.tag is None or not has_lanes)
    return Added(f"_{task_id}" if task.name is None else task.name, "added", ready)


def held_names(session: PostgresSession, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
    """See `Transaction.held_names`."""
    find(session, queue)
    return [HeldName(name, until) for name, until in session.rows(_HELD, queue, after or "", limit, now)]


def hold_names(session: PostgresSession, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
    """See `Transaction.hold_names`."""
    find(session, queue)
    session.write(_HOLD, queue, now, [held.name for held in names], [held.until for held in names])
