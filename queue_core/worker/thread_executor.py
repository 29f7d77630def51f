"""ThreadSlots: each slot is a thread that leases, handles and deletes over a line of its own. For plain handlers."""

from collections.abc import Callable, Sequence
from logging import DEBUG
from threading import Event, Thread
from typing import Final, Protocol

from queue_core.task import UNTAGGED, Lease, TagFilter
from queue_core.worker import events
from queue_core.worker.app import App, Handler, LeaseOffer
from queue_core.worker.event_loop import HandlerEventLoop
from queue_core.worker.invocation import Invocation, InvocationFailed, Outcome
from queue_core.worker.lease_client import LeaseClient, QueueClients
from queue_core.worker.lifecycle import WorkerLifecycle
from queue_core.worker.renewals import Renewals

BOOKED_OUT_SECONDS: Final = 0.1
"""Between two looks of a slot whether others have left something of the worker's last tasks."""


class TaskExecutor(Protocol):
    """As many places for running handlers as the worker's concurrency."""

    def start(self) -> None:
        """Begin to lease."""

    def interrupt(self) -> None:
        """The shift is ending: cut waits for work short."""

    def running(self) -> int:
        """Slots that have not come to an end."""


class ExecutorContext:
    """What slots share: which handler takes which task, and the renewals that keep it theirs."""

    def __init__(
        self,
        app: App,
        offer: LeaseOffer,
        shift: WorkerLifecycle,
        renewals: Renewals,
        lines: QueueClients,
        *,
        on_call_end: Callable[[Invocation], None] | None = None,
    ) -> None:
        self.offer = offer
        self.shift = shift
        self.renewals = renewals
        self._app = app
        self._lines = lines
        self._on_call_end = on_call_end
        self._tells_all = shift.log.is_enabled_for(DEBUG)

    def link(self) -> LeaseClient:
        """A line to the queue for one more thread."""
        return LeaseClient(self._lines, self.shift, tags=self.offer.tags)

    def begin(self, leases: Sequence[Lease], link: LeaseClient) -> Invocation:
        """Put leases of one tag into the hands of their handler; a batch that was leased short is filled up."""
        handler = self._handler(leases[0])
        leases = list(leases)
        if self.offer.tops_up and handler.batch is not None and handler.batch > 1:
            tag = leases[0].tag
            tags = UNTAGGED if tag is None else TagFilter.of(tag)
            if count := self.shift.book(handler.batch - 1):
                more = link.top_up(count=count, tags=tags)
                self.shift.leased(len(more), booked=count)
                leases += more
        call = Invocation(handler, leases, started_at=self.shift.clock.monotonic())
        self.renewals.hold(call)
        return call

    def end(self, call: Invocation) -> None:
        """Its handler has come to an end."""
        self.renewals.drop(call)
        if self._on_call_end is not None:
            self._on_call_end(call)
        self.shift.look_at_user()
        if self._tells_all:
            self.shift.log.debug(events.HANDLER_FINISHED, **call.told(now=self.shift.clock.monotonic()))

    def _handler(self, lease: Lease) -> Handler:
        handler = self._app.handler(lease.queue, lease.tag)
        if handler is None:
            raise LookupError(f"leased a task of tag {lease.tag!r}, for which {lease.queue!r} has no handler")
        return handler


class ThreadExecutor:
    """Plain handlers run in their slot's thread; an async one among them runs in the loop while its slot waits."""

    def __init__(self, bench: ExecutorContext, *, count: int, loop: HandlerEventLoop | None) -> None:
        self._bench = bench
        self._loop = loop
        self._count = count
        self._begun = Event()
        self._after_call: Callable[[], None] = _nothing
        self._links: list[LeaseClient] = []
        self._ended: list[None] = []
        self._threads = [Thread(target=self._run, name=f"towline-slot-{slot}", daemon=True) for slot in range(count)]

    def lend(self) -> Callable[[Callable[[], None]], None] | None:
        """Have the only slot run where the value is called, once `start` was called elsewhere; None if there are more.

        The value's argument is called after each handler.
        """
        if self._count != 1:
            return None
        self._threads.clear()

        def serve(after_call: Callable[[], None]) -> None:
            self._after_call = after_call
            self._begun.wait()
            self._run()

        return serve

    def start(self) -> None:
        """See `TaskExecutor.start`."""
        self._begun.set()
        for thread in self._threads:
            thread.start()

    def interrupt(self) -> None:
        """See `TaskExecutor.interrupt`."""
        for link in tuple(self._links):
            link.interrupt()

    def running(self) -> int:
        """See `TaskExecutor.running`."""
        return self._count - len(self._ended)

    def _run(self) -> None:
        shift = self._bench.shift
        link: LeaseClient | None = None
        try:
            link = self._bench.link()
            self._links.append(link)
            while not shift.ending.is_set():
                count = shift.book(self._bench.offer.count)
                if not count:  # other slots are at the last tasks of this worker
                    link.flush()
                    shift.ending.wait(BOOKED_OUT_SECONDS)
                    continue
                leases = link.next(count=count)
                shift.leased(len(leases), booked=count)
                if leases and shift.ending.is_set():
                    link.give_back(leases)
                elif leases:
                    self._work(link, leases)
            link.flush()
        except BaseException:  # noqa: BLE001  the top of a thread: a worker with a dead slot would look alive and do nothing
            shift.fail(thread="slot")
        finally:
            if link is not None:
                link.close()
            self._ended.append(None)
            shift.nudge()

    def _work(self, link: LeaseClient, leases: Sequence[Lease]) -> None:
        call = self._bench.begin(leases, link)
        outcome = self._outcome(call)
        self._after_call()
        self._bench.end(call)
        if isinstance(outcome, InvocationFailed):
            link.fail(outcome)
        else:
            link.finish(outcome)
        self._bench.shift.count_tasks(len(call.tasks))

    def _outcome(self, call: Invocation) -> Outcome:
        if call.handler.is_async and self._loop is not None:
            return self._loop.result(call)
        shift, name = self._bench.shift, call.handler.shown_name
        try:
            value = call.run()
            shift.forks.end_child(handler=name)
            return call.returned(value)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is its own failure, the slot lives on
            if shift.forks.is_child() and isinstance(error, SystemExit):
                shift.forks.end_child(handler=name, error=error)
            outcome = call.raised(error, now=shift.clock.monotonic(), log=shift.log)
            shift.forks.end_child(handler=name, error=error)
            return outcome


def _nothing() -> None:
    """No more than the slot itself is to be looked after."""
