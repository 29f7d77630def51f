"""The last answer of each client session, so that a repeated call gets it again and takes effect once (ADR 28).

The answers of a transaction are stored in one row at the end of a table. A row is read only when a call is repeated, so
it is found by a search from the newest on, and costs no index.
"""

import re
from collections.abc import Iterator

from queue_core.clock import Instant, after
from queue_core.errors import StoreUnavailableError
from queue_core.limits import MAX_INTEGER
from queue_core.store import Kept
from queue_core.stores.sqlite.driver import Cursor, SqliteConnection
from queue_core.stores.sqlite.session import CatalogCache, SqliteSession
from queue_core.verbs import MEANING_SIGN, ClientCall, too_old

MAX_SESSIONS = 20_000
"""Client sessions whose last call one process remembers."""
KEPT_ROWS = 100_000
"""Transactions whose answers are kept: ten seconds' worth under full load, or fewer where these have very many bytes
(`session.MAX_ANSWER_BYTES`). A later repeat is refused, with `OutcomeUnknownError`."""
TRIM_EVERY = 512

_TRIM = "DELETE FROM answers WHERE id <= (SELECT max(id) FROM answers) - ?"
_OLDEST = "SELECT id, kept_at FROM answers ORDER BY id LIMIT 1"
_AFTER = "SELECT id, kept FROM answers WHERE id > ? ORDER BY id"
_FIND = "SELECT kept FROM answers WHERE instr(kept, ?) ORDER BY id DESC LIMIT 1"
_CALL = re.compile(r"\n([^/\n]+)/([0-9]+)/")


def answer_of(session: SqliteSession, call: ClientCall, *, now: Instant) -> bytes | None:
    """See `Transaction.answer_of`."""
    if not call.is_repeat:
        if not session.catalog.answers_are_read:
            _learn_calls_of_others(session)
        if session.catalog.calls.get(call.session, 0) < call.number:
            return None
    here = session.answers.get(call.session)
    found = _find_answer(session.connection, call.session) if here is None else _parse_line(f"\n{here}", call.session)
    if found is not None:
        return call.answer_in((found[0], found[1].encode()))
    if _is_forgotten(session.connection, since=after(now, -call.age_seconds)):
        raise too_old(call)
    return None


def _learn_calls_of_others(session: SqliteSession) -> None:
    """Read which calls other processes have answered since the last time.

    A call may be read here from a socket after its client gave up and had another server answer the repeat. The first
    time all stored answers are read, 2 us each; later only those of transactions since.
    """
    catalog = session.catalog
    for row_id, client, number in _answers_after(session.cursor, catalog.answers_read):
        catalog.answers_read = row_id
        _remember(catalog, client, number)
    catalog.answers_are_read = True


def _remember(catalog: CatalogCache, client: str, number: int) -> None:
    calls = catalog.calls
    calls.pop(client, None)
    calls[client] = number
    if len(calls) > MAX_SESSIONS:
        del calls[next(iter(calls))]


def record_answer(session: SqliteSession, call: ClientCall, answer: bytes) -> None:
    """See `Transaction.record_answer`. Transactions run one by one, so no other can have answered the call since."""
    session.has_changes = True
    session.answers[call.session] = f"{call.session}/{call.number}/{call.meaning}{answer.decode()}"  # JSON: one line
    _remember(session.catalog, call.session, call.number)
    session.catalog.kept_answers += 1
    if session.catalog.kept_answers % TRIM_EVERY == 0:
        session.cursor.execute(_TRIM, (KEPT_ROWS,))


def _answers_after(cursor: Cursor, row_id: int) -> Iterator[tuple[int, str, int]]:
    """Yield row id, client session and number of each call answered after row `row_id`, in order."""
    for found_id, kept in cursor.execute(_AFTER, (row_id,)).fetchall():
        for client, number in _CALL.findall(kept):
            yield found_id, client, int(number)


def _is_forgotten(connection: SqliteConnection, *, since: Instant) -> bool:
    """Return whether an answer that was stored at `since` or later may have been deleted."""
    row = connection.execute(_OLDEST).fetchone()
    return row is not None and row[0] > 1 and row[1] > since


def _find_answer(connection: SqliteConnection, client: str) -> tuple[int, str] | None:
    """Return the number and the answer of a client session's last stored call; None: there is none."""
    row = connection.execute(_FIND, (f"\n{client}/",)).fetchone()
    return None if row is None else _parse_line(str(row[0]), client)


