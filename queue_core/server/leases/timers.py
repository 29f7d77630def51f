"""When time alone next makes a task leasable that somebody waits for: looked up after turns, one timer for all queues.

A store that other servers change behind our back is looked at now and then as well: their etas are not told of, and a
signal may be lost.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from queue_core.clock import MICROSECONDS, Clock, Instant
from queue_core.errors import QueueError, StoreUnavailableError, UnknownQueueError
from queue_core.server.turns import Turns
from queue_core.task import ANY
from queue_core.verbs import Turn

RECOMPUTE_SECONDS = 0.002
"""After a turn, how soon the next eta is looked up again: bounds what a busy server spends on one idle waiter."""
REMOTE_RECOMPUTE_SECONDS = 0.02
RECHECK_SECONDS = 1.0
"""How often the etas of a remote store are looked up when nothing happens here; also after a look that failed."""
RELOOK_SECONDS = 5.0
"""How often that look is for ready tasks too, which nobody told us of."""
PART_SECONDS = 0.005
"""Servers that wait for the same eta look up to so much after it, each at its own time: the first one settles it."""
MAX_QUEUES_PER_LOOK = 200
LOOK_SECONDS = 3.0
"""A look that takes longer has failed."""
MAX_FAILURES = 2
"""Failures in a row after which those who wait are told: another server may reach the store."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One queue as of a look. `is_gone`: there is no such queue."""

    queue: str
    eta: Instant | None = None
    has_ready: bool = False
    is_gone: bool = False


class DueTimes:
    """The timer. Lives in the server's loop."""

    def __init__(
        self,
        turns: Turns,
        clock: Clock,
        *,
        queues: Callable[[], set[str]],
        due: Callable[[str], None],
        gone: Callable[[str], None],
        failed: Callable[[QueueError], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        queues: those that anybody cares for.
        due: told of a queue in which a task is due.
        gone: told of a queue that is there no more.
        failed: told when the store can't be looked at.
        """
        self._turns = turns
        self._clock = clock
        self._queues = queues
        self._due = due
        self._gone = gone
        self._failed = failed
        self._failures = 0
        self._jitter = jitter
        self._eta_timer: asyncio.TimerHandle | None = None
        self._recompute_timer: asyncio.TimerHandle | None = None
        self._recompute_at = 0.0
        self._looking: asyncio.TimerHandle | None = None
        """Runs while a look is under way, for as long as that may take."""
        self._is_outdated = False
        self._relook_at = 0.0
        self._is_stopped = False

    def after_turn(self) -> None:
        """Etas may have changed: find the next one soon, if anybody cares."""
        if self._looking is not None:
            self._is_outdated = True
        elif self._turns.is_beside:
            self._recompute_in(REMOTE_RECOMPUTE_SECONDS)
        elif self._recompute_timer is None:
            self._recompute_in(RECOMPUTE_SECONDS)

    def stop(self) -> None:
        """Look no more."""
        self._is_stopped = True
        for timer in (self._eta_timer, self._recompute_timer):
            if timer is not None:
                timer.cancel()

    def _recompute_in(self, seconds: float) -> None:
        at = self._clock.monotonic() + seconds
        if self._is_stopped or (self._recompute_timer is not None and self._recompute_at <= at) or not self._queues():
            return
        if self._recompute_timer is not None:
            self._recompute_timer.cancel()
        self._recompute_at = at
        self._recompute_timer = asyncio.get_running_loop().call_later(seconds, self._recompute)

    def _recompute(self) -> None:
        self._recompute_timer = None
        queues = sorted(self._queues())
        if not queues:
            return
        now = self._clock.monotonic()
        wants_ready = self._turns.is_beside and now >= self._relook_at
        if wants_ready:
            self._relook_at = now + RELOOK_SECONDS * (0.75 + self._jitter() / 2)
        if len(queues) > MAX_QUEUES_PER_LOOK:
            begin = int(self._jitter() * len(queues))
            queues = (queues + queues)[begin : begin + MAX_QUEUES_PER_LOOK]
        self._is_outdated = False
        if not self._turns.is_beside:
            self._turns.look(lambda turn: [_look(turn, queue) for queue in queues], self._looked)
            return
        looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._too_slow)
        self._looking = looking

        def looked(outcome: object) -> None:
            if self._looking is looking:
                looking.cancel()
                self._looking = None
                self._looked(outcome)

        self._turns.look(lambda turn: [_look(turn, queue, wants_ready=wants_ready) for queue in queues], looked)

    def _too_slow(self) -> None:
        self._looking = None
        self._looked(StoreUnavailableError(f"the store has not answered for {LOOK_SECONDS:g} s; try again"))

    def _looked(self, outcome: object) -> None:
        if self._is_stopped:
            return
        if isinstance(outcome, list):
            self._failures = 0
            self._note(outcome)
        elif isinstance(outcome, QueueError):
            self._failures += 1
            if self._failures >= MAX_FAILURES or not self._turns.is_beside:
                self._failed(outcome)
        if self._is_outdated and not self._failures:
            self.after_turn()
        elif self._turns.is_beside:
            self._recompute_in(RECHECK_SECONDS * (0.75 + self._jitter() / 2))

    def _note(self, seen: list[_Seen]) -> None:
        for one in seen:
            if one.is_gone:
                self._gone(one.queue)
            elif one.has_ready:
                self._due(one.queue)
        if self._eta_timer is not None:
            self._eta_timer.cancel()
            self._eta_timer = None
        etas = [(one.eta, one.queue) for one in seen if one.eta is not None]
        if etas:
            eta, queue = min(etas)
            seconds = max(0.0, (eta - self._clock.now()) / MICROSECONDS)
            if self._turns.is_beside:
                seconds += self._jitter() * PART_SECONDS
            self._eta_timer = asyncio.get_running_loop().call_later(seconds, self._reached, queue)

    def _reached(self, queue: str) -> None:
        self._eta_timer = None
        self._due(queue)


def _look(turn: Turn, queue: str, *, wants_ready: bool = False) -> _Seen:
    try:
        eta = turn.transaction.next_eta(queue, now=turn.now)
        has_ready = wants_ready and turn.stats(queue, ANY).ready > 0
    except UnknownQueueError:
        return _Seen(queue, is_gone=True)
    return _Seen(queue, eta, has_ready=has_ready)
