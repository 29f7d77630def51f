"""Answers to clients' calls as rows: those of one transaction together, in one row at the end of the table.

A row is read only when a call is repeated, so it is found by a search from the newest on, and costs no index.
"""

import re
from collections.abc import Iterator, Mapping

from queue_core.clock import Instant
from queue_core.stores.sqlite.driver import Connection, Cursor

KEPT_ROWS = 100_000
"""Transactions whose answers are kept: ten seconds' worth under full load. A repeat from before is told so."""
TRIM_EVERY = 512

_INSERT = "INSERT INTO answers (kept_at, kept) VALUES (?, ?)"
_TRIM = "DELETE FROM answers WHERE id <= (SELECT max(id) FROM answers) - ?"
_OLDEST = "SELECT id, kept_at FROM answers ORDER BY id LIMIT 1"
_AFTER = "SELECT id, kept FROM answers WHERE id > ? ORDER BY id"
_FIND = "SELECT kept FROM answers WHERE instr(kept, ?) ORDER BY id DESC LIMIT 1"


_CALL = re.compile(r"\n([^/\n]+)/([0-9]+)/")


def write_answers(cursor: Cursor, answers: Mapping[str, str], *, now: Instant) -> None:
    """Write the answers of one transaction, by session."""
    cursor.execute(_INSERT, (now, "\n".join(["", *answers.values(), ""])))


def answers_after(cursor: Cursor, row_id: int) -> Iterator[tuple[int, str, int]]:
    """Yield row, session and number of each call whose answer was kept after row `row_id`, in order."""
    for found_id, kept in cursor.execute(_AFTER, (row_id,)).fetchall():
        for session, number in _CALL.findall(kept):
            yield found_id, session, int(number)


def trim_answers(cursor: Cursor) -> None:
    """Forget the answers beyond the number kept."""
    cursor.execute(_TRIM, (KEPT_ROWS,))


def line_of(session: str, number: int, answer: str) -> str:
    """One answer as it is kept; `answer` is JSON, and so one line."""
    return f"{session}/{number}/{answer}"


def is_forgotten(connection: Connection, *, since: Instant) -> bool:
    """Whether an answer that was kept at `since` or later may be among those that were forgotten."""
    row = connection.execute(_OLDEST).fetchone()
    return row is not None and row[0] > 1 and row[1] > since


def find_answer(connection: Connection, session: str) -> tuple[int, str] | None:
    """Return the number of a session's last call that is kept, and its answer; None: there is none."""
    row = connection.execute(_FIND, (f"\n{session}/",)).fetchone()
    return None if row is None else parse_line(str(row[0]), session)


def parse_line(kept: str, session: str) -> tuple[int, str]:
    """Return the number and the answer of a session's call in a row that has one."""
    _, _, rest = kept.partition(f"\n{session}/")
    number, _, answer = rest.partition("\n")[0].partition("/")
    return int(number), answer
