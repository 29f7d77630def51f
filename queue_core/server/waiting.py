"""Leases that wait: they cost nothing while they do, and the most recently active worker is served first."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import QueueError
from queue_core.server.listening import Listener
from queue_core.server.turns import Turns
from queue_core.server.watching import Watcher, Watchers
from queue_core.service import QueueService
from queue_core.store import Deletion, Granted, Release
from queue_core.task import TagFilter
from queue_core.verbs import Turn, Wake
from queue_core.waiters import Waiter, Waiters

RECOMPUTE_SECONDS = 0.002
"""After a turn, how soon the next eta is looked up again: bounds what a busy server spends on one idle waiter."""
HEARD_SECONDS = 0.002
"""After a signal of another process, how soon to look: many signals are one look."""
MAX_WORKERS_REMEMBERED = 20_000


@dataclass(slots=True, eq=False)
class LeaseCall:
    """One call of lease or exchange, from its arrival to its answer.

    Args:
        caller: whose activity counts: the worker, or its connection when it gave no name.
        answer: told once, in the loop: the leases and the tokens that were lost, or an error.
        is_gone: whether the caller has hung up; asked right before a lease is granted to one that waited.
    """

    queue: str
    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    wait_seconds: float
    caller: object
    deletions: Sequence[Deletion]
    answer: Callable[["LeaseAnswer | QueueError | Exception"], None]
    is_gone: Callable[[], bool]
    lost: tuple[str, ...] = ()
    is_over: bool = False
    ends_at: float | None = None
    timer: asyncio.TimerHandle | None = None
    waiter: "Waiter[LeaseCall] | None" = None


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What a call is answered with."""

    granted: Granted
    lost: tuple[str, ...] = ()


NOTHING = Granted(())
Fits: TypeAlias = tuple[TagFilter, int]


@dataclass(slots=True)
class _Timer:
    """The one timer for tasks that time will make leasable."""

    handle: asyncio.TimerHandle | None = None
    recompute: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        for handle in (self.handle, self.recompute):
            if handle is not None:
                handle.cancel()
        self.handle = self.recompute = None


