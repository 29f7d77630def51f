"""The last answer of each client's session, so that a repeat of its call is answered again and not done again (ADR 28).

Answers of one transaction are kept together, in one row at the end of a table. A row is read only when a call is
repeated, so it is found by a search from the newest on, and costs no index.
"""

import re
from collections.abc import Iterator

from queue_core.clock import Instant, after
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.store import ClientCall
from queue_core.stores.sqlite.driver import Cursor, SqliteConnection
from queue_core.stores.sqlite.session import CatalogCache, SqliteSession

MAX_SESSIONS = 20_000
"""Whose last call one process remembers."""
KEPT_ROWS = 100_000
"""Transactions whose answers are kept: ten seconds' worth under full load. A repeat from before is told so."""
TRIM_EVERY = 512

_TRIM = "DELETE FROM answers WHERE id <= (SELECT max(id) FROM answers) - ?"
_OLDEST = "SELECT id, kept_at FROM answers ORDER BY id LIMIT 1"
_AFTER = "SELECT id, kept FROM answers WHERE id > ? ORDER BY id"
_FIND = "SELECT kept FROM answers WHERE instr(kept, ?) ORDER BY id DESC LIMIT 1"
_CALL = re.compile(r"\n([^/\n]+)/([0-9]+)/")


def answer_of(step: SqliteSession, call: ClientCall, *, now: Instant) -> bytes | None:
    """See `Transaction.answer_of`."""
    if not call.is_repeat:
        _learn_calls_of_others(step)
        if step.known.calls.get(call.session, 0) < call.number:
            return None
    here = step.answers.get(call.session)
    found = _find_answer(step.connection, call.session) if here is None else _parse_line(f"\n{here}", call.session)
    if found is not None:
        return call.answer_in((found[0], found[1].encode()))
    if _is_forgotten(step.connection, since=after(now, -call.age_seconds)):
        raise OutcomeUnknownError(
            f"more than {KEPT_ROWS} changes were made since this call was first sent ({call.age_seconds} s ago): "
            "whether it took effect is not known any more; look before repeating"
        )
    return None


def _learn_calls_of_others(step: SqliteSession) -> None:
    """Learn which calls other processes have answered since this one last looked.

    A call may arrive here, unread in a socket until now, after its client gave it up and had another server answer the
    repeat. At first all answers that are kept are read, 2 us each; later those of transactions that came in between.
    """
    known = step.known
    if known.answers_are_read:
        return
    for row_id, session, number in _answers_after(step.cursor, known.answers_read):
        known.answers_read = row_id
        _remember(known, session, number)
    known.answers_are_read = True


def _remember(known: CatalogCache, session: str, number: int) -> None:
    calls = known.calls
    calls.pop(session, None)
    calls[session] = number
    if len(calls) > MAX_SESSIONS:
        del calls[next(iter(calls))]


def record_answer(step: SqliteSession, call: ClientCall, answer: bytes) -> None:
    """See `Transaction.record_answer`. Transactions are made one by one, so none can have come in between."""
    step.told = True
    step.answers[call.session] = _line_of(call.session, call.number, answer.decode())
    _remember(step.known, call.session, call.number)
    step.known.kept_answers += 1
    if step.known.kept_answers % TRIM_EVERY == 0:
        step.cursor.execute(_TRIM, (KEPT_ROWS,))


def _answers_after(cursor: Cursor, row_id: int) -> Iterator[tuple[int, str, int]]:
    """Yield row, session and number of each call whose answer was kept after row `row_id`, in order."""
    for found_id, kept in cursor.execute(_AFTER, (row_id,)).fetchall():
        for session, number in _CALL.findall(kept):
            yield found_id, session, int(number)


def _line_of(session: str, number: int, answer: str) -> str:
    """One answer as it is kept; `answer` is JSON, and so one line."""
    return f"{session}/{number}/{answer}"


def _is_forgotten(connection: SqliteConnection, *, since: Instant) -> bool:
    """Whether an answer that was kept at `since` or later may be among those that were forgotten."""
    row = connection.execute(_OLDEST).fetchone()
    return row is not None and row[0] > 1 and row[1] > since


def _find_answer(connection: SqliteConnection, session: str) -> tuple[int, str] | None:
    """Return the number of a session's last call that is kept, and its answer; None: there is none."""
    row = connection.execute(_FIND, (f"\n{session}/",)).fetchone()
    return None if row is None else _parse_line(str(row[0]), session)


def _parse_line(kept: str, session: str) -> tuple[int, str]:
    """Return the number and the answer of a session's call in a row that has one."""
    _, _, rest = kept.partition(f"\n{session}/")
    number, _, answer = rest.partition("\n")[0].partition("/")
    return int(number), answer


KEPT_MICROSECONDS = 2 * 86_400 * 1_000_000
EXAMINED_PER_NEW_SESSION = 4


def last_answer(step: SqliteSession, session: str) -> tuple[int, bytes] | None:
    """See `Transaction.last_answer`."""
    row = step.connection.execute("SELECT number, answer FROM sessions WHERE session = ?", (session,)).fetchone()
    return None if row is None else (row[0], bytes(row[1]))


def keep_answer(step: SqliteSession, session: str, number: int, answer: bytes, *, now: Instant) -> None:
    """See `Transaction.keep_answer`."""
    step.told = True
    row = step.connection.execute("SELECT number FROM sessions WHERE session = ?", (session,)).fetchone()
    if row is not None and row[0] >= number:
        raise StoreUnavailableError(f"call {number} of session {session!r} came late: {row[0]} was answered")
    step.connection.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?)", (session, number, answer, now))
    if row is None:
        _forget_idle_sessions(step, now=now)


def _forget_idle_sessions(step: SqliteSession, *, now: Instant) -> None:
    """Look at a few sessions, round and round, and drop those of which nothing was heard for days."""
    examined = step.connection.execute(
        "SELECT session, kept_at FROM sessions WHERE session > ? ORDER BY session LIMIT ?",
        (step.known.examined_session, EXAMINED_PER_NEW_SESSION),
    ).fetchall()
    step.known.examined_session = examined[-1][0] if len(examined) == EXAMINED_PER_NEW_SESSION else ""
    idle = [(row[0],) for row in examined if row[1] < now - KEPT_MICROSECONDS]
    if idle:
        step.connection.executemany("DELETE FROM sessions WHERE session = ?", idle)
