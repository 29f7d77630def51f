"""Given names: who has one, and how long a deleted task's name stays taken."""

import re
from collections.abc import Sequence
from typing import Literal

from queue_core.clock import Instant, after
from queue_core.stores.sqlite.driver import Connection
from queue_core.stores.sqlite.step import QueueRow

PRUNED_PER_ADD = 2
GRACE_SECONDS = 60.0
"""A name is kept so much longer than it is taken, as a clock may be set back a little."""

Refusal = Literal["exists", "tombstoned"]

_CHOSEN = re.compile(r"_([0-9]{1,18})")


def taken(connection: Connection, queue: QueueRow, name: str, *, now: Instant) -> Refusal | None:
    """`exists` or `tombstoned` for a name that can't be added; None: it is free."""
    row = connection.execute("SELECT task, until FROM names WHERE queue = ? AND name = ?", (queue.id, name)).fetchone()
    if row is None:
        return None
    if row[0] is not None:
        return "exists"
    return "tombstoned" if row[1] > now else None


def give(connection: Connection, queue: QueueRow, names: Sequence[tuple[str, int]], *, now: Instant) -> None:
    """Give names to tasks, and forget a few names whose time is over."""
    connection.executemany("REPLACE INTO names VALUES (?, ?, ?, NULL)", [(queue.id, *name) for name in names])
    connection.execute(
        "DELETE FROM names WHERE (queue, name) IN (SELECT queue, name FROM names WHERE until <= ? LIMIT ?)",
        (after(now, -GRACE_SECONDS), PRUNED_PER_ADD * len(names)),
    )


def take_back(connection: Connection, queue: QueueRow, names: Sequence[str], *, at: Instant) -> None:
    """Part names from their deleted tasks; they stay taken for the queue's retention."""
    until = after(at, queue.spec.name_retention_seconds)
    connection.executemany(
        "UPDATE names SET task = NULL, until = ? WHERE queue = ? AND name = ?",
        [(until, queue.id, name) for name in names],
    )


def task_id_of(connection: Connection, queue: QueueRow, name: str) -> int | None:
    """The id that a name stands for: a given name's task, or the digits of a chosen one; the task may be gone."""
    row = connection.execute("SELECT task FROM names WHERE queue = ? AND name = ?", (queue.id, name)).fetchone()
    if row is not None:
        return None if row[0] is None else int(row[0])
    chosen = _CHOSEN.fullmatch(name)
    return int(chosen[1]) if chosen else None
