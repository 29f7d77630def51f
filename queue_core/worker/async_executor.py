"""LoopSlots: any number of async handlers in one event loop, fed by two threads. For apps without plain handlers."""

from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Final

from queue_core.task import Lease
from queue_core.worker.event_loop import HandlerEventLoop
from queue_core.worker.invocation import Invocation, InvocationFailed, Outcome
from queue_core.worker.lease_client import LeaseClient
from queue_core.worker.thread_executor import ExecutorContext

MAX_TASKS_PER_FEED: Final = 100

Part = Callable[[LeaseClient], None]


class AsyncExecutor:
    """The feeder leases as many tasks as there are free slots, and deletes what finished in the same exchange.

    While the feeder waits for work, the finisher deletes what finishes meanwhile. No task is leased ahead of a slot.
    """

    def __init__(self, bench: ExecutorContext, *, count: int, loop: HandlerEventLoop) -> None:
        self._bench = bench
        self._loop = loop
        self._changed = Condition()
        self._free = count
        self._count = count
        self._outcomes: list[Outcome] = []
        self._is_waiting = False
        self._live_threads = 2
        self._feeder_link: LeaseClient | None = None
        self._threads = [
            Thread(target=self._run, args=(part,), name=f"towline-{name}", daemon=True)
            for name, part in (("feeder", self._feed), ("finisher", self._finish))
        ]

    def start(self) -> None:
        """See `Slots.start`."""
        for thread in self._threads:
            thread.start()

    def interrupt(self) -> None:
        """See `Slots.interrupt`."""
        link = self._feeder_link
        if link is not None:
            link.interrupt()
        with self._changed:
            self._changed.notify_all()

    def running(self) -> int:
        """See `Slots.running`."""
        with self._changed:
            return self._live_threads

    def _run(self, part: Part) -> None:
        shift = self._bench.shift
        link: LeaseClient | None = None
        try:
            link = self._bench.link()
            part(link)
        except BaseException:  # noqa: BLE001  the top of a thread: a worker without it would look alive and do nothing
            shift.fail(thread="slots")
        finally:
            if link is not None:
                link.close()
            with self._changed:
                self._live_threads -= 1
                self._changed.notify_all()
            shift.nudge()

    def _feed(self, link: LeaseClient) -> None:
        self._feeder_link = link
        shift = self._bench.shift
        ending = shift.ending
        while not ending.is_set():
            free = self._wait_for_free()
            if free == 0:
                break
            self._settle(link, self._take())
            offer = self._bench.offer
            count = min(free, MAX_TASKS_PER_FEED) if offer.count == 1 and not offer.tops_up else offer.count
            count = shift.book(count)
            if not count:
                link.flush()
                self._wait_for_end()
                break
            leases = link.next(count=count, wait="look") or self._wait_for_work(link, count)
            shift.leased(len(leases), booked=count)
            if leases and ending.is_set():
                link.give_back(leases)
            elif leases:
                self._start(link, leases)
        link.flush()

    def _finish(self, link: LeaseClient) -> None:
        ending = self._bench.shift.ending
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finisher_is_needed() or self._has_ended())
                if not self._finisher_is_needed():
                    return
                outcomes = self._take()
            self._settle(link, outcomes)
            link.flush()
            if ending.is_set():
                self._bench.shift.nudge()

    def _finisher_is_needed(self) -> bool:
        return bool(self._outcomes) and (self._is_waiting or self._bench.shift.ending.is_set())

    def _has_ended(self) -> bool:
        shift = self._bench.shift
        all_done = self._free == self._count and self._live_threads == 1
        return shift.over.is_set() or (shift.ending.is_set() and all_done)

    def _wait_for_free(self) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or self._bench.shift.ending.is_set())
            return 0 if self._bench.shift.ending.is_set() else self._free

    def _wait_for_end(self) -> None:
        """All is leased that this worker may lease: it ends when that is done."""
        with self._changed:
            self._is_waiting = True
            self._changed.notify_all()
            self._changed.wait_for(self._bench.shift.ending.is_set)
            self._is_waiting = False

    def _wait_for_work(self, link: LeaseClient, count: int) -> list[Lease]:
        with self._changed:
            self._is_waiting = True
            self._changed.notify_all()
        try:
            return link.next(count=count)
        finally:
            with self._changed:
                self._is_waiting = False

    def _start(self, link: LeaseClient, leases: Sequence[Lease]) -> None:
        """One call per task, or one for the whole batch; each takes a slot."""
        if self._bench.offer.count == 1 and not self._bench.offer.tops_up:
            calls = [self._bench.begin([lease], link) for lease in leases]
        else:
            calls = [self._bench.begin(leases, link)]
        with self._changed:
            self._free -= len(calls)
        for call in calls:
            self._loop.call(call, self._ended)

    def _ended(self, call: Invocation, outcome: Outcome) -> None:
        """In the loop's thread: note it, and let the threads do what may block."""
        self._bench.end(call)
        with self._changed:
            self._free += 1
            self._outcomes.append(outcome)
            self._changed.notify_all()
        self._bench.shift.count_tasks(len(call.tasks))

    def _take(self) -> list[Outcome]:
        with self._changed:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    @staticmethod
    def _settle(link: LeaseClient, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, InvocationFailed):
                link.fail(outcome)
            else:
                link.finish(outcome)
