"""The verbs of supervisors: workers, leads; and the answers that are kept of clients' calls."""

from collections.abc import Sequence

from queue_core.clock import Instant, after
from queue_core.errors import StoreUnavailableError
from queue_core.store import Kept
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.session import PostgresSession
from queue_core.verbs import Busy

_SEEN = Statement(
    "towline_seen",
    "SELECT worker, seen_at FROM towline.workers WHERE seen_at IS NOT NULL AND worker = ANY ($1)",
    (pack.texts,),
)
_RETIRE = Statement("towline_retire", "SELECT towline.retire_worker($1, $2)", (pack.text, pack.int8))
_FENCE = Statement("towline_fence", "SELECT towline.fence_worker($1, $2)", (pack.text, pack.int8))
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
