"""The last answer of each client's session, so that a repeat of its call is answered again and not done again."""

from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError
from queue_core.stores.sqlite.step import Step

KEPT_MICROSECONDS = 2 * 86_400 * 1_000_000
EXAMINED_PER_NEW_SESSION = 4


def last_answer(step: Step, session: str) -> tuple[int, bytes] | None:
    """See `Transaction.last_answer`."""
    row = step.connection.execute("SELECT number, answer FROM sessions WHERE session = ?", (session,)).fetchone()
    return None if row is None else (row[0], bytes(row[1]))


def keep_answer(step: Step, session: str, number: int, answer: bytes, *, now: Instant) -> None:
    """See `Transaction.keep_answer`."""
    step.told = True
    row = step.connection.execute("SELECT number FROM sessions WHERE session = ?", (session,)).fetchone()
    if row is not None and row[0] >= number:
        raise StoreUnavailableError(f"call {number} of session {session!r} came late: {row[0]} was answered")
    step.connection.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?)", (session, number, answer, now))
    if row is None:
        _forget_idle_sessions(step, now=now)


def _forget_idle_sessions(step: Step, *, now: Instant) -> None:
    """Look at a few sessions, round and round, and drop those of which nothing was heard for days."""
    examined = step.connection.execute(
        "SELECT session, kept_at FROM sessions WHERE session > ? ORDER BY session LIMIT ?",
        (step.known.examined_session, EXAMINED_PER_NEW_SESSION),
    ).fetchall()
    step.known.examined_session = examined[-1][0] if len(examined) == EXAMINED_PER_NEW_SESSION else ""
    idle = [(row[0],) for row in examined if row[1] < now - KEPT_MICROSECONDS]
    if idle:
        step.connection.executemany("DELETE FROM sessions WHERE session = ?", idle)
