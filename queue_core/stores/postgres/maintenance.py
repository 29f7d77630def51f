"""Trim rows that are kept for a while only, and vacuum the table of tasks.

`Trimmer` trims a bounded number of rows at a time, in the transactions of verbs. Each process counts the rows it adds,
and trims once there are enough; its first count begins at random, so that short-lived processes take part too.

`Vacuum` keeps leases from stepping over dead rows. The server's autovacuum comes once a minute: at 5,000 tasks a second
a lease steps over 1,500 index pages of dead entries by then, which takes 1 ms. So a process that finishes many leases
checks now and then whether a vacuum is due.
"""

import random
from collections.abc import Callable, Mapping
from math import inf
from threading import Lock, Thread

from queue_core.errors import StoreError
from queue_core.log import get_logger
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.session import PostgresSession

TRIM_FAILED = "trim.failed"
"""Old samples or names could not be removed; that is tried again."""
VACUUM_FAILED = "vacuum.failed"
"""Deleted rows could not be removed; that is tried again."""

KEPT_SAMPLES = 10_000
"""The samples (finished leases) that are kept of each queue, at least; more where its history is longer.

A queue whose history has its default length says nothing of it: that length is not more than this."""
SAMPLES_BETWEEN = 2000
"""Finished leases between two trims of a queue's samples, each with a check for dead rows."""
TAGGED_BETWEEN = 1000
"""Tagged tasks that are added between two passes over a queue's tags."""
TAGS_EXAMINED = 2000
"""Tags examined in a pass; more than can have been added since the last one."""
SECONDS_BETWEEN = 2.0
"""The least time between two vacuums, of any process."""
LONGEST_PATIENCE = 8
"""How many times longer the pause becomes while vacuums leave dead rows, as somebody holds a snapshot open."""
DEAD_ROWS = 20_000
DEAD_SHARE = 0.05
"""A vacuum is due with more dead rows than `DEAD_ROWS` and this share of the live ones, as it reads whole indexes."""

_TRIM = Statement(
    "towline_trim",
    "SELECT towline.trim_samples(id, greatest($2, (kept::json->>'history_keep')::int8))"
    " FROM towline.queues WHERE name = $1",
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
"""Use the functions under `pg_stat_user_tables`, which take 0.1 ms; the view takes 0.45 ms."""

log = get_logger()


def is_due(session: PostgresSession, *, seconds: float | None = None) -> bool:
    """Return whether there are enough dead rows and the last vacuum was not a moment ago."""
    since = SECONDS_BETWEEN if seconds is None else seconds
    ((found,),) = session.rows(_VACUUM_DUE, DEAD_ROWS, DEAD_SHARE, since)
    return bool(found)


class Trimmer:
    """Trim samples, tags and commit markers when they are due by this process's count; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._finished: dict[str, int] = {}
        self._tagged: dict[str, int] = {}
        self._examined: dict[str, str] = {}

    def trim_if_due(self, session: PostgresSession) -> None:
        """Trim what is due, as the last statements of a transaction before its commit."""
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
    """Vacuum the table of tasks in a thread that ends when it is done."""

    def __init__(self, pool: ConnectionPool, monotonic: Callable[[], float]) -> None:
        self._pool = pool
        self._table = f"{pool.address.schema}.tasks"
        self._monotonic = monotonic
        self._lock = Lock()
        self._started_at = -inf
        self._patience = 1
        self._is_running = False
        self._is_closed = False

    def start(self) -> None:
        """Start a vacuum in a thread, unless one is running or was started a moment ago."""
        with self._lock:
            now = self._monotonic()
            if self._is_running or self._is_closed or now - self._started_at < SECONDS_BETWEEN * self._patience:
                return
            self._started_at, self._is_running = now, True
        Thread(target=self._run, name="towline-vacuum", daemon=True).start()

    def close(self) -> None:
        """Start no more vacuums; a running one goes on at the server."""
        with self._lock:
            self._is_closed = True

    def _run(self) -> None:
        try:
            self.run_if_due()
        except StoreError as error:  # autovacuum will do it
            log.debug(VACUUM_FAILED, store=self._pool.url, error=str(error))
        except Exception:
            log.exception(VACUUM_FAILED)
        finally:
            self._is_running = False

    def run_if_due(self) -> bool:
        """Vacuum the table if it is due; return whether it was."""
        with self._pool.lend(seconds=inf) as connection:
            session = PostgresSession(connection.runner, ())
            if not is_due(session):
                return False
            # Without the right, or beside another vacuum, the server sends a notice and does nothing.
            connection.driver.execute(
                f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE, INDEX_CLEANUP ON, PARALLEL 0) {self._table}".encode()
            )
            is_in_vain = is_due(session, seconds=-1.0)
            self._patience = min(2 * self._patience, LONGEST_PATIENCE) if is_in_vain else 1
            return True
