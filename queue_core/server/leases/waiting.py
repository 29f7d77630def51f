"""The lease calls that wait at a server: which of them are woken for which task.

They cost nothing while they wait, and the most recently active worker is served first.
"""

from collections.abc import Iterable, Iterator, Sequence

from queue_core.errors import QueueError
from queue_core.server.commit.group_commit import Committer
from queue_core.server.leases.call import CallContext, LeaseAnswer, LeaseCall
from queue_core.server.leases.notifications import NotificationListener, NotificationSender
from queue_core.server.leases.ready_checks import ReadyChecks
from queue_core.server.leases.timers import DueTimer
from queue_core.server.leases.waiters import Waiters, Watcher, Watchers, taking
from queue_core.task import Lease
from queue_core.unit.outbox import WakeUp
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork

MAX_FOLLOWERS = 8
"""Waiting calls that lease in the transaction that made tasks leasable, at most, as its callers wait for their
answers; further calls are woken after it (ADR 20)."""


class WaitingLeases:
    """The watch over all queues of a server, and the `WaitingRoom` of its lease calls. Lives in the server's loop."""

    def __init__(self, service: QueueService, committer: Committer, *, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._is_threaded = committer.is_threaded
        self._is_stopping = False
        self._waiters: Waiters[LeaseCall] = Waiters()
        self.watchers = Watchers()
        self.context = CallContext(service, committer, self)
        """The collaborators of every call."""
        self.presence = self.context.presence
        self._checks = ReadyChecks(committer, self._waiters, self.watchers, failed=self.retry_queue)
        self._listener = NotificationListener(service.store, self._checks.check, lambda queue: queue in self._queues())
        signals = service.store.signals
        self._sender = NotificationSender(signals) if service.store.is_remote else None
        self._publish = signals.publish if self._sender is None else self._sender.publish
        self._timer = DueTimer(
            committer,
            service.clock,
            queues=self._queues,
            due=self._checks.check,
            gone=self.retry_queue,
            failed=self._fail_all,
        )
        committer.follow_with(self._followers, waiting=self._waiters)

    def __len__(self) -> int:
        return self._waiters.count

    @property
    def is_stopping(self) -> bool:
        """Return whether no caller may wait any more."""
        return self._is_stopping

    @property
    def is_full(self) -> bool:
        """Return whether the limit on waiting calls is reached."""
        return self._waiters.count >= self._max_waiting

    def give_back(self, queue: str, leases: Sequence[Lease]) -> None:
        """See `CallContext.give_back`."""
        self.context.give_back(queue, leases)

    def stop(self) -> None:
        """Answer all waiting calls, empty, at once; no call waits from now on."""
        self._is_stopping = True
        self._timer.stop()
        self._checks.stop()
        self._notify_all_watchers()
        for call in self._waiters.take_all(self._waiters):
            call.end_empty()

    def close(self) -> None:
        """End the threads."""
        self._listener.close()
        if self._sender is not None:
            self._sender.close()

    # -- waiting -----------------------------------------------------------------------------------------------------

    def changes(self, queue: str) -> int:
        """See `WaitingRoom.changes`."""
        return self._checks.changes(queue)

    def enter(self, call: LeaseCall) -> None:
        """See `WaitingRoom.enter`."""
        self._waiters.add(call)
        self._listener.listen(call.queue)
        if self._is_threaded and call.changes_seen != self.changes(call.queue):
            self._checks.check(call.queue)

    def leave(self, call: LeaseCall) -> bool:
        """See `WaitingRoom.leave`."""
        return self._waiters.discard(call)

    def watch(self, watcher: Watcher) -> None:
        """Notify the watcher of ready tasks once, without leasing them."""
        self.watchers.add(watcher)
        for queue, _ in watcher.wanted:
            self._listener.listen(queue)
        self.after_commit()

    def unwatch(self, watcher: Watcher) -> None:
        """Stop notifying the watcher."""
        self.watchers.discard(watcher)

    def _queues(self) -> set[str]:
        """Return the queues that are waited on or watched; any thread may call this."""
        return {*self._waiters.queues(), *self.watchers.queues()}

    # -- waking ------------------------------------------------------------------------------------------------------

    def wake(self, wakes: Iterable[WakeUp]) -> None:
        """Let as many fitting calls as there are new tasks retry, and notify other processes of the rest."""
        for wake in wakes:
            if self._is_threaded:
                self._checks.count_change(wake.queue)
            left = wake.count - wake.served
            if self.watchers.watching:
                self.watchers.notify(wake.queue, fits=taking(wake.tag))
            if self._waiters.count:
                woken = self._take(wake, left)
                left -= len(woken)
                for call in woken:
                    call.retry()
            if left:
                to_ourselves = wake.queue in self._listener.queues  # our own listener may be notified first
                self._publish(wake.queue, wake.tag, left + to_ourselves)

    def after_commit(self) -> None:
        """Read the next eta again if any caller waits, as the commit may have changed it."""
        if self._waiters.count or self.watchers.watching:
            self._timer.after_commit()

    def look_for_etas(self) -> None:
        """Check every queue that is waited on: the wall clock may have reached etas that the store's time has not."""
        for queue in self._queues():
            self._checks.check(queue)

    def retry_worker(self, worker: str) -> None:
        """Let the waiting calls of a retired worker retry: they are answered that it was retired."""
        self._retry(call for call in self._waiters if call.worker == worker)

    def retry_queue(self, queue: str) -> None:
        """Let all calls that wait on a deleted queue retry: they are answered that it is unknown."""
        self.watchers.notify(queue)
        self._retry(self._waiters.of(queue))

    def _retry(self, calls: Iterable[LeaseCall]) -> None:
        for call in self._waiters.take_all(calls):
            call.retry()

    def _fail_all(self, error: QueueError) -> None:
        """Answer all waiting calls with the error of an unreachable store: another server may still reach it."""
        self._notify_all_watchers()
        for call in self._waiters.take_all(self._waiters):
            call.fail(error)

    def _notify_all_watchers(self) -> None:
        for queue in self.watchers.queues():
            self.watchers.notify(queue)

    def _take(self, wake: WakeUp, count: int) -> list[LeaseCall]:
        return self._waiters.take(wake.queue, count, fits=taking(wake.tag))

    def _followers(self, work: UnitOfWork) -> "Iterator[LeaseFollower]":
        """Yield a few calls that wait for what the transaction has made leasable: they lease in it too (ADR 20).

        Each call has leased before the next is chosen; the last one is that which takes the last task or finds nothing.
        """
        followers = 0
        for wake in work.all_wakes():
            left = wake.count
            while left > 0 and followers < MAX_FOLLOWERS and (taken := self._take(wake, 1)):
                followers += 1
                follower = LeaseFollower(taken[0])
                yield follower
                left -= follower.found
                if not follower.found:
                    break
            work.record_served(wake, wake.count - max(0, left))


class LeaseFollower:
    """A `Follower`: a call that waited. `found` is the number of tasks that it leased."""

    def __init__(self, call: LeaseCall) -> None:
        self.found = 0
        self._call = call

    def operation(self, work: UnitOfWork) -> LeaseAnswer:
        """See `Follower`."""
        answer = self._call.lease(work)
        self.found = len(answer.granted.leases)
        return answer

    def done(self, outcome: object) -> None:
        """See `Follower`."""
        self._call.proceed(outcome)

    def rolled_back(self) -> None:
        """See `Follower`."""
        self._call.wait()
