"""Raise the floors at which leases begin their search, while dead rows can't be removed (ADR 35).

A thread runs while there are calls and many dead rows, and ends with them. It works in transactions of its own, so a
call never waits for it. What a floor is, and why no task is lost below one, is told in `schema/floors.sql`.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from threading import Event, Lock, Thread

from queue_core.clock import Instant
from queue_core.errors import StoreError
from queue_core.log import get_logger
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Row, Statement, StatementRunner

FLOOR_MISSED = "floor.missed"
"""A task lay below the floor of its queue, and was found by a full search."""
FLOORS_FAILED = "floors.failed"
"""Floors could not be raised; that is tried again."""

DEAD_ROWS = 10_000
"""Dead tasks from which on floors are raised: leases step over those that are behind their head."""
FEW_DEAD_ROWS = 5_000
"""Dead tasks below which searches begin at the bottom again."""
LOOK_SECONDS = 1.0
"""Between two looks for dead rows."""
RAISE_SECONDS = 0.1
"""Between two raises of a queue's floors, at least."""
WORK = 300
"""Calls and leased tasks of this process after which another raise is worthwhile before `LOOK_SECONDS` are over."""
MARGIN_SECONDS = 0.1
"""How far floors stay behind the clock, so that tasks which are added or settled in time are above them."""
SEARCH_SECONDS = 50.0
"""Between two looks from the bottom; with `RAISE_SECONDS`, a task below a floor is hidden for a minute at most."""
GRACE_SECONDS = 2.0
"""How long a raise waits for the transactions that hold the queue; then it is tried again."""
POLL_SECONDS = 0.003
EPOCH_TRANSACTIONS = 300
"""Transactions of the database in an epoch of the counters: versions that a row of counters has at most."""
REWRITE_SECONDS = 5.0
"""Between two looks for small tables to be written anew."""
REWRITE_DEAD_ROWS = 2_000
REWRITE_LIVE_ROWS = 10_000
"""A table is written anew with as many dead rows, and no more live ones: others wait meanwhile."""
MAX_TAGS = 200
"""The most tags of a queue that get floors of their own."""

_DEAD = Statement("towline_dead", "SELECT pg_stat_get_dead_tuples('towline.tasks'::regclass)")
_QUEUE = Statement(
    "towline_floored",
    "SELECT q.id, towline.is_floored(q.id),"
    " ARRAY(SELECT t.tag FROM towline.tag_floors AS t WHERE t.queue = q.id AND t.kind = 2 AND t.generation ="
    " (SELECT s.effective FROM towline.floors AS s WHERE s.queue = q.id ORDER BY s.step DESC LIMIT 1) LIMIT $2)"
    " FROM towline.queues AS q WHERE q.name = $1",
    (pack.text, pack.int8),
)
_PROPOSE = Statement(
    "towline_propose_floors", "SELECT towline.propose_floors($1, $2, $3)", (pack.int4, pack.int8, pack.int8)
)
_HOLDERS = Statement("towline_queue_holders", "SELECT towline.queue_holders($1)", (pack.text,))
_RAISE = Statement(
    "towline_raise_floors",
    "SELECT towline.raise_floors($1, $2, $3, $4, $5)",
    (pack.int4, pack.int8, pack.texts, pack.int8, pack.float8),
)
_REWRITE = Statement("towline_rewrite", "SELECT towline.rewrite_small_tables($1, $2)", (pack.int8, pack.int8))
_END = Statement("towline_end_floors", "SELECT towline.end_floors($1)", (pack.int4,))

log = get_logger()


def raise_floors(
    runner: StatementRunner,
    queue: str,
    tags: Iterable[str | None],
    *,
    ceiling: Instant,
    now: Instant,
    pause: Callable[[float], object],
    monotonic: Callable[[], float],
    search_seconds: float = SEARCH_SECONDS,
) -> bool:
    """Raise a queue's floors, but not above the ceiling; return False when transactions still held it back.

    Each statement is a transaction of its own: a proposal must be committed before anybody's lock is looked at.
    """
    found = runner.call(_QUEUE, (queue, MAX_TAGS))
    if not found:
        return True
    queue_id, _, known = found[0]
    hot = list(dict.fromkeys([*tags, None, *known]))[:MAX_TAGS]
    ((generation,),) = runner.call(_PROPOSE, (queue_id, ceiling, EPOCH_TRANSACTIONS))
    if generation is None or not _outlived(runner, queue, pause, monotonic):
        return generation is None
    ((is_missed,),) = runner.call(_RAISE, (queue_id, generation, hot, now, search_seconds))
    if is_missed:
        log.error(FLOOR_MISSED, queue=queue)
    return True


