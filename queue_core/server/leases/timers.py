"""The timer for the next eta that a waiting call needs: read after commits, one timer for all queues.

A store that other servers change is also read now and then: their etas cause no notification, and a notification may be
lost.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from queue_core.clock import MICROSECONDS, Clock, Instant
from queue_core.errors import QueueError, StoreUnavailableError, UnknownQueueError
from queue_core.server.commit.group_commit import Committer
from queue_core.task import ANY
from queue_core.unit.unit_of_work import UnitOfWork

PAUSE_SECONDS = 0.002
"""Seconds from a commit to reading the next eta: bounds what a busy server spends on one idle waiter."""
REMOTE_PAUSE_SECONDS = 0.02
"""The same for a store across a network."""
RECHECK_SECONDS = 1.0
"""Seconds between reads of a remote store's etas when nothing happens here; also after a failed read."""
READY_SECONDS = 5.0
"""Seconds between those reads that also look for ready tasks, whose notification may have been lost."""
ETA_SPREAD_SECONDS = 0.005
"""Servers that wait for the same eta check up to so much after it, at random: the first one expires it for all."""
MAX_QUEUES_PER_READ = 200
"""Queues read at once; of more, a random section is read."""
READ_SECONDS = 3.0
"""Seconds after which a read has failed."""
MAX_FAILURES = 2
"""Failures in a row after which waiting calls get the error: another server may reach the store."""


@dataclass(frozen=True, slots=True)
class _QueueState:
    """One queue as of a read. `is_gone`: there is no such queue."""

    queue: str
    eta: Instant | None = None
    has_ready: bool = False
    is_gone: bool = False


class DueTimer:
    """The timer. Lives in the server's loop."""

    def __init__(
        self,
        committer: Committer,
        clock: Clock,
        *,
        queues: Callable[[], set[str]],
        due: Callable[[str], None],
        gone: Callable[[str], None],
        failed: Callable[[QueueError], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        queues: returns the queues that are waited on or watched.
        due: called with a queue in which a task is due.
        gone: called with a queue that no longer exists.
        failed: called with the error when the store can't be read.
        """
        self._committer = committer
        self._clock = clock
        self._queues = queues
        self._due = due
        self._gone = gone
        self._failed = failed
        self._failures = 0
        self._jitter = jitter
        self._eta_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._read_at = 0.0
        self._reading: asyncio.TimerHandle | None = None
        """The deadline of the read that is under way."""
        self._is_outdated = False
        self._ready_at = 0.0
        self._is_stopped = False

    def after_commit(self) -> None:
        """Read the next eta soon, as it may have changed."""
        if self._reading is not None:
            self._is_outdated = True
        elif self._committer.is_threaded:
            self._read_in(REMOTE_PAUSE_SECONDS)
        elif self._read_timer is None:
            self._read_in(PAUSE_SECONDS)

    def stop(self) -> None:
        """Read no more."""
        self._is_stopped = True
        for timer in (self._eta_timer, self._read_timer):
            if timer is not None:
                timer.cancel()

    def _read_in(self, seconds: float) -> None:
        at = self._clock.monotonic() + seconds
        if self._is_stopped or (self._read_timer is not None and self._read_at <= at) or not self._queues():
            return
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._read_at = at
        self._read_timer = asyncio.get_running_loop().call_later(seconds, self._read)

    def _read(self) -> None:
        self._read_timer = None
        queues = sorted(self._queues())
        if not queues:
            return
        now = self._clock.monotonic()
        wants_ready = self._committer.is_threaded and now >= self._ready_at
        if wants_ready:
            self._ready_at = now + READY_SECONDS * (0.75 + self._jitter() / 2)
        if len(queues) > MAX_QUEUES_PER_READ:
            begin = int(self._jitter() * len(queues))
            queues = (queues + queues)[begin : begin + MAX_QUEUES_PER_READ]
        self._is_outdated = False
        if not self._committer.is_threaded:
            self._committer.read(lambda work: [_state(work, queue) for queue in queues], self._finish_read)
            return
        reading = asyncio.get_running_loop().call_later(READ_SECONDS, self._too_slow)
        self._reading = reading

        def finish(outcome: object) -> None:
            if self._reading is reading:
                reading.cancel()
                self._reading = None
                self._finish_read(outcome)

        self._committer.read(lambda work: [_state(work, queue, wants_ready=wants_ready) for queue in queues], finish)

    def _too_slow(self) -> None:
        self._reading = None
        self._finish_read(StoreUnavailableError(f"the store has not answered for {READ_SECONDS:g} s; try again"))

    def _finish_read(self, outcome: object) -> None:
        if self._is_stopped:
            return
        if isinstance(outcome, list):
            self._failures = 0
            self._apply(outcome)
        elif isinstance(outcome, QueueError):
            self._failures += 1
            if self._failures >= MAX_FAILURES or not self._committer.is_threaded:
                self._failed(outcome)
        if self._is_outdated and not self._failures:
            self.after_commit()
        elif self._committer.is_threaded:
            self._read_in(RECHECK_SECONDS * (0.75 + self._jitter() / 2))

    def _apply(self, states: list[_QueueState]) -> None:
        for one in states:
            if one.is_gone:
                self._gone(one.queue)
            elif one.has_ready:
                self._due(one.queue)
        if self._eta_timer is not None:
            self._eta_timer.cancel()
            self._eta_timer = None
        etas = [(one.eta, one.queue) for one in states if one.eta is not None]
        if etas:
            eta, queue = min(etas)
            seconds = max(0.0, (eta - self._clock.now()) / MICROSECONDS)
            if self._committer.is_threaded:
                seconds += self._jitter() * ETA_SPREAD_SECONDS
            self._eta_timer = asyncio.get_running_loop().call_later(seconds, self._reached, queue)

    def _reached(self, queue: str) -> None:
        self._eta_timer = None
        self._due(queue)


def _state(work: UnitOfWork, queue: str, *, wants_ready: bool = False) -> _QueueState:
    try:
        eta = work.transaction.next_eta(queue, now=work.now)
        has_ready = wants_ready and work.stats(queue, ANY).ready > 0
    except UnknownQueueError:
        return _QueueState(queue, is_gone=True)
    return _QueueState(queue, eta, has_ready=has_ready)
