"""Determine the outcome of a commit whose answer was lost.

A crashed server reuses the numbers of transactions that were not yet on its disk, so a number alone is ambiguous. An
unlogged row, which a crash empties, therefore names the life of the server since its last crash:
`system.timeline.first.random`, with the first number that was given in it ("" when that is not known). Of several
crashes the first decides: a transaction that reused the number after it may have survived the next.
"""

from typing import Literal

import psycopg
from psycopg import sql

from queue_core.stores.postgres.client.connection import Connection, read_life

Outcome = Literal["committed", "aborted"]
Status = Literal["committed", "aborted", "in progress", "future", ""]

_STATUS = "SELECT pg_xact_status(%s::text::xid8)"
_END_BACKEND = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_xid = %s::text::xid8::xid AND datname = current_database() AND wait_event IS DISTINCT FROM 'SyncRep'
"""


def read_outcome(connection: Connection, schema: str, xid: int, life: str) -> Outcome | Literal["open", "unknown"]:
    """Read the outcome once; `open`: the transaction is still in progress. Raises the driver's errors."""
    now = read_life(connection, schema)
    if life and life != now:
        now = _as_after(connection, schema, life, now)
    return judge(_status(connection, xid), xid, then=life, now=now)


def end_backend(connection: Connection, xid: int) -> None:
    """End the backend of a transaction, which waits for a client that is gone and holds its locks.

    A committed one that waits for a standby is left alone: its end would report a commit that the standby may lack.
    """
    connection.execute(_END_BACKEND, (str(xid),))


def judge(status: Status, xid: int, *, then: str, now: str) -> Outcome | Literal["open", "unknown"]:
    """Judge by a number's status what became of the transaction that had the number in the life `then` ("": unknown).

    Args:
        now: the present life, with the first number that was reused since `then` ended.
    """
    if then and then == now:
        if status == "in progress":
            return "open"
        return status if status in ("committed", "aborted") else "unknown"
    if status in ("aborted", "future"):
        return "aborted"  # a committed transaction's number is never reused
    if not then:
        return "open" if status == "in progress" else "unknown"
    if status == "in progress":
        return "aborted"  # another transaction reuses the number
    system, timeline, first, _ = now.split(".")
    if status == "committed" and first and then.split(".")[:2] == [system, timeline]:
        return "committed" if xid < int(first) else "aborted"
    return "unknown"


def _as_after(connection: Connection, schema: str, then: str, now: str) -> str:
    """Return the present life with the first number that was reused since another life ended."""
    query = sql.SQL("SELECT {}.first_since(%s)").format(sql.Identifier(schema))
    row = connection.execute(query, (then,)).fetchone()
    first = "" if row is None or row[0] is None else str(row[0])
    system, timeline, _, name = now.split(".")
    return f"{system}.{timeline}.{first}.{name}"


def _status(connection: Connection, xid: int) -> Status:
    try:
        row = connection.execute(_STATUS, (str(xid),)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return "future"
    answer = row[0] if row else None
    if answer == "committed" or answer == "aborted" or answer == "in progress":
        return answer
    return ""
