"""Make values of the `Transaction` protocol from the rows of the schema's functions."""

import json
from collections.abc import Sequence
from typing import Any

from queue_core.attempts.attempt import attempts_of
from queue_core.clock import MICROSECONDS, Instant
from queue_core.stats import FinishedLease, LeaseOutcome
from queue_core.stores.postgres.client.statements import Row, Statement
from queue_core.stores.postgres.session import PostgresSession, refuse
from queue_core.stores.rare_text import set_rare_text
from queue_core.task import Progress, StoredTask, TaskState

KIND, ID, ETA, READY_AT, ADDED_AT, LEASED_AT, LEASES, WORKER, NAME, TAG, REASON, PAYLOAD, CELERY_ID = range(13)
DIED = 7
"""The kind of the row of a release by which its task died."""

COLUMNS = "kind, id, eta, ready_at, added_at, leased_at, leases, worker, name, tag, reason, payload, celery_id"

TASK_COLUMNS = (
    "t.id, t.eta, t.added_at, t.name, t.tag, t.state, t.leases, t.leased_at, t.ready_at, t.worker, t.reason, t.spent,"
    " t.max_leases, t.headers, t.attempts, t.progress, t.checkpoint, t.priority"
)


def call(session: PostgresSession, statement: Statement, *values: object) -> tuple[Row, list[Row]]:
    """Call a function that returns `result_row`s; split off its outcome row. Raises the error of a refusal."""
    rows = session.rows(statement, *values)
    answer = rows.pop()
    session.note_xid(answer[ETA])
    if answer[ID]:
        refuse(answer[ID], answer[NAME])
    return answer, rows


def finished_of(
    queue: str,
    numbers: Sequence[Any],
    texts: Sequence[str | None],
    outcome: LeaseOutcome,
    ended_at: Instant,
    reason: str | None = None,
    *,
    lived: bool | None = None,
) -> FinishedLease:
    """Return a finished lease from its sample.

    Args:
        numbers: the task's id, the lease's number, microseconds waited, the instants of the grant and of the add.
        texts: the task's given name and tag, the worker, and the id that Celery gave the task.
        reason: why the task died with the lease, or, if it lived, what was said of the lease; None: nothing.
        lived: True where a task with a reason did not die.
    """
    task_id, lease_number, waited, leased_at, added_at = numbers
    name, tag, worker, celery_id = texts
    return FinishedLease(
        queue,
        f"_{task_id}" if name is None else name,
        tag,
        worker or "",
        lease_number,
        outcome,
        waited / MICROSECONDS,
        (ended_at - leased_at) / MICROSECONDS if ended_at > leased_at else 0.0,
        ended_at,
        reason is not None and not lived,
        reason or "",
        added_at,
        celery_id or "",
    )


def finished_from(queue: str, row: Row, outcome: LeaseOutcome, ended_at: Instant) -> FinishedLease:
    """Return a finished lease from a `result_row`, which has its task as it was before."""
    waited = max(0, row[LEASED_AT] - row[READY_AT])
    numbers = (row[ID], row[LEASES], waited, row[LEASED_AT], row[ADDED_AT])
    texts = (row[NAME], row[TAG], row[WORKER], row[CELERY_ID])
    return finished_of(queue, numbers, texts, outcome, ended_at, row[REASON], lived=row[KIND] != DIED)


def task_of(queue: str, row: Row, *, has_lanes: bool = False) -> StoredTask:
    """Return the task of a row that was selected as `TASK_COLUMNS` and its payload.

    Args:
        has_lanes: whether tags of its queue have lanes, in which a task waits that is not admitted.
    """
    task_id, eta, added_at, name, tag, state, leases, leased_at, ready_at, worker, reason, spent, *rest = row
    bound, rare, attempts, progress, checkpoint, priority, payload = rest
    task = StoredTask(
        task_id,
        queue,
        payload,
        eta,
        added_at,
        name,
        tag,
        _state_of(state, in_lane=has_lanes and tag is not None),
        leases,
        leased_at,
        ready_at,
        worker or "",
        reason or "",
        tuple(spent or ()),
        bound,
        None,
        attempts_of(attempts),
        _progress_of(progress),
        checkpoint,
        priority or 0,
    )
    return task if rare is None else set_rare_text(task, rare)


def _state_of(stored: int, *, in_lane: bool) -> TaskState:
    """Return the state for a stored one: see `schema/lanes.sql`."""
    if stored > TaskState.DEAD:
        return TaskState.READY
    if stored <= TaskState.READY:
        return TaskState.HELD if in_lane else TaskState.READY
    return TaskState(stored)


def progress_text(progress: Progress | None) -> str | None:
    """Return a task's progress as stored, a JSON array; None for none."""
    return None if progress is None else json.dumps([progress.fraction, progress.text], ensure_ascii=False)


def _progress_of(text: str | None) -> Progress | None:
    return None if text is None else Progress(*json.loads(text))
