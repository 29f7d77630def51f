"""The verbs over workers: when each was first seen, which are retired; and leader election."""

import json
from collections.abc import Sequence

from queue_core.clock import Instant, after
from queue_core.errors import WorkerRetiredError
from queue_core.stores.sqlite.session import MAX_CACHED_WORKERS, SqliteSession
from queue_core.verbs import Busy

RETIRED_KEPT_MICROSECONDS = 30 * 86_400 * 1_000_000
FORGOTTEN_PER_NEW_WORKER = 4
MAX_SEEN_WORKERS = 100_000
"""Workers that are known, about: of more, for each new one others are forgotten that are not retired."""
_HOLDING = (
    "SELECT name FROM queues WHERE moved_to = '' AND EXISTS (SELECT 1 FROM tasks INDEXED BY tasks_leased"
    " WHERE queue = queues.id AND state = 2 AND eta > ? AND worker = ?) ORDER BY id"
)


def has_leased_before(session: SqliteSession, worker: str) -> bool:
    """Return whether a worker has leased before; true for "", which is no worker. Raises `WorkerRetiredError`."""
    cached = session.catalog.workers
    if not worker or worker in cached:
        return True
    row = session.connection.execute("SELECT retired_at FROM workers WHERE worker = ?", (worker,)).fetchone()
    if row is None:
        return False
    if row[0] is not None:
        raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
    if len(cached) >= MAX_CACHED_WORKERS:
        cached.clear()
    cached.add(worker)
    return True


def remember_worker(session: SqliteSession, worker: str, *, now: Instant) -> None:
    """Store the instant of a worker's first lease call, and delete a few workers that were retired long ago."""
    session.has_changes = True
    session.connection.execute("INSERT INTO workers VALUES (?, ?, NULL)", (worker, now))
    session.connection.execute(
        "DELETE FROM workers WHERE worker IN (SELECT worker FROM workers WHERE retired_at < ? LIMIT ?)",
        (now - RETIRED_KEPT_MICROSECONDS, FORGOTTEN_PER_NEW_WORKER),
    )
    _forget_seen(session, now=now)


def _forget_seen(session: SqliteSession, *, now: Instant) -> None:
    """Examine the next few workers, in a cycle over all; forget those first seen long ago, or any where there are too
    many. One that goes on is seen anew."""
    catalog = session.catalog
    if catalog.known_workers is None:
        ((catalog.known_workers,),) = session.connection.execute("SELECT count(*) FROM workers").fetchall()
    else:
        catalog.known_workers += 1
    are_too_many = catalog.known_workers > MAX_SEEN_WORKERS
    examined = session.connection.execute(
        "SELECT worker, seen_at, retired_at FROM workers WHERE worker > ? ORDER BY worker LIMIT ?",
        (catalog.examined_worker, FORGOTTEN_PER_NEW_WORKER),
    ).fetchall()
    catalog.examined_worker = examined[-1][0] if len(examined) == FORGOTTEN_PER_NEW_WORKER else ""
    old = now - RETIRED_KEPT_MICROSECONDS
    forgotten = [
        (worker,)
        for worker, seen_at, retired_at in examined
        if retired_at is None and seen_at != now and (are_too_many or seen_at < old)
    ]
    if forgotten:
        session.connection.executemany("DELETE FROM workers WHERE worker = ?", forgotten)
        catalog.known_workers -= len(forgotten)
        catalog.workers.difference_update(worker for (worker,) in forgotten)


def seen(session: SqliteSession, workers: Sequence[str]) -> dict[str, Instant]:
    """See `Transaction.workers_seen`."""
    found: dict[str, Instant] = {
        row[0]: row[1]
        for row in session.connection.execute(
            "SELECT worker, seen_at FROM workers WHERE seen_at IS NOT NULL"
            " AND worker IN (SELECT value FROM json_each(?))",
            (json.dumps(list(workers)),),
        )
    }
    return {worker: found[worker] for worker in workers if worker in found}


def retire(session: SqliteSession, worker: str, *, busy: Busy, now: Instant) -> bool:
    """See `Transaction.retire_worker`."""
    leased = session.connection.execute(
        "SELECT 1 FROM queues CROSS JOIN tasks INDEXED BY tasks_leased ON tasks.queue = queues.id AND state = 2"
        " AND eta > ? AND worker = ? LIMIT 1",
        (now, worker),
    ).fetchone()
    if leased is None or busy == "finish":
        _retire(session, worker, now=now)
    return leased is None


def fence(session: SqliteSession, worker: str, *, now: Instant) -> list[str]:
    """See `ChangeVerbs.fence_worker`."""
    _retire(session, worker, now=now)
    return [row[0] for row in session.connection.execute(_HOLDING, (now, worker)).fetchall()]


def _retire(session: SqliteSession, worker: str, *, now: Instant) -> None:
    session.has_changes = True
    session.connection.execute(
        "INSERT INTO workers VALUES (?, NULL, ?)"
        " ON CONFLICT DO UPDATE SET retired_at = coalesce(retired_at, excluded.retired_at)",
        (worker, now),
    )
    session.catalog_changed()


def lead(session: SqliteSession, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
    """See `Transaction.lead`."""
    session.has_changes = True
    row = session.connection.execute("SELECT holder, until FROM leads WHERE name = ?", (name,)).fetchone()
    if row is not None and row[0] != holder and row[1] > now:
        return False
    session.connection.execute("REPLACE INTO leads VALUES (?, ?, ?)", (name, holder, after(now, seconds)))
    return True
