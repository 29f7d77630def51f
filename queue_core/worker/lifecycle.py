"""WorkerLifecycle: state shared by all threads of a worker: why it ends, tasks done, whether the queue is reachable."""

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Final, Literal

from structlog.typing import FilteringBoundLogger

from queue_core.attempts.error_text import without_traceback
from queue_core.attempts.redaction import redacted_traceback
from queue_core.clock import Clock
from queue_core.worker import events
from queue_core.worker.settings import WorkerSettings, recycle_reason
from queue_core.worker.spare_address_space import SpareAddressSpace

EXIT_OK: Final = 0
EXIT_CHILD_FAILED: Final = 1
EXIT_INTERNAL: Final = 70
EXIT_UNREACHABLE: Final = 75
EXIT_USER_CHANGED: Final = 77
"""Exit code after a handler changed the user or group of the process."""
EXIT_MISCONFIGURED: Final = 78
EXIT_TIMED_OUT: Final = 79
"""Exit code after a handler ran beyond its timeout and could not be ended: another worker takes its place."""
EXIT_HUNG: Final = 80
"""Exit code after a handler ran on without its lease, or blocked the event loop of the others."""
EXIT_LOOP_ENDED: Final = 81
"""Exit code after a handler ended the event loop of async handlers."""

FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 2.0
"""Longest pause between two tries to reach the queue: workers are back that soon after it is."""


@dataclass(frozen=True, slots=True)
class LifecycleEnd:
    """The end of a worker: the event and reason to log, and the exit code.

    `urgency`: running handlers may finish, however long that takes (`finish`), or within the grace (`drain`), or
    their leases are released at once (`release`).
    """

    event: str
    reason: str
    code: int = EXIT_OK
    urgency: Literal["finish", "drain", "release"] = "drain"


_STDERR: Final = 2
_NO_MEMORY: Final = b"towline: a worker has no memory left to end in order; it ends now\n"
"""Made in advance: there is none for it then."""