def _parse_line(kept: str, client: str) -> tuple[int, str]:
    """Return the number and the answer of a client session's call in a row that has one."""
    _, _, rest = kept.partition(f"\n{client}/")
    number, _, answer = rest.partition("\n")[0].partition("/")
    return int(number), answer


MAX_KEPT_SESSIONS = 20_000
MAX_KEPT_BYTES = 64 << 20
"""How many sessions keep what `keep_answer` was given of clients' calls, and the bytes of that, about; of more, those
kept longest ago are deleted."""
DELETED_AT_ONCE = 64
FORGOTTEN = ""
"""The session that has, as its number, when the last of those was kept."""
KEPT_MICROSECONDS = 2 * 86_400 * 1_000_000
"""Time after which the last answer of a transfer's session may be deleted."""
EXAMINED_PER_NEW_SESSION = 4


def last_answer(session: SqliteSession, client: str) -> tuple[int, bytes] | None:
    """See `Transaction.last_answer`."""
    row = session.connection.execute("SELECT number, answer FROM sessions WHERE session = ?", (client,)).fetchone()
    return None if row is None else (row[0], bytes(row[1]))


def keep_answer(
    session: SqliteSession, client: str, number: int, answer: bytes, *, now: Instant, kept: Kept = "days"
) -> None:
    """See `Transaction.keep_answer`."""
    session.has_changes = True
    row = session.connection.execute("SELECT number FROM sessions WHERE session = ?", (client,)).fetchone()
    if row is not None and row[0] >= number:
        raise StoreUnavailableError(f"call {number} of session {client!r} came late: {row[0]} was answered")
    session.connection.execute(
        "REPLACE INTO sessions VALUES (?, ?, ?, ?)", (client, number, answer, MAX_INTEGER if kept == "always" else now)
    )
    if row is None:
        _forget_idle_sessions(session, now=now)
    _forget_too_many(session, answer)


def check_kept(session: SqliteSession, call: ClientCall, *, now: Instant) -> None:
    """See `Transaction.check_kept`."""
    last = last_answer(session, FORGOTTEN)
    since = after(now, -call.age_seconds)
    if call.age_seconds and (now - since > KEPT_MICROSECONDS or (last is not None and last[0] >= since)):
        raise too_old(call)


def _forget_too_many(session: SqliteSession, answer: bytes) -> None:
    """Delete what was kept longest ago of clients' calls, which has a fingerprint, where it is too much."""
    catalog, connection = session.catalog, session.connection
    if catalog.kept_sessions is None:
        ((catalog.kept_sessions, catalog.kept_bytes),) = connection.execute(
            "SELECT count(*), ifnull(sum(length(answer)), 0) FROM sessions"
        ).fetchall()
    else:
        catalog.kept_sessions += 1  # one that was there before counts anew, until they are counted again
        catalog.kept_bytes += len(answer)
    if catalog.kept_sessions <= MAX_KEPT_SESSIONS and catalog.kept_bytes <= MAX_KEPT_BYTES:
        return
    catalog.kept_sessions = None
    oldest = connection.execute(
        "SELECT session, kept_at FROM sessions WHERE kept_at < ? AND substr(answer, 1, 1) = ? ORDER BY kept_at LIMIT ?",
        (MAX_INTEGER, MEANING_SIGN, DELETED_AT_ONCE),
    ).fetchall()
    ((count, size),) = connection.execute("SELECT count(*), ifnull(sum(length(answer)), 0) FROM sessions").fetchall()
    if not oldest or (count <= MAX_KEPT_SESSIONS and size <= MAX_KEPT_BYTES):
        return
    connection.executemany("DELETE FROM sessions WHERE session = ?", [(name,) for name, _ in oldest])
    connection.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?)", (FORGOTTEN, oldest[-1][1], b"", MAX_INTEGER))


def _forget_idle_sessions(session: SqliteSession, *, now: Instant) -> None:
    """Examine the next few sessions, in a cycle over all, and delete those idle for `KEPT_MICROSECONDS`."""
    examined = session.connection.execute(
        "SELECT session, kept_at FROM sessions WHERE session > ? ORDER BY session LIMIT ?",
        (session.catalog.examined_session, EXAMINED_PER_NEW_SESSION),
    ).fetchall()
    session.catalog.examined_session = examined[-1][0] if len(examined) == EXAMINED_PER_NEW_SESSION else ""
    idle = [(row[0],) for row in examined if row[1] < now - KEPT_MICROSECONDS]
    if idle:
        session.connection.executemany("DELETE FROM sessions WHERE session = ?", idle)
