"""The add verb; also the parts of it that a deletion which adds tasks needs."""

from collections.abc import Sequence

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.rare_fields import has_rare_fields
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.commit_markers import MARKER_PACKS, VerbAnswerLostError
from queue_core.stores.postgres.session import PostgresSession, refuse
from queue_core.stores.rare_text import rare_text
from queue_core.task import NewTask
from queue_core.verbs import Added

_ADD_ONE = Statement(
    "towline_add_one",
    "SELECT * FROM towline.add_one($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    (pack.text, pack.int8, pack.raw, pack.text, pack.int8, pack.text, *MARKER_PACKS),
)
_ADD = Statement(
    "towline_add",
    "SELECT * FROM towline.add($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    (pack.texts, pack.int8, pack.byteas, pack.texts, pack.some_int8s, pack.texts, *MARKER_PACKS),
)
_ADD_MORE = Statement(
    "towline_add_more",
    "SELECT * FROM towline.add($1, $2, $3, $4, $5, $6, $10, $11, $12, $7, $8, $9)",
    (*_ADD.packs[: -len(MARKER_PACKS)], pack.int4s, pack.texts, pack.int2s, *MARKER_PACKS),
)
"""For tasks some of which have rare fields, priorities or their own bound of leases: others send nothing of them."""
EXISTS, TOMBSTONED = 1, 2


def etas_of(tasks: Sequence[NewTask], *, now: Instant) -> list[Instant | None]:
    """Return the eta of each task, None for at once. Raises `InvalidEtaError`."""
    return [
        None if new.eta is None and new.delay_seconds is None else semantics.effective_eta(new, now=now)
        for new in tasks
    ]


def outcome_of(
    new: NewTask, task_id: int | None, refusal: int, eta: Instant | None, *, has_lanes: bool = False, now: Instant
) -> Added:
    """Return the outcome of one add from the columns of its row. A tagged task in a queue with lanes may be held."""
    if refusal:
        assert new.name is not None, "only a name refuses a task"
        return Added(new.name, "exists" if refusal == EXISTS else "tombstoned")
    ready = (eta is None or eta <= now) and (new.tag is None or not has_lanes)
    return Added(f"_{task_id}" if new.name is None else new.name, "added", ready)


def add(session: PostgresSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
    """See `Transaction.add`."""
    etas = etas_of(tasks, now=now)
    for new in tasks[:1]:
        session.note_used(new.queue or queue, () if new.tag is None else (new.tag,), 1)
    if len(tasks) == 1:
        added = _add_one(session, tasks[0].queue or queue, tasks[0], etas[0], now=now)
        if added is not None:
            return [added]
    queues = [new.queue or queue for new in tasks]
    if not tasks or queues.count(queues[0]) == len(queues):
        queues = queues[:1] or [queue]
    more = more_of(tasks)
    try:
        ((refusal, detail, xid, ids, refusals),) = session.verb(
            _ADD_MORE if more else _ADD,
            queues,
            now,
            [new.payload for new in tasks],
            given([new.tag for new in tasks]),
            given(etas),
            given([new.name for new in tasks]),
            *more,
        )
    except VerbAnswerLostError as lost:
        refusal, detail, xid = 0, "", None if lost.is_repeat else lost.xid
        ids, refusals = lost.ids, [max(0, -task_id) for task_id in lost.ids]
    if refusal:
        refuse(refusal, detail)
    session.note_xid(xid)
    if not tasks:
        return []
    for named in dict.fromkeys(queues):
        tagged = sum(new.tag is not None and (new.queue or queue) == named for new in tasks)
        if tagged:
            session.note_tagged(named, tagged, now=now)
    refusals = refusals or [0] * len(tasks)
    return [
        outcome_of(new, task_id, refusal, eta, has_lanes=session.has_lanes(new.queue or queue), now=now)
        for new, task_id, refusal, eta in zip(tasks, ids, refusals, etas, strict=True)
    ]


def _add_one(session: PostgresSession, queue: str, new: NewTask, eta: Instant | None, *, now: Instant) -> Added | None:
    """Add one plain task on the fast path (ADR 11); None: nothing was done, so `towline.add` must be called."""
    if new.name is not None or new.max_leases is not None or new.priority or session.is_limited(queue):
        return None
    try:
        ((xid, task_id),) = session.verb(
            _ADD_ONE, queue, now, new.payload, new.tag, eta, rare_text(new) if has_rare_fields(new) else None
        )
    except VerbAnswerLostError as lost:
        xid, (task_id,) = None if lost.is_repeat else lost.xid, lost.ids
    if task_id is None:
        return None
    session.note_xid(xid)
    if new.tag is not None:
        session.note_tagged(queue, 1, now=now)
    return outcome_of(new, task_id, 0, eta, now=now)


def more_of(tasks: Sequence[NewTask]) -> tuple[Sequence[object], ...]:
    """Return what few tasks have: bounds of leases, rare fields and priorities; empty when none has any."""
    bounds = given([new.max_leases for new in tasks])
    rare = given([rare_text(new) if has_rare_fields(new) else None for new in tasks])
    priorities = given([new.priority or None for new in tasks])
    return (bounds, rare, priorities) if bounds or rare or priorities else ()


def given(values: Sequence[object]) -> Sequence[object]:
    """Return the values, or an empty sequence when all are None, which the server fills up."""
    return () if values.count(None) == len(values) else values
