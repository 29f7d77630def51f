"""The verbs of administrators and supervisors: delete by name, purge, redrive, retag; workers, leads, idempotency."""

from collections.abc import Sequence
from typing import Literal

from queue_core.attempts.attempt import Failure, failure_text
from queue_core.clock import Instant, after
from queue_core.errors import StoreUnavailableError
from queue_core.limits import FARTHEST_ETA_SECONDS, check_eta
from queue_core.stats import PURGED, FinishedLease, TaskRemoval
from queue_core.store import Kept
from queue_core.stores.postgres import results
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.queues import lock_queue
from queue_core.stores.postgres.reads import tag_values
from queue_core.stores.postgres.results import TASK_COLUMNS, task_of
from queue_core.stores.postgres.session import PostgresSession, refuse
from queue_core.task import StoredTask, TagFilter
from queue_core.verbs import Busy, Retagged

NameOutcome = Literal["deleted", "unknown", "tombstoned"]

_NAME_OUTCOMES: tuple[NameOutcome, ...] = ("deleted", "unknown", "tombstoned")
_DELETE_NAMED = Statement(
    "towline_remove_named",
    "SELECT * FROM towline.remove_named($1, $2, $3, $4, $5)",
    (pack.text, pack.int8, pack.texts, pack.text, pack.text),
)
_PURGE = Statement(
    "towline_purge",
    "SELECT * FROM towline.purge($1, $2, $3, $4, $5, $6)",
    (pack.text, pack.int8, pack.int2s, pack.texts, pack.int8, pack.text),
)
_POSTPONE = Statement(
    "towline_postpone",
    "SELECT * FROM towline.postpone($1, $2, $3, $4, $5)",
    (pack.text, pack.int8, pack.text, pack.int8, pack.int8),
)
_RETAG = Statement(
    "towline_retag",
    "SELECT * FROM towline.retag($1, $2, $3, $4)",
    (pack.text, pack.int8, pack.texts, pack.text),
)
_RETAGGED_READY = 2
_REDRIVE = Statement(
    "towline_redrive",
    f"SELECT {TASK_COLUMNS}, t.payload FROM towline.redrive($1, $2, $3, $4, $5) AS t",  # noqa: S608
    (pack.text, pack.int8, pack.texts, pack.texts, pack.int8),
)
_SEEN = Statement(
    "towline_seen",
    "SELECT worker, seen_at FROM towline.workers WHERE seen_at IS NOT NULL AND worker = ANY ($1)",
    (pack.texts,),
)
_RETIRE = Statement("towline_retire", "SELECT towline.retire_worker($1, $2)", (pack.text, pack.int8))
_FENCE = Statement("towline_fence", "SELECT towline.fence_worker($1, $2)", (pack.text, pack.int8))
_RELEASE_WORKER = Statement(
    "towline_release_worker",
    f"SELECT {results.COLUMNS} FROM towline.release_worker($1, $2, $3, $4, $5)",  # noqa: S608
    (pack.text, pack.int8, pack.text, pack.text, pack.text),
)
_LEAD = Statement(
    "towline_lead",
    "SELECT towline.take_lead($1, $2, $3, $4)",
    (pack.text, pack.text, pack.int8, pack.int8),
)
_LAST_ANSWER = Statement(
    "towline_last_answer",
    "SELECT number, answer FROM towline.sessions WHERE session = $1 ORDER BY part DESC LIMIT 1",
    (pack.text,),
)
_KEEP_ANSWER = Statement(
    "towline_keep_answer",
    "SELECT towline.keep_answer($1, $2, $3, $4)",
    (pack.text, pack.int8, pack.raw, pack.int8),
)
_KEEP_ALWAYS = Statement(
    "towline_keep_always",
    "UPDATE towline.sessions SET kept_at = 9223372036854775807 WHERE session = $1 RETURNING number",
    (pack.text,),
)


