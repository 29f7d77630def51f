"""Forgets what is kept for a while only, and clears away what leased and deleted tasks leave in their table.

Forgetting (`MaintenanceDue`) is done now and then, a bounded amount at a time, in the transactions of others. Each
process counts what it adds to what is kept, and is due once that is enough; the first time comes at random, so that
processes
which live for a few tasks take their part too.

Clearing (`Maintenance`) is done before leases have to step over dead rows. The server's own autovacuum comes by once a
minute: at 5,000 tasks a second a lease steps over 1,500 index pages of dead entries by then, which costs it 1 ms. So
a process that finishes many leases looks now and then whether it is time.
"""

import random
from collections.abc import Callable, Mapping
from math import inf
from threading import Lock, Thread

import structlog

from queue_core.errors import StoreError
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.session import PostgresSession

TRIM_FAILED = "trim.failed"
VACUUM_FAILED = "vacuum.failed"

KEPT_SAMPLES = 10_000
SAMPLES_BETWEEN = 2000
"""Leases that finish between two cuts; whoever cuts looks for dead rows too."""
TAGGED_BETWEEN = 1000
TAGS_EXAMINED = 2000
"""More than tags can have come since the last time."""
SECONDS_BETWEEN = 2.0
"""From the end of one pass, whoever made it, to the beginning of the next."""
DEAD_ROWS = 20_000
DEAD_SHARE = 0.05
"""Cleared are this many dead rows, and this share of the live: a pass reads the whole of the indexes."""

_TRIM = Statement(
    "towline_trim",
    "SELECT towline.trim_samples(id, $2) FROM towline.queues WHERE name = $1",
    (pack.text, pack.int8),
)
_FORGET = Statement(
    "towline_forget_tags",
    "SELECT towline.forget_tags(id, $2, $3, $4) FROM towline.queues WHERE name = $1",
    (pack.text, pack.int8, pack.text, pack.int4),
)
_FORGET_MARKERS = Statement("towline_forget_commit_markers", "SELECT towline.forget_commit_markers()")
_VACUUM_DUE = Statement(
    "towline_look",
    "SELECT pg_stat_get_dead_tuples(t.id) > $1::int8 + $2::float8 * pg_stat_get_live_tuples(t.id)"
    " AND coalesce(clock_timestamp() - pg_stat_get_last_vacuum_time(t.id) > $3::float8 * interval '1 second', true)"
    " FROM (SELECT 'towline.tasks'::regclass::oid) AS t (id)",
    (pack.int8, pack.float8, pack.float8),
)
"""By the functions under `pg_stat_user_tables`: 0.1 ms, where the view takes 0.45 ms."""

log = structlog.get_logger()


def is_due(session: PostgresSession) -> bool:
    """Whether enough is dead, and nobody cleared it a moment ago."""
    ((found,),) = session.rows(_VACUUM_DUE, DEAD_ROWS, DEAD_SHARE, SECONDS_BETWEEN)
    return bool(found)


class Trimmer:
    """Forgets what is due, as one process counts it; for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._finished: dict[str, int] = {}
        self._tagged: dict[str, int] = {}
        self._examined: dict[str, str] = {}

    def trim_if_due(self, session: PostgresSession) -> None:
        """Forget what is due, as the last act of a transaction before its commit."""
        finished = self._due(self._finished, session.finished, SAMPLES_BETWEEN)
        for queue in finished:
            session.rows(_TRIM, queue, KEPT_SAMPLES)
        if finished:
            session.rows(_FORGET_MARKERS)
            session.needs_vacuum = is_due(session)
        for queue in self._due(self._tagged, session.tagged, TAGGED_BETWEEN):
            rows = session.rows(_FORGET, queue, session.now, self._examined.get(queue, ""), TAGS_EXAMINED)
            if rows:
                self._examined[queue] = rows[0][0]

    def _due(self, totals: dict[str, int], added: Mapping[str, int], between: int) -> list[str]:
        if not added:
            return []
        due = []
        with self._lock:
            for queue, number in added.items():
                total = totals.get(queue, random.randrange(between)) + number  # noqa: S311
                if total >= between:
                    due.append(queue)
                totals[queue] = total % between
        return due


class Vacuum:
    """One thread, while there is something to do."""

    def __init__(self, pool: ConnectionPool, monotonic: Callable[[], float]) -> None:
        self._pool = pool
        self._table = f"{pool.address.schema}.tasks"
        self._monotonic = monotonic
        self._lock = Lock()
        self._began_at = -inf
        self._is_running = False
        self._is_closed = False

    def begin(self) -> None:
        """Clear the table in a thread, unless that is being done, or was a moment ago."""
        with self._lock:
            now = self._monotonic()
            if self._is_running or self._is_closed or now - self._began_at < SECONDS_BETWEEN:
                return
            self._began_at, self._is_running = now, True
        Thread(target=self._clear, name="towline-upkeep", daemon=True).start()

    def close(self) -> None:
        """Begin no more; what is under way goes on at the server."""
        with self._lock:
            self._is_closed = True

    def _clear(self) -> None:
        try:
            self.clear_if_due()
        except StoreError as error:  # autovacuum still comes
            log.debug(VACUUM_FAILED, store=self._pool.url, error=str(error))
        except Exception:
            log.exception(VACUUM_FAILED)
        finally:
            self._is_running = False

    def clear_if_due(self) -> bool:
        """Clear the table if enough is dead; whether it was."""
        with self._pool.lend(seconds=inf) as connection:
            if not is_due(PostgresSession(connection.runner, ())):
                return False
            # Whoever may not, or comes while another clears, is told so in a notice and does nothing.
            connection.driver.execute(
                f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE, INDEX_CLEANUP ON, PARALLEL 0) {self._table}".encode()
            )
            return True
