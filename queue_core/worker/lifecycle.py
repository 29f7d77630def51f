"""Shift: what all threads of one worker share: whether it is ending and why, what it has done, what it can reach."""

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Final, Literal

from structlog.typing import FilteringBoundLogger

from queue_core.clock import Clock
from queue_core.worker import events
from queue_core.worker.forks import Forks
from queue_core.worker.settings import WorkerSettings, recycle_reason

EXIT_OK: Final = 0
EXIT_INTERNAL: Final = 70
EXIT_UNREACHABLE: Final = 75
EXIT_CHANGED: Final = 77
"""A handler changed the user or group that the process runs as."""
EXIT_MISCONFIGURED: Final = 78

FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class LifecycleEnd:
    """Why a worker ends, how it logs it, and with which exit code.

    `urgency`: what is held may be finished, however long that takes (`finish`), or within the grace (`drain`), or is
    given back at once (`release`).
    """

    event: str
    reason: str
    code: int = EXIT_OK
    urgency: Literal["finish", "drain", "release"] = "drain"


class WorkerLifecycle:
    """One worker's time of service. Every method may be called from any thread; `ask` also from a signal handler."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        queue: str,
        clock: Clock,
        log: FilteringBoundLogger,
        on_last_lease: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.queue = queue
        self.clock = clock
        self.log = log
        self.forks = Forks(log)
        self.started_at = clock.monotonic()
        self.ending = Event()
        """Set: lease no more, finish what runs."""
        self.over = Event()
        """Set: even what is unfinished is let go."""
        self._inbox: SimpleQueue[LifecycleEnd | None] = SimpleQueue()
        self._lock = Lock()
        self._tasks_done = 0
        self._reserved = 0
        self._leased = 0
        self._on_last_lease = on_last_lease
        self._unreached_since: float | None = None
        self._user = _user()

    # -- ending ---------------------------------------------------------------------------------------------------

    def end(self, ending: LifecycleEnd) -> None:
        """Lease no more from now on, and have the worker drained."""
        self._inbox.put(ending)
        self.ending.set()

    def request_end(self, ending: LifecycleEnd) -> None:
        """The same from a signal handler, which must not wait for a lock: the main thread ends the lifecycle."""
        self._inbox.put(ending)

    def fail(self, *, thread: str) -> None:
        """End the shift because of the exception that is being handled, an error of our own.

        Told as text: a log that renders exceptions itself may show local variables, and payloads and tokens in them.
        """
        self.log.error(events.WORKER_FAILED, thread=thread, traceback=traceback.format_exc())
        self.end(LifecycleEnd(events.WORKER_FAILED, f"an internal error in its {thread}", EXIT_INTERNAL))

    def wake(self) -> None:
        """Have the main thread look again: something finished."""
        self._inbox.put(None)

    def next_end_request(self, *, timeout_seconds: float) -> LifecycleEnd | None:
        """What was asked next; None after a nudge, or when the time is up."""
        try:
            return self._inbox.get(timeout=max(0.0, timeout_seconds))
        except Empty:
            return None

    def check_user(self) -> None:
        """End the shift when the user or group of the process is another than at its start: its files, its store and
        its supervisor may be out of reach by now."""
        user = _user()
        if user == self._user:
            return
        before, self._user = self._user, user
        reason = (
            f"a handler changed the user and group that the worker runs as from {before[0][1]}:{before[1][1]} to "
            f"{user[0][1]}:{user[1][1]}; do that in a process of its own, or start the worker as that user"
        )
        self.end(LifecycleEnd(events.WORKER_CHANGED, reason, EXIT_CHANGED))

    # -- recycling ------------------------------------------------------------------------------------------------

    @property
    def tasks_done(self) -> int:
        """Tasks whose handler came to an end, whichever."""
        return self._tasks_done

    def reserve(self, count: int) -> int:
        """Before a lease: how many of `count` tasks it may ask for, so that the worker leases no more than its bound in
        all; 0 while others have reserved the rest. To be followed by `leased`."""
        bound = self.settings.recycle.tasks
        if bound is None:
            return count
        with self._lock:
            granted = min(count, bound - self._reserved)
            self._reserved += granted
        return granted

    def record_leased(self, count: int, *, reserved: int) -> None:
        """Of the tasks that were reserved so many were leased; the others may be reserved again."""
        bound = self.settings.recycle.tasks
        if bound is None:
            return
        with self._lock:
            self._reserved -= reserved - count
            self._leased += count
            is_last = count > 0 and self._leased == bound
        if is_last:
            self._on_last_lease()

    def record_done(self, count: int) -> None:
        """Note finished tasks; ends the shift when they are as many as it may do."""
        with self._lock:
            before = self._tasks_done
            self._tasks_done += count
        bound = self.settings.recycle.tasks
        if bound is not None and before < bound <= before + count:
            self.recycle(memory_bytes=0)

    def recycle(self, *, memory_bytes: int) -> None:
        """End the shift when one of its bounds is reached."""
        age_seconds = self.clock.monotonic() - self.started_at
        reason = recycle_reason(
            self.settings.recycle, tasks=self._tasks_done, memory_bytes=memory_bytes, age_seconds=age_seconds
        )
        if reason is not None:
            self.end(LifecycleEnd(events.WORKER_RECYCLED, reason, urgency="finish"))

    # -- reach ----------------------------------------------------------------------------------------------------

    def queue_reached(self) -> None:
        """The queue answered."""
        if self._unreached_since is None:
            return
        with self._lock:
            since, self._unreached_since = self._unreached_since, None
        if since is not None:
            self.log.info(events.QUEUE_REACHED, seconds=round(self.clock.monotonic() - since, 3))

    def queue_unreached(self, error: Exception) -> None:
        """The queue did not answer."""
        with self._lock:
            first = self._unreached_since is None
            if first:
                self._unreached_since = self.clock.monotonic()
        if first:
            self.log.warning(events.QUEUE_UNREACHED, error=str(error))

    def unreached_seconds(self) -> float:
        """For how long no thread has had an answer."""
        since = self._unreached_since
        return 0.0 if since is None else self.clock.monotonic() - since


def _user() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Users and groups of this process: real, effective, saved."""
    return os.getresuid(), os.getresgid()


def retry_seconds(attempt: int, *, jitter: float) -> float:
    """How long to wait before the `attempt`-th repeat, from 1: doubling up to 2 s, of which `jitter` in [0, 1) takes
    off up to a half, so that workers which lost a server together do not come back together."""
    longest = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(attempt - 1, 10))
    return longest * (1.0 - 0.5 * jitter)