def _outlived(
    runner: StatementRunner, queue: str, pause: Callable[[float], object], monotonic: Callable[[], float]
) -> bool:
    """Wait until all have ended that hold the queue now; return False when some have not in `GRACE_SECONDS`.

    A holder that is prepared meanwhile goes on under another name: '' stands for all of those.
    """
    holders = _holders(runner.call(_HOLDERS, (queue,)))
    until = monotonic() + GRACE_SECONDS
    while holders:
        if monotonic() > until:
            return False
        pause(POLL_SECONDS)
        present = _holders(runner.call(_HOLDERS, (queue,)))
        holders = (holders & present) | (present & {""})
    return True


def _holders(rows: list[Row]) -> set[str]:
    return set(rows[0][0])


class FloorRaiser:
    """Raises the floors of the queues that this process uses, in a thread that ends when it is idle."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._monotonic = pool.clock.monotonic
        self._lock = Lock()
        self._used: dict[str, set[str]] = {}
        self._work = 0
        self._raised_at = -inf
        self._rewritten_at = -inf
        self._next_at = 0.0
        self._is_running = False
        self._closing = Event()

    def note(self, used: Mapping[str, set[str]], work: int) -> None:
        """Note queues that were used, the tags by which, and how much; start the thread when a look is due."""
        with self._lock:
            self._work += work
            for queue, tags in used.items():
                known = self._used.setdefault(queue, set())
                if len(known) < MAX_TAGS:
                    known |= tags
            if self._is_running or self._closing.is_set() or self._monotonic() < self._next_at:
                return
            self._is_running = True
        Thread(target=self._run, name="towline-floors", daemon=True).start()

    def close(self) -> None:
        """Start no more looks."""
        self._closing.set()

    def _run(self) -> None:
        try:
            while self.raise_if_due():
                while not self._closing.wait(RAISE_SECONDS) and not self._is_worthwhile():
                    pass
                if self._closing.is_set():
                    return
        except StoreError as error:  # the next call begins again
            log.debug(FLOORS_FAILED, store=self._pool.url, error=str(error))
        except Exception:
            log.exception(FLOORS_FAILED)
        finally:
            with self._lock:
                self._next_at = self._monotonic() + LOOK_SECONDS
                self._is_running = False

    def _is_worthwhile(self) -> bool:
        with self._lock:
            return self._work >= WORK or self._monotonic() >= self._raised_at + LOOK_SECONDS

    def raise_if_due(self) -> bool:
        """Raise or end the floors of the queues that were used since the last time; return whether any has some."""
        with self._lock:
            used, self._used = self._used, {}
            self._work, self._raised_at = 0, self._monotonic()
        if not used:
            return False
        is_any = False
        with self._pool.lend(seconds=60.0) as connection:
            runner = connection.runner
            ((dead,),) = runner.call(_DEAD, ())
            for queue, tags in used.items():
                for queue_id, is_floored, _ in runner.call(_QUEUE, (queue, 0)):
                    if dead < FEW_DEAD_ROWS:
                        runner.call(_END, (queue_id,))
                    elif is_floored or dead >= DEAD_ROWS:
                        is_any = True
                        now = self._pool.clock.now()
                        raise_floors(
                            runner,
                            queue,
                            tags,
                            ceiling=Instant(now - round(MARGIN_SECONDS * 1e6)),
                            now=now,
                            pause=self._closing.wait,
                            monotonic=self._monotonic,
                        )
            if is_any and self._monotonic() >= self._rewritten_at + REWRITE_SECONDS:
                self._rewritten_at = self._monotonic()
                runner.call(_REWRITE, (REWRITE_DEAD_ROWS, REWRITE_LIVE_ROWS))
        return is_any