def delete_by_name(
    session: PostgresSession, queue: str, names: Sequence[str], removal: TaskRemoval, *, now: Instant
) -> list[NameOutcome]:
    """See `Transaction.delete_by_name`."""
    ((refusal, detail, xid, outcomes),) = session.rows(_DELETE_NAMED, queue, now, names, removal.reason, removal.holder)
    if refusal:
        refuse(refusal, detail)
    session.note_xid(xid)
    return [_NAME_OUTCOMES[outcome] for outcome in outcomes or ()]


def postpone(session: PostgresSession, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
    """See `Transaction.postpone`."""
    check_eta(eta, now=now, most_seconds=FARTHEST_ETA_SECONDS)
    ((refusal, detail, xid, moved),) = session.rows(_POSTPONE, queue, now, name, expected, eta)
    if refusal:
        refuse(refusal, detail)
    session.note_xid(xid)
    return bool(moved)


def retag(
    session: PostgresSession, queue: str, names: Sequence[str], tag: str | None, *, now: Instant
) -> list[Retagged]:
    """See `Transaction.retag`."""
    wanted = list(dict.fromkeys(names))
    ((refusal, detail, xid, outcomes),) = session.rows(_RETAG, queue, now, wanted, tag)
    if refusal:
        refuse(refusal, detail)
    session.note_xid(xid)
    return [
        Retagged(name, outcome == _RETAGGED_READY)
        for name, outcome in zip(wanted, outcomes or (), strict=True)
        if outcome
    ]


def purge(
    session: PostgresSession,
    queue: str,
    tags: TagFilter,
    states: Sequence[int],
    removal: TaskRemoval = PURGED,
    *,
    limit: int,
    now: Instant,
) -> int:
    """See `Transaction.purge` and `purge_dead`."""
    ((refusal, detail, xid, total),) = session.rows(_PURGE, queue, now, states, tag_values(tags), limit, removal.reason)
    if refusal:
        refuse(refusal, detail)
    session.note_xid(xid)
    return int(total)


def redrive(
    session: PostgresSession, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
) -> list[StoredTask]:
    """See `Transaction.redrive`."""
    lock_queue(session, queue)
    return [task_of(queue, row) for row in session.write(_REDRIVE, queue, now, names, tag_values(tags), limit)]


def workers_seen(session: PostgresSession, workers: Sequence[str]) -> dict[str, Instant]:
    """See `Transaction.workers_seen`."""
    found = {row[0]: row[1] for row in session.rows(_SEEN, workers)}
    return {worker: found[worker] for worker in workers if worker in found}


def retire_worker(session: PostgresSession, worker: str, *, busy: Busy, now: Instant) -> bool:
    """See `Transaction.retire_worker`."""
    is_free = bool(session.write(_RETIRE, worker, now)[0][0])
    if not is_free and busy == "finish":
        session.write(_FENCE, worker, now)  # under the lock that the retirement took
    return is_free


def release_worker(session: PostgresSession, worker: str, *, failure: Failure, now: Instant) -> list[FinishedLease]:
    """See `Transaction.release_worker`."""
    given = failure.given_reason or None
    _, rows = results.call(session, _RELEASE_WORKER, worker, now, failure.text, given, failure_text(failure))
    return [results.finished_from(row[results.PAYLOAD].decode(), row, "released", now) for row in rows]


def lead(session: PostgresSession, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
    """See `Transaction.lead`."""
    return bool(session.write(_LEAD, name, holder, after(now, seconds), now)[0][0])


def last_answer(session: PostgresSession, client_session: str) -> tuple[int, bytes] | None:
    """See `Transaction.last_answer`."""
    rows = session.rows(_LAST_ANSWER, client_session)
    return (rows[0][0], bytes(rows[0][1])) if rows else None


def keep_answer(
    session: PostgresSession, client_session: str, number: int, answer: bytes, *, now: Instant, kept: Kept = "days"
) -> None:
    """See `Transaction.keep_answer`."""
    if not session.write(_KEEP_ANSWER, client_session, number, answer, now)[0][0]:
        raise StoreUnavailableError(f"call {number} of session {client_session!r} came late: a later call was answered")
    if kept == "always":
        session.write(_KEEP_ALWAYS, client_session)