class WorkerLifecycle:
    """State of one worker from start to exit. Methods are thread-safe; `request_end` also fits a signal handler."""

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
        self.spare = SpareAddressSpace()
        self.started_at = clock.monotonic()
        self.ending = Event()
        """Set when the worker leases no more and finishes its running handlers."""
        self.over = Event()
        """Set when unfinished tasks are abandoned, too."""
        self._inbox: SimpleQueue[LifecycleEnd | None] = SimpleQueue()
        self._lock = Lock()
        self._tasks_done = 0
        self._reserved = 0
        self._leased = 0
        self._on_last_lease = on_last_lease
        self._unreached_since: float | None = None
        self._user = _user()
        self.stop_reason = ""
        """Why the worker ends, once it does: the message of the leases that it gives back."""

    # -- ending ---------------------------------------------------------------------------------------------------

    def end(self, ending: LifecycleEnd) -> None:
        """Lease no more from now on, and make the main thread end the worker."""
        self._inbox.put(ending)
        self.ending.set()

    def request_end(self, ending: LifecycleEnd) -> None:
        """Request the end without taking a lock, as a signal handler must; the main thread then sets `ending`."""
        self._inbox.put(ending)

    def fail(self, error: BaseException, *, thread: str) -> None:
        """End the worker because of an internal error.

        The traceback is logged as text: a log that renders exceptions itself may show payloads and tokens in variables.
        A thread that fails because a handler has changed the process's user is not the reason.
        """
        self.spare.give()
        try:
            self.check_user()
            self.log.error(events.WORKER_FAILED, thread=thread, traceback=redacted_traceback(error))
        except BaseException:  # noqa: BLE001  there is no memory: the worker ends all the same
            without_traceback(error)  # what its frames hold may be all the memory there is
        self.end_whatever_happens(
            lambda: LifecycleEnd(events.WORKER_FAILED, f"an internal error in its {thread}", EXIT_INTERNAL)
        )

    def memory_is_back(self) -> None:
        """End the worker if what a failure was given to be recorded with can't be kept back again: none is left."""
        if not self.spare.take():
            self.end_whatever_happens(
                lambda: LifecycleEnd(
                    events.WORKER_FAILED, "a handler keeps all the memory that the process may have", EXIT_INTERNAL
                )
            )

    def end_whatever_happens(self, ending: Callable[[], LifecycleEnd]) -> None:
        """End the worker; where there is no memory left even for that, end the process."""
        try:
            self.end(ending())
        except BaseException:  # noqa: BLE001  a worker that can't be told to end would look alive and do nothing
            os.write(_STDERR, _NO_MEMORY)
            os._exit(EXIT_INTERNAL)

    def wake(self) -> None:
        """Wake the main thread: a handler or thread has finished."""
        self._inbox.put(None)

    def next_end_request(self, *, timeout_seconds: float) -> LifecycleEnd | None:
        """Wait for the next request to end; None after `wake` or at the timeout."""
        try:
            return self._inbox.get(timeout=max(0.0, timeout_seconds))
        except Empty:
            return None

    def check_user(self) -> None:
        """End the worker when the process's user or group has changed: its files and supervisor may be out of reach."""
        user = _user()
        with self._lock:
            before, self._user = self._user, user
            if user == before:
                return
            reason = (
                f"a handler changed the user and group that the worker runs as from {before[0][1]}:{before[1][1]} to "
                f"{user[0][1]}:{user[1][1]}; do that in a process of its own, or start the worker as that user"
            )
            self.end(LifecycleEnd(events.WORKER_CHANGED, reason, EXIT_USER_CHANGED))

    # -- recycling ------------------------------------------------------------------------------------------------

    @property
    def tasks_done(self) -> int:
        """The number of tasks whose handler has ended, with success or not."""
        return self._tasks_done

    def reserve(self, count: int) -> int:
        """Reserve up to `count` tasks before a lease, and return how many the recycle limit still allows.

        0: other threads have reserved the rest. Follow it by `record_leased`.
        """
        bound = self.settings.recycle.tasks
        if bound is None:
            return count
        with self._lock:
            granted = min(count, bound - self._reserved)
            self._reserved += granted
        return granted

    def record_leased(self, count: int, *, reserved: int) -> None:
        """Record how many of the reserved tasks were leased; the others may be reserved again."""
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
        """Count finished tasks; end the worker when the recycle limit of tasks is reached."""
        with self._lock:
            before = self._tasks_done
            self._tasks_done += count
        bound = self.settings.recycle.tasks
        if bound is not None and before < bound <= before + count:
            self.recycle(memory_bytes=0)

    def recycle(self, *, memory_bytes: int) -> None:
        """End the worker when one of its recycle limits is reached."""
        age_seconds = self.clock.monotonic() - self.started_at
        reason = recycle_reason(
            self.settings.recycle, tasks=self._tasks_done, memory_bytes=memory_bytes, age_seconds=age_seconds
        )
        if reason is not None:
            self.end(LifecycleEnd(events.WORKER_RECYCLED, reason, urgency="finish"))

    # -- reach ----------------------------------------------------------------------------------------------------

    def queue_reached(self) -> None:
        """Record that the queue replied."""
        if self._unreached_since is None:
            return
        with self._lock:
            since, self._unreached_since = self._unreached_since, None
        if since is not None:
            self.log.info(events.QUEUE_REACHED, seconds=round(self.clock.monotonic() - since, 3))

    def queue_unreached(self, error: Exception) -> None:
        """Record that the queue did not reply."""
        with self._lock:
            first = self._unreached_since is None
            if first:
                self._unreached_since = self.clock.monotonic()
        if first:
            self.log.warning(events.QUEUE_UNREACHED, error=str(error))

    def unreached_seconds(self) -> float:
        """Return the seconds since the first call without a reply; 0 when the queue is reachable."""
        since = self._unreached_since
        return 0.0 if since is None else self.clock.monotonic() - since


class Forks:
    """A guard that ends forked children that return from a handler: only their parent is a worker."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._pid = os.getpid()
        self._logged = mmap(-1, 1)  # shared memory: of all children only the first that ends is logged

    def is_child(self) -> bool:
        """Return whether this process was forked from the worker."""
        return os.getpid() != self._pid

    def end_child(self, *, handler: str, error: BaseException | None = None) -> None:
        """Exit if this process is a forked child: with 0, its `SystemExit`'s code, or 1 after another exception."""
        if not self.is_child():
            return
        if not self._logged[0]:
            self._logged[0] = 1
            self._log.warning(
                events.CHILD_ENDED,
                pid=os.getpid(),
                handler=handler,
                reason="a child forked by the handler returned from it; only the worker itself continues. "
                "End a forked child by os._exit, or use multiprocessing; logged once",
            )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_exit_code(error))


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return EXIT_CHILD_FAILED
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else EXIT_CHILD_FAILED


def _user() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the users and the groups of this process: real, effective, saved."""
    return os.getresuid(), os.getresgid()


def retry_seconds(attempt: int, *, jitter: float) -> float:
    """Return the seconds to wait before retry number `attempt` (from 1): doubling up to 2 s, less up to a half by
    `jitter` in [0, 1), so that workers that lost a server together do not return together."""
    longest = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(attempt - 1, 10))
    return longest * (1.0 - 0.5 * jitter)
