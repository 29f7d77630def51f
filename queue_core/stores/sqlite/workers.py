"""Workers as the store knows them: first seen, retired; and who leads."""

import json
from collections.abc import Sequence

from queue_core import semantics
from queue_core.clock import Instant, after
from queue_core.errors import WorkerRetiredError
from queue_core.stats import FinishedLease
from queue_core.store import Busy
from queue_core.stores.sqlite.rows import COLUMNS, end, settle, task_of
from queue_core.stores.sqlite.session import MAX_KNOWN_WORKERS, SqliteSession

RETIRED_KEPT_MICROSECONDS = 30 * 86_400 * 1_000_000
FORGOTTEN_PER_NEW_WORKER = 4

_HELD = (
    f"SELECT {COLUMNS} FROM tasks INDEXED BY tasks_leased WHERE queue = ? AND state = 2 AND eta > ?"  # noqa: S608
    " AND worker = ? ORDER BY id"
)


def is_known(step: SqliteSession, worker: str) -> bool:
    """Whether a worker has asked for a lease before ("" is nobody: known). Raises `WorkerRetiredError`."""
    known = step.known.workers
    if not worker or worker in known:
        return True
    row = step.connection.execute("SELECT retired_at FROM workers WHERE worker = ?", (worker,)).fetchone()
    if row is None:
        return False
    if row[0] is not None:
        raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
    if len(known) >= MAX_KNOWN_WORKERS:
        known.clear()
    known.add(worker)
    return True


def remember(step: SqliteSession, worker: str, *, now: Instant) -> None:
    """Keep the instant a worker first asked for a lease, and forget a few that were retired long ago."""
    step.told = True
    step.connection.execute("INSERT INTO workers VALUES (?, ?, NULL)", (worker, now))
    step.connection.execute(
        "DELETE FROM workers WHERE worker IN (SELECT worker FROM workers WHERE retired_at < ? LIMIT ?)",
        (now - RETIRED_KEPT_MICROSECONDS, FORGOTTEN_PER_NEW_WORKER),
    )


def seen(step: SqliteSession, workers: Sequence[str]) -> dict[str, Instant]:
    """See `Transaction.workers_seen`."""
    found: dict[str, Instant] = {
        row[0]: row[1]
        for row in step.connection.execute(
            "SELECT worker, seen_at FROM workers WHERE seen_at IS NOT NULL"
            " AND worker IN (SELECT value FROM json_each(?))",
            (json.dumps(list(workers)),),
        )
    }
    return {worker: found[worker] for worker in workers if worker in found}


def retire(step: SqliteSession, worker: str, *, busy: Busy, now: Instant) -> bool:
    """See `Transaction.retire_worker`."""
    held = step.connection.execute(
        "SELECT 1 FROM queues CROSS JOIN tasks INDEXED BY tasks_leased ON tasks.queue = queues.id AND state = 2"
        " AND eta > ? AND worker = ? LIMIT 1",
        (now, worker),
    ).fetchone()
    if held is None or busy == "finish":
        _fence(step, worker, now=now)
    return held is None


def release(step: SqliteSession, worker: str, *, now: Instant) -> list[FinishedLease]:
    """See `Transaction.release_worker`."""
    _fence(step, worker, now=now)
    released: list[FinishedLease] = []
    for (name,) in step.connection.execute("SELECT name FROM queues WHERE moved_to = '' ORDER BY id").fetchall():
        queue = step.queue(name)
        settle(step, queue, now=now)
        for row in step.connection.execute(_HELD, (queue.id, now, worker)).fetchall():
            ending = semantics.release(task_of(step, queue, row), queue.spec, delay_seconds=None, now=now)
            released.append(end(step, queue, row, ending))
    return released


def _fence(step: SqliteSession, worker: str, *, now: Instant) -> None:
    step.told = True
    step.connection.execute(
        "INSERT INTO workers VALUES (?, NULL, ?)"
        " ON CONFLICT DO UPDATE SET retired_at = coalesce(retired_at, excluded.retired_at)",
        (worker, now),
    )
    step.catalog_changed()


def lead(step: SqliteSession, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
    """See `Transaction.lead`."""
    step.told = True
    row = step.connection.execute("SELECT holder, until FROM leads WHERE name = ?", (name,)).fetchone()
    if row is not None and row[0] != holder and row[1] > now:
        return False
    step.connection.execute("REPLACE INTO leads VALUES (?, ?, ?)", (name, holder, after(now, seconds)))
    return True
