"""Clears away what leased and deleted tasks leave in the table, before leases have to step over it.

The server's own autovacuum comes by once a minute. At 5,000 tasks a second a lease steps over 1,500 index pages of dead
entries by then, which costs it 1 ms; here whoever works much looks every few thousand tasks whether it is time.
"""

from collections.abc import Callable
from math import inf
from threading import Condition, Thread

import structlog

from queue_core.errors import StoreError
from queue_core.stores.postgres import events
from queue_core.stores.postgres.link import Link

TASKS_BETWEEN_LOOKS = 5_000
SECONDS_BETWEEN_LOOKS = 2.0
DEAD_ROWS = 20_000
DEAD_SHARE = 0.05
"""Cleared are this many dead rows, and this share of the live: a pass reads the whole of the indexes."""

_LOOK = "SELECT n_dead_tup > %s + %s * n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass(%s)"

log = structlog.get_logger()


class Upkeep:
    """One thread, while there is something to do."""

    def __init__(self, link: Link, monotonic: Callable[[], float]) -> None:
        self._link = link
        self._monotonic = monotonic
        self._table = f"{link.address.schema}.tasks"
        self._changed = Condition()
        self._tasks = 0
        self._looked_at = -inf
        self._is_running = False
        self._is_closed = False

    def note(self, tasks: int) -> None:
        """So many tasks were leased or deleted by this process."""
        self._tasks += tasks
        if self._tasks < TASKS_BETWEEN_LOOKS:
            return
        with self._changed:
            now = self._monotonic()
            if self._is_running or self._is_closed or now - self._looked_at < SECONDS_BETWEEN_LOOKS:
                return
            self._tasks, self._looked_at, self._is_running = 0, now, True
        Thread(target=self._look, name="towline-upkeep", daemon=True).start()

    def close(self) -> None:
        """Begin no more; what is under way goes on at the server."""
        with self._changed:
            self._is_closed = True

    def _look(self) -> None:
        try:
            self.clear_if_due()
        except StoreError as error:  # autovacuum still comes
            log.debug(events.UPKEEP_FAILED, store=self._link.url, error=str(error))
        except Exception:
            log.exception(events.UPKEEP_FAILED)
        finally:
            self._is_running = False

    def clear_if_due(self, *, dead_rows: int = DEAD_ROWS) -> bool:
        """Clear the table if enough is dead; whether it was."""
        with self._link.lend(seconds=inf) as wire:
            row = wire.connection.execute(_LOOK, (dead_rows, DEAD_SHARE, self._table)).fetchone()
            if row is None or not row[0]:
                return False
            # Whoever may not, or comes while another clears, is told so in a notice and does nothing.
            wire.connection.execute(
                f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE, INDEX_CLEANUP ON, PARALLEL 0) {self._table}".encode()
            )
            return True