class WaitingLeases:
    """All lease calls of a server. Lives in its loop."""

    def __init__(self, service: QueueService, turns: Turns, *, max_waiting: int) -> None:
        self._service = service
        self._turns = turns
        self._max_waiting = max_waiting
        self._waiters: Waiters[LeaseCall] = Waiters()
        self._active_at: dict[object, float] = {}
        self._timer = _Timer()
        self._is_stopping = False
        self.watchers = Watchers()
        self._listener = Listener(service.store.signals, self._heard, self._is_wanted)
        self._unlooked: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def is_stopping(self) -> bool:
        """Whether nobody may wait any more."""
        return self._is_stopping

    @property
    def is_full(self) -> bool:
        """Whether one more caller may not wait."""
        return len(self._waiters) >= self._max_waiting

    def start(self, call: LeaseCall) -> None:
        """Delete and lease; wait when there is nothing to lease."""

        def delete_and_lease(turn: Turn) -> LeaseAnswer:
            lost = tuple(turn.delete(call.queue, call.deletions)[1])
            call.lost = lost
            return LeaseAnswer(_lease(turn, call), lost)

        def lease(turn: Turn) -> LeaseAnswer:
            return LeaseAnswer(_lease(turn, call))

        self._turns.submit(delete_and_lease if call.deletions else lease, lambda outcome: self._decide(call, outcome))

    def cancel(self, call: LeaseCall) -> None:
        """The caller hung up: forget it. What was granted meanwhile is given back as if it had never been leased:
        not counted, and in its old place."""
        call.is_over = True
        if call.waiter is not None:
            self._waiters.discard(call.waiter)
        _stop_timer(call)

    def wake(self, wakes: Sequence[Wake]) -> None:
        """Let as many fitting callers as there are new tasks try again; other processes get the rest."""
        for wake in wakes:
            self.watchers.note_task(wake.queue, wake.tag)
            taken = self._waiters.take(wake.queue, wake.tag, wake.count)
            self._try_again(taken)
            left = wake.count - len(taken)
            if left:
                ourselves = self._listener.is_listening(wake.queue)  # our own ear may be the first that is told
                self._service.store.signals.publish(wake.queue, wake.tag, left + ourselves)

    def retry_worker(self, worker: str) -> None:
        """The worker was retired: its waiting calls try again, and are told so."""
        self._try_again(self._discard(waiter for waiter in self._waiters if waiter.handle.worker == worker))

    def retry_queue(self, queue: str) -> None:
        """The queue is gone: whoever waits on it tries again, and is told so."""
        self.watchers.tell_all(queue)
        self._try_again(self._discard(waiter for waiter in self._waiters if waiter.queue == queue))

    def watch(self, watcher: Watcher) -> None:
        """Tell of ready tasks without leasing them, once."""
        self.watchers.add(watcher)
        for queue, _ in watcher.wanted:
            self._listener.listen(queue)
        self.after_turn()

    def unwatch(self, watcher: Watcher) -> None:
        """Tell no more."""
        self.watchers.discard(watcher)

    def after_turn(self) -> None:
        """Etas may have changed: find the next one soon, if anybody cares."""
        if self._timer.recompute is None and not self._is_stopping and self._queues():
            self._timer.recompute = asyncio.get_running_loop().call_later(RECOMPUTE_SECONDS, self._recompute)

    def stop(self) -> None:
        """Answer all who wait, empty, at once; nobody waits from now on."""
        self._is_stopping = True
        self._timer.cancel()
        for queue in self.watchers.queues():
            self.watchers.tell_all(queue)
        for waiter in self._discard(list(self._waiters)):
            self._end(waiter.handle, LeaseAnswer(NOTHING, waiter.handle.lost))

    def close(self) -> None:
        """End the threads."""
        self._listener.close()

    # -- one call -------------------------------------------------------------------------------------------------

    def _decide(self, call: LeaseCall, outcome: object) -> None:
        if not isinstance(outcome, LeaseAnswer):
            self._end(call, outcome if isinstance(outcome, Exception) else TypeError(f"not an outcome: {outcome!r}"))
            return
        granted = outcome.granted
        if call.is_over:
            self._give_back(call, granted)
        elif granted.leases:
            self._note_active(call)
            self._end(call, LeaseAnswer(granted, call.lost))
        elif granted.unsettled:
            self._submit_again(call)
        elif self._may_wait(call):
            self._wait(call)
        else:
            self._end(call, LeaseAnswer(NOTHING, call.lost))

    def _may_wait(self, call: LeaseCall) -> bool:
        if self._is_stopping or call.wait_seconds <= 0:
            return False
        return call.ends_at is None or call.ends_at > self._service.clock.monotonic()

    def _wait(self, call: LeaseCall) -> None:
        now = self._service.clock.monotonic()
        if call.ends_at is None:
            call.ends_at = now + call.wait_seconds
            call.timer = asyncio.get_running_loop().call_later(call.wait_seconds, self._time_up, call)
            if call.deletions:
                self._note_active(call)
        call.waiter = Waiter(call.queue, call.tags, self._active_at.setdefault(call.caller, now), call)
        self._waiters.add(call.waiter)
        self._listener.listen(call.queue)

    def _time_up(self, call: LeaseCall) -> None:
        call.timer = None
        if call.waiter is not None and self._waiters.discard(call.waiter):
            self._end(call, LeaseAnswer(NOTHING, call.lost))

    def _end(self, call: LeaseCall, answer: LeaseAnswer | Exception) -> None:
        _stop_timer(call)
        if not call.is_over:
            call.is_over = True
            call.answer(answer)

    def _note_active(self, call: LeaseCall) -> None:
        active_at = self._active_at
        active_at.pop(call.caller, None)
        active_at[call.caller] = self._service.clock.monotonic()
        if len(active_at) > MAX_WORKERS_REMEMBERED:
            del active_at[next(iter(active_at))]

    def _give_back(self, call: LeaseCall, granted: Granted) -> None:
        if not granted.leases:
            return
        releases = [Release(lease.token, None, "uncounted") for lease in granted.leases]
        self._turns.submit(lambda turn: turn.release(call.queue, releases), lambda _outcome: None)

    # -- trying again ---------------------------------------------------------------------------------------------

    def _discard(self, waiters: Iterable[Waiter[LeaseCall]]) -> list[Waiter[LeaseCall]]:
        return [waiter for waiter in list(waiters) if self._waiters.discard(waiter)]

    def _try_again(self, waiters: Sequence[Waiter[LeaseCall]]) -> None:
        for waiter in waiters:
            self._submit_again(waiter.handle)

    def _submit_again(self, call: LeaseCall) -> None:
        def lease(turn: Turn) -> LeaseAnswer:
            if call.is_over or call.is_gone():
                return LeaseAnswer(NOTHING)
            return LeaseAnswer(_lease(turn, call))

        self._turns.submit(lease, lambda outcome: self._decide(call, outcome))

    # -- time -----------------------------------------------------------------------------------------------------

    def _recompute(self) -> None:
        self._timer.recompute = None
        due: list[tuple[Instant, str]] = []
        for queue in self._queues():
            try:
                eta = self._service.look(lambda turn, queue=queue: turn.transaction.next_eta(queue, now=turn.now))  # type: ignore[misc]
            except QueueError:
                self.retry_queue(queue)
                continue
            if eta is not None:
                due.append((eta, queue))
        if self._timer.handle is not None:
            self._timer.handle.cancel()
            self._timer.handle = None
        if due:
            eta, queue = min(due)
            seconds = max(0.0, (eta - self._service.clock.now()) / MICROSECONDS)
            self._timer.handle = asyncio.get_running_loop().call_later(seconds, self._eta_reached, queue)

    def _heard(self, queue: str) -> None:
        """Another process did something (or we did): look, but not more often than time passes."""
        if queue not in self._unlooked and not self._is_stopping:
            self._unlooked.add(queue)
            asyncio.get_running_loop().call_later(HEARD_SECONDS, self._look, queue)

    def _is_wanted(self, queue: str) -> bool:
        return queue in self._queues()

    def _queues(self) -> set[str]:
        """Queues that anybody cares for."""
        return {*self._waiters.queues(), *self.watchers.queues()}

    def _eta_reached(self, queue: str) -> None:
        self._timer.handle = None
        self._look(queue)

    def _look(self, queue: str) -> None:
        """Settle what is due, then let those try again for whom there is something."""
        filters = {waiter.tags for waiter in self._waiters if waiter.queue == queue} | self.watchers.filters(queue)

        def look(turn: Turn) -> list[Fits]:
            self._unlooked.discard(queue)
            turn.settle(queue)
            return [(tags, turn.stats(queue, tags).ready) for tags in filters]

        self._turns.submit(look, lambda outcome: self._looked(queue, outcome))

    def _looked(self, queue: str, outcome: object) -> None:
        if not isinstance(outcome, list):
            self.retry_queue(queue)
            return
        for tags, ready in outcome:
            if not ready:
                continue
            self.watchers.note_ready(queue, tags)
            fitting = [waiter for waiter in self._waiters if waiter.queue == queue and waiter.tags == tags]
            fitting.sort(key=lambda waiter: waiter.active_at, reverse=True)
            self._try_again(self._discard(fitting[:ready]))


def _lease(turn: Turn, call: LeaseCall) -> Granted:
    return turn.lease(call.queue, count=call.count, seconds=call.seconds, tags=call.tags, worker=call.worker)


def _stop_timer(call: LeaseCall) -> None:
    if call.timer is not None:
        call.timer.cancel()
        call.timer = None
