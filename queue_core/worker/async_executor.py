"""AsyncExecutor: many async handlers in one event loop, fed by two threads. For apps without plain handlers."""

from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Final

from queue_core.task import Lease
from queue_core.worker.event_loop import HandlerEventLoop
from queue_core.worker.invocation import Invocation, InvocationFailed, Outcome
from queue_core.worker.lease_client import LeaseClient
from queue_core.worker.thread_executor import ExecutorContext

MAX_TASKS_PER_FEED: Final = 100
"""Tasks that the feeder leases at a time, at most."""

ThreadBody = Callable[[LeaseClient], None]


class AsyncExecutor:
    """An executor of async handlers. A feeder thread leases as many tasks as can start, and deletes finished ones.

    While the feeder waits for tasks, a finisher thread deletes what finishes meanwhile. No task is leased in advance.
    """

    def __init__(self, context: ExecutorContext, *, count: int, loop: HandlerEventLoop) -> None:
        self._context = context
        self._loop = loop
        self._changed = Condition()
        self._free = count
        self._count = count
        self._outcomes: list[Outcome] = []
        self._is_waiting = False
        self._live_threads = 2
        self._feeder_client: LeaseClient | None = None
        self._threads = [
            Thread(target=self._run, args=(body,), name=f"towline-{name}", daemon=True)
            for name, body in (("feeder", self._feed), ("finisher", self._finish))
        ]

    def start(self) -> None:
        """See `TaskExecutor.start`."""
        for thread in self._threads:
            thread.start()

    def interrupt(self) -> None:
        """See `TaskExecutor.interrupt`."""
        client = self._feeder_client
        if client is not None:
            client.interrupt()
        with self._changed:
            self._changed.notify_all()

    def running(self) -> int:
        """See `TaskExecutor.running`."""
        with self._changed:
            return self._live_threads

    def _run(self, body: ThreadBody) -> None:
        lifecycle = self._context.lifecycle
        client: LeaseClient | None = None
        try:
            client = self._context.lease_client()
            body(client)
        except BaseException as error:  # noqa: BLE001  the top of a thread: a worker without it would look alive and do nothing
            lifecycle.fail(error, thread="executor")
        finally:
            if client is not None:
                client.close()
            with self._changed:
                self._live_threads -= 1
                self._changed.notify_all()
            lifecycle.wake()

    def _feed(self, client: LeaseClient) -> None:
        self._feeder_client = client
        lifecycle = self._context.lifecycle
        ending = lifecycle.ending
        while not ending.is_set():
            free = self._wait_for_free()
            if free == 0:
                break
            self._record_outcomes(client, self._take_outcomes())
            offer = self._context.offer
            count = min(free, MAX_TASKS_PER_FEED) if offer.count == 1 and not offer.tops_up else offer.count
            count = lifecycle.reserve(count)
            if not count:
                client.flush()
                self._wait_for_end()
                break
            leases = client.exchange(count=count, wait="poll") or self._wait_for_work(client, count)
            lifecycle.record_leased(len(leases), reserved=count)
            if leases and ending.is_set():
                client.give_back(leases)
            elif leases:
                self._start(client, leases)
        client.flush()

    def _finish(self, client: LeaseClient) -> None:
        ending = self._context.lifecycle.ending
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finisher_is_needed() or self._has_ended())
                if not self._finisher_is_needed():
                    return
                outcomes = self._take_outcomes()
            self._record_outcomes(client, outcomes)
            client.flush()
            if ending.is_set():
                self._context.lifecycle.wake()

    def _finisher_is_needed(self) -> bool:
        return bool(self._outcomes) and (self._is_waiting or self._context.lifecycle.ending.is_set())

    def _has_ended(self) -> bool:
        lifecycle = self._context.lifecycle
        all_done = self._free + self._context.unawaited() == self._count and self._live_threads == 1
        return lifecycle.over.is_set() or (lifecycle.ending.is_set() and all_done)

    def _wait_for_free(self) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or self._context.lifecycle.ending.is_set())
            return 0 if self._context.lifecycle.ending.is_set() else self._free

    def _wait_for_end(self) -> None:
        """Sleep until the worker ends: it has leased all the tasks that its recycle limit allows."""
        with self._changed:
            self._is_waiting = True
            self._changed.notify_all()
            self._changed.wait_for(self._context.lifecycle.ending.is_set)
            self._is_waiting = False

    def _wait_for_work(self, client: LeaseClient, count: int) -> list[Lease]:
        with self._changed:
            self._is_waiting = True
            self._changed.notify_all()
        try:
            return client.exchange(count=count)
        finally:
            with self._changed:
                self._is_waiting = False

    def _start(self, client: LeaseClient, leases: Sequence[Lease]) -> None:
        """Start one invocation per task, or one for the whole batch."""
        if self._context.offer.count == 1 and not self._context.offer.tops_up:
            begun = [self._context.begin([lease], client) for lease in leases]
        else:
            begun = [self._context.begin(leases, client)]
        invocations = [invocation for invocation in begun if invocation is not None]
        with self._changed:
            self._free -= len(invocations)
        for invocation in invocations:
            self._loop.submit(invocation, self._ended)

    def _ended(self, invocation: Invocation, outcome: Outcome) -> None:
        """Pass the outcome, from the loop's thread, to the threads that may block."""
        outcome = self._context.end(invocation, outcome)
        with self._changed:
            self._free += 1
            self._outcomes.append(outcome)
            self._changed.notify_all()
        self._context.lifecycle.record_done(len(invocation.tasks))

    def _take_outcomes(self) -> list[Outcome]:
        with self._changed:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    @staticmethod
    def _record_outcomes(client: LeaseClient, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, InvocationFailed):
                client.fail(outcome)
            else:
                client.finish(outcome)
