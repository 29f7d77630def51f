"""Leases that wait: they cost nothing while they do, and the most recently active worker is served first.

Where turns run beside the loop, a wake-up may come while the lease that found nothing is on its way back to us: `news`
counts what was heard of a queue, and who missed some has the queue looked at again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeAlias

from queue_core.errors import QueueError, StoreError, UnknownQueueError
from queue_core.notes import Wake
from queue_core.server.leases.call import NOTHING, LeaseAnswer, LeaseCall
from queue_core.server.leases.following import following
from queue_core.server.leases.notifications import Listener
from queue_core.server.leases.outbox import Outbox
from queue_core.server.leases.presence import Roster
from queue_core.server.leases.timers import RECHECK_SECONDS, DueTimes
from queue_core.server.leases.waiters import Waiter, Waiters
from queue_core.server.leases.watching import Watcher, Watchers
from queue_core.server.turns import Follower, Turns
from queue_core.service import QueueService, Step
from queue_core.store import ClientCall, Granted, Release, Unit
from queue_core.task import Lease, TagFilter
from queue_core.verb_values import handed_over, unit_of_lease
from queue_core.verbs import Turn

HEARD_SECONDS = 0.002
"""After a look at a queue, how soon to look again: many signals are one look."""
OVERTIME_SECONDS = 1.0
"""When the time is up while the store is being asked: how long the answer is waited for."""
MAX_FILTERS_PER_LOOK = 64
MAX_WORKERS_REMEMBERED = 20_000

Fits: TypeAlias = tuple[TagFilter, int]


class WaitingLeases:
    """All lease calls of a server. Lives in its loop."""

    def __init__(self, service: QueueService, turns: Turns, *, max_waiting: int) -> None:
        self._service = service
        self._turns = turns
        self._max_waiting = max_waiting
        self._waiters: Waiters[LeaseCall] = Waiters()
        self._active_at: dict[object, float] = {}
        self._is_stopping = False
        self.watchers = Watchers()
        self.roster = Roster()
        self._listener = Listener(service.store, self._heard, self._is_wanted)
        self._outbox = Outbox(service.store)
        self._due_times = DueTimes(
            turns,
            service.clock,
            queues=self._queues,
            due=self._heard,
            gone=self.retry_queue,
            failed=self._refuse_all,
        )
        self._sessions: dict[str, LeaseCall] = {}
        """By the session of a client: its call that is under way, the last that came."""
        self._news: dict[str, int] = {}
        self._looking: dict[str, bool] = {}
        """Queues that are looked at, or were a moment ago; and whether something was heard of them meanwhile."""
        turns.follow_with(self.follow)

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
        self.roster.asked(call, now=self._service.clock.monotonic())
        if call.client_call is not None:
            self._supersede(call, call.client_call)
        self._submit(call, partial(self._exchange, call))

    def _supersede(self, call: LeaseCall, client_call: ClientCall) -> None:
        """End the same client's call before this one, if that waits still: its connection is dead."""
        before = self._sessions.get(client_call.session)
        if before is not None and before.client_call is not None and before.client_call.number > client_call.number:
            return  # this one was late on its way, and nobody listens to it
        self._sessions[client_call.session] = call
        if before is not None and before.waiter is not None and self._waiters.discard(before.waiter):
            self._end(before, LeaseAnswer(NOTHING, before.lost))

    def cancel(self, call: LeaseCall) -> None:
        """The caller hung up: forget it. What was granted meanwhile, and not told, is given back as if it had never
        been leased: not counted, and in its old place. But not to a client that may ask again for the same leases."""
        if not call.is_over:
            self.roster.ended(call, now=self._service.clock.monotonic(), hung_up=True)
        call.is_over = True
        if call.waiter is not None:
            self._waiters.discard(call.waiter)
        call.stop_timer()
        self._forget_session(call)

    def give_back(self, queue: str, leases: Sequence[Lease]) -> None:
        """Nobody got to know of these: as if they had never been granted."""
        if leases:
            releases = [Release(lease.token, None, "uncounted") for lease in leases]
            self._turns.submit(lambda turn: turn.release(queue, releases), lambda _outcome: None)

    def wake(self, wakes: Sequence[Wake]) -> None:
        """Let as many fitting callers as there are new tasks try again; other processes get the rest."""
        for wake in wakes:
            self._note_news(wake.queue)
            self.watchers.note_task(wake.queue, wake.tag)
            taken = self._take(wake.queue, wake.tag, wake.count - wake.served)
            self._try_again(taken)
            left = wake.count - wake.served - len(taken)
            if left:
                ourselves = self._listener.is_listening(wake.queue)  # our own ear may be the first that is told
                self._outbox.publish(wake.queue, wake.tag, left + ourselves)

    def follow(self, turn: Turn) -> Iterator[Follower]:
        """See `following`."""
        if not self._waiters:
            return iter(())
        return following(turn, self._take, lease=self._lease_again, done=self._decide, back=self._wait_on)

    def _take(self, queue: str, tag: str | None, count: int) -> list[Waiter[LeaseCall]]:
        return self._waiters.take(queue, tag, count, is_gone=_is_gone)

    def retry_worker(self, worker: str) -> None:
        """The worker was retired: its waiting calls try again, and are told so."""
        self._try_again(self._discard(waiter for waiter in self._waiters if waiter.handle.worker == worker))

    def retry_queue(self, queue: str) -> None:
        """The queue is gone: whoever waits on it tries again, and is told so."""
        self.watchers.tell_all(queue)
        self._try_again(self._discard(waiter for waiter in self._waiters if waiter.queue == queue))

    def _refuse_all(self, error: QueueError) -> None:
        """The store can't be reached from here: whoever waits may have better luck elsewhere."""
        for queue in self.watchers.queues():
            self.watchers.tell_all(queue)
        for waiter in self._discard(list(self._waiters)):
            self._fail(waiter.handle, error)

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
        """Etas may have changed, if that matters to anybody."""
        if self._waiters or self.watchers:
            self._due_times.after_turn()

    def stop(self) -> None:
        """Answer all who wait, empty, at once; nobody waits from now on."""
        self._is_stopping = True
        self._due_times.stop()
        for queue in self.watchers.queues():
            self.watchers.tell_all(queue)
        for waiter in self._discard(list(self._waiters)):
            self._end(waiter.handle, LeaseAnswer(NOTHING, waiter.handle.lost))

    def close(self) -> None:
        """End the threads."""
        self._listener.close()
        self._outbox.close()

    # -- one call -------------------------------------------------------------------------------------------------

    def _exchange(self, call: LeaseCall, turn: Turn) -> LeaseAnswer:
        if call.is_over and not call.deletions:
            return LeaseAnswer(NOTHING)  # its caller hung up before its turn
        call.news = self._news.get(call.queue, 0)
        return call.exchange(turn)

    def _decide(self, call: LeaseCall, outcome: object) -> None:
        if not isinstance(outcome, LeaseAnswer):
            self._fail(call, outcome if isinstance(outcome, Exception) else TypeError(f"not an outcome: {outcome!r}"))
            return
        granted = outcome.granted
        call.has_deleted = bool(call.deletions)
        is_repeatable = call.client_call is not None
        if call.is_over:
            if not is_repeatable:
                self.give_back(call.queue, granted.leases)
        elif self._service.is_late(granted.leases):
            if is_repeatable:  # another server may have told its client of them meanwhile
                self._renew_late(call, granted.leases)
            else:
                self.give_back(call.queue, granted.leases)
                self._submit_again(call)
        elif granted.leases:
            self._end(call, outcome)
            self._note_active(call)
        elif granted.unsettled:
            self._submit_again(call)
        else:
            self._wait_on(call)

    def _renew_late(self, call: LeaseCall, leases: Sequence[Lease]) -> None:
        """Leases that are told late are told with their whole time ahead, as far as they are held still."""

        def renewed(outcome: object) -> None:
            if not isinstance(outcome, list):
                self._fail(call, outcome if isinstance(outcome, Exception) else TypeError(f"no outcome: {outcome!r}"))
                return
            held = [
                replace(lease, expires_at=one.expires_at)
                for lease, one in zip(leases, outcome, strict=True)
                if one is not None
            ]
            if held:
                self._end(call, LeaseAnswer(Granted(tuple(held)), call.lost))
            else:
                self._submit_again(call)

        tokens = [lease.token for lease in leases]
        self._turns.submit(lambda turn: turn.renew(call.queue, tokens, seconds=call.seconds), renewed)

    def _fail(self, call: LeaseCall, error: Exception) -> None:
        """The store failed: what it did before that is told all the same."""
        if call.has_deleted and isinstance(error, StoreError):
            self._end(call, LeaseAnswer(NOTHING, call.lost))
        else:
            self._end(call, error)

    def _forget_session(self, call: LeaseCall) -> None:
        client_call = call.client_call
        if client_call is not None and self._sessions.get(client_call.session) is call:
            del self._sessions[client_call.session]

    def _is_asked_again(self, call: LeaseCall) -> bool:
        """Whether its client has sent it once more, or a later one: then nobody listens to this one."""
        client_call = call.client_call
        return client_call is not None and self._sessions.get(client_call.session, call) is not call

    def _wait_on(self, call: LeaseCall) -> None:
        if self._is_asked_again(call):
            self._end(call, LeaseAnswer(NOTHING, call.lost))
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
        if self._turns.is_beside and call.news != self._news.get(call.queue, 0):
            self._heard(call.queue)

    def _time_up(self, call: LeaseCall) -> None:
        """What a try that is under way is granted after the overtime is given back."""
        call.timer = None
        empty = LeaseAnswer(NOTHING, call.lost)
        if call.waiter is not None and self._waiters.discard(call.waiter):
            self._end(call, empty)
        elif self._turns.is_beside:
            call.timer = asyncio.get_running_loop().call_later(OVERTIME_SECONDS, self._end, call, empty)

    def _end(self, call: LeaseCall, answer: LeaseAnswer | Exception) -> None:
        call.stop_timer()
        self._forget_session(call)
        if not call.is_over:
            call.is_over = True
            try:
                call.answer(answer)  # before all else that is to be noted of it
            finally:
                self.roster.ended(call, now=self._service.clock.monotonic())

    def _note_active(self, call: LeaseCall) -> None:
        active_at = self._active_at
        active_at.pop(call.caller, None)
        active_at[call.caller] = self._service.clock.monotonic()
        if len(active_at) > MAX_WORKERS_REMEMBERED:
            del active_at[next(iter(active_at))]

    # -- trying again ---------------------------------------------------------------------------------------------

    def _discard(self, waiters: Iterable[Waiter[LeaseCall]]) -> list[Waiter[LeaseCall]]:
        return [waiter for waiter in list(waiters) if self._waiters.discard(waiter)]

    def _try_again(self, waiters: Sequence[Waiter[LeaseCall]]) -> None:
        for waiter in waiters:
            self._submit_again(waiter.handle)

    def _submit_again(self, call: LeaseCall, *, then: Callable[[], None] | None = None) -> None:
        self._submit(call, partial(self._lease_again, call), then=then)

    def _lease_again(self, call: LeaseCall, turn: Turn) -> LeaseAnswer:
        if call.is_over or call.is_gone():
            return LeaseAnswer(NOTHING)
        call.news = self._news.get(call.queue, 0)
        return LeaseAnswer(call.lease(turn), call.lost)

    def _submit(self, call: LeaseCall, step: Step[LeaseAnswer], *, then: Callable[[], None] | None = None) -> None:
        late = partial(self._decide, call)
        done = late if then is None else partial(self._decide_then, then, call)
        is_several = call.grant is not None or (call.client_call is not None and handed_over(call.deletions))
        unit: Unit = "transaction" if is_several else unit_of_lease(call.worker)
        self._turns.submit(step, done, prepare=call.prepare, late=late, size_bytes=call.size_bytes, unit=unit)

    def _decide_then(self, then: Callable[[], None], call: LeaseCall, outcome: object) -> None:
        try:
            self._decide(call, outcome)
        finally:
            then()

    # -- looking for work ---------------------------------------------------------------------------------------------

    def _queues(self) -> set[str]:
        """Queues that anybody cares for."""
        return {*self._waiters.queues(), *self.watchers.queues()}

    def _is_wanted(self, queue: str) -> bool:
        return queue in self._queues()

    def _note_news(self, queue: str) -> None:
        if self._turns.is_beside:
            self._news[queue] = self._news.get(queue, 0) + 1

    def _heard(self, queue: str) -> None:
        """Another process did something (or we did), or a task is due: look, but not more often than time passes."""
        self._note_news(queue)
        if queue in self._looking:
            self._looking[queue] = True
        elif self._is_stopping:
            return
        elif self._turns.is_beside:
            self._try_first(queue)
        else:
            self._look(queue)

    def _try_first(self, queue: str) -> None:
        """Let the most recently active caller try before we look: most likely there is one task, which it may take."""
        self._looking[queue] = False
        waiting = [waiter for waiter in self._waiters if waiter.queue == queue]
        if waiting:
            first = max(waiting, key=lambda waiter: waiter.active_at)
            self._waiters.discard(first)
            self._submit_again(first.handle, then=lambda: self._look(queue))
        else:
            self._look(queue)

    def _look(self, queue: str) -> None:
        """Settle what is due, then let those try again for whom there is something."""
        self._looking[queue] = False
        waiting = {waiter.tags for waiter in self._waiters if waiter.queue == queue}
        filters = list(waiting | self.watchers.filters(queue))
        for begin in range(0, max(1, len(filters)), MAX_FILTERS_PER_LOOK):
            self._look_for(queue, filters[begin : begin + MAX_FILTERS_PER_LOOK])

    def _look_for(self, queue: str, filters: Sequence[TagFilter]) -> None:
        def look(turn: Turn) -> list[Fits]:
            turn.settle(queue)
            return [(tags, turn.stats(queue, tags).ready) for tags in filters]

        self._turns.submit(look, partial(self._looked, queue))

    def _looked(self, queue: str, outcome: object) -> None:
        rest_seconds = HEARD_SECONDS
        if isinstance(outcome, list):
            self._serve(queue, outcome)
        elif self._turns.is_beside and not isinstance(outcome, UnknownQueueError):
            rest_seconds = RECHECK_SECONDS  # the store may be back by then: nobody need be told that it was away
            self._looking[queue] = True
        else:
            self.retry_queue(queue)
        asyncio.get_running_loop().call_later(rest_seconds, self._rested, queue)

    def _rested(self, queue: str) -> None:
        if self._looking.pop(queue, False):
            self._heard(queue)

    def _serve(self, queue: str, found: Sequence[Fits]) -> None:
        for tags, ready in found:
            if not ready:
                continue
            self.watchers.note_ready(queue, tags)
            fitting = [waiter for waiter in self._waiters if waiter.queue == queue and waiter.tags == tags]
            fitting.sort(key=lambda waiter: waiter.active_at, reverse=True)
            there = (waiter for waiter in fitting if not waiter.handle.is_gone())
            self._try_again(self._discard(islice(there, ready)))


def _is_gone(call: LeaseCall) -> bool:
    return call.is_gone()
