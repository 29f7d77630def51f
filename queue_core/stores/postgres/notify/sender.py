"""Tells the store, after the fact and in few calls, what became leasable and who waits again.

One thread. What comes while a call is under way goes with the next; a store that is away is told when it is back.
"""

import atexit
from dataclasses import dataclass, field
from threading import Condition, Thread

import structlog

from queue_core.errors import StoreError, StoreUnavailableError
from queue_core.stores.postgres import events
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.notify.waiters import PostgresSubscription, rows

PACE_SECONDS = 0.005
"""After a call that woke nobody: bounds what a busy queue without waiters costs."""
RETRY_SECONDS = 0.2
FLUSH_SECONDS = 2.0
"""How long `close` waits for what is still to be told."""
MAX_WAKES_PER_CALL = 1000
MAX_TASKS = 2**31 - 1

_SIGNAL = Statement(
    "towline_signal",
    "SELECT towline.signal($1, $2, $3, $4, $5, $6, $7)",
    (pack.int8, pack.int8s, pack.text, pack.texts, pack.texts, pack.int4s, pack.boolean),
)

log = structlog.get_logger()


@dataclass(slots=True)
class _News:
    """What is to be told. A waiter that is closed is never in `ready`."""

    tasks: dict[tuple[str, str | None], int] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    ready: dict[int, PostgresSubscription] = field(default_factory=dict)
    passing: bool = False

    def __bool__(self) -> bool:
        return bool(self.tasks or self.closed or self.ready or self.passing)


class Sender:
    """See `Telling`."""

    def __init__(self, link: ConnectionPool) -> None:
        self.listening = 0
        """The number of this process's listener; 0 while it has none."""
        self._link = link
        self._changed = Condition()
        self._news = _News()
        self._thread: Thread | None = None
        self._is_idle = False
        self._is_closed = False

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """See `Telling`."""
        with self._changed:
            tasks = self._news.tasks
            key = (queue, tag)
            tasks[key] = tasks.get(key, 0) + count
            self._tell_locked()

    def ready(self, ear: PostgresSubscription) -> None:
        """See `Telling`."""
        with self._changed:
            self._news.ready[ear.number] = ear
            self._tell_locked()

    def unhear(self, number: int) -> None:
        """See `Telling`."""
        with self._changed:
            self._news.ready.pop(number, None)
            self._news.closed.append(number)
            self._tell_locked()

    def pass_on(self) -> None:
        """Let the store pass on wake-ups that were not taken up."""
        with self._changed:
            self._news.passing = True
            self._tell_locked()

    def leave_to_parent(self) -> None:
        """In the child of a fork: the thread that has still to tell of something is the parent's."""
        atexit.unregister(self.close)

    def close(self) -> None:
        """Tell what is left, if the store can be reached, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(FLUSH_SECONDS)
            atexit.unregister(self.close)

    def _tell_locked(self) -> None:
        if self._is_idle:
            self._changed.notify()
        elif self._thread is None and not self._is_closed:
            self._thread = Thread(target=self._work, name="towline-sender", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a program that adds and ends has still to tell of it

    def _work(self) -> None:
        while (news := self._next()) is not None:
            pause_seconds = RETRY_SECONDS
            try:
                if self._send(news):
                    continue
                pause_seconds = PACE_SECONDS
            except StoreUnavailableError:
                self._put_back(news)
                if self._is_closed:
                    return
            except StoreError as error:  # a hint that can't be told: waiters look for themselves before long
                log.warning(events.SIGNALS_DROPPED, store=self._link.url, error=str(error))
            except Exception:
                log.exception(events.SIGNALS_DROPPED)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, timeout=pause_seconds)

    def _next(self) -> _News | None:
        with self._changed:
            self._is_idle = True
            self._changed.wait_for(lambda: self._news or self._is_closed)
            self._is_idle = False
            news, self._news = self._news, _News()
            if len(news.tasks) > MAX_WAKES_PER_CALL:
                later = list(news.tasks)[MAX_WAKES_PER_CALL:]
                self._news.tasks = {key: news.tasks.pop(key) for key in later}
            return news or None

    def _send(self, news: _News) -> int:
        listening = self.listening
        tasks = sorted(news.tasks.items(), key=lambda item: item[0][0])
        ready = rows(news.ready.values()) if news.ready and listening else None
        queues = [queue for (queue, _), _ in tasks]
        tags = [tag for (_, tag), _ in tasks]
        counts = [min(count, MAX_TASKS) for _, count in tasks]
        with self._link.lend() as wire:
            ((woken,),) = wire.caller.call(_SIGNAL, (listening, news.closed, ready, queues, tags, counts, news.passing))
        return int(woken)

    def _put_back(self, news: _News) -> None:
        with self._changed:
            now = self._news
            for key, tasks in news.tasks.items():
                now.tasks[key] = now.tasks.get(key, 0) + tasks
            closed = set(now.closed)
            now.ready = {**{number: ear for number, ear in news.ready.items() if number not in closed}, **now.ready}
            now.closed = [*news.closed, *now.closed]
            now.passing = now.passing or news.passing
