"""ThreadExecutor: threads that each lease, handle and delete tasks with a client of their own. For plain handlers."""

from collections.abc import Callable, Sequence
from contextvars import Context
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
from queue_core.worker.log_context import LogContext
from queue_core.worker.renewals import Renewals
from queue_core.worker.timeouts import Timeouts

RESERVATION_POLL_SECONDS: Final = 0.1
"""Seconds between two tries of a thread to reserve one of the worker's last tasks (see `reserve`)."""


class TaskExecutor(Protocol):
    """An executor runs as many handlers at a time as the worker's concurrency."""

    def start(self) -> None:
        """Start to lease."""

    def interrupt(self) -> None:
        """Interrupt waits for tasks, when the worker is ending."""

    def running(self) -> int:
        """Return the number of threads that have not finished, without those of calls that were left or are stuck."""


class ExecutorContext:
    """State shared by the threads of an executor: the app, the lease to request, renewals, timeouts and clients."""

    def __init__(
        self,
        app: App,
        offer: LeaseOffer,
        lifecycle: WorkerLifecycle,
        renewals: Renewals,
        timeouts: Timeouts,
        clients: QueueClients,
        *,
        on_invocation_end: Callable[[Invocation], None] | None = None,
    ) -> None:
        self.offer = offer
        self.lifecycle = lifecycle
        self.renewals = renewals
        self.timeouts = timeouts
        self.log_context = LogContext(lifecycle.settings.worker)
        self.variables = Context()
        """The context variables that the threads of handlers begin with: those that hooks set."""
        self._app = app
        self._clients = clients
        self._on_invocation_end = on_invocation_end
        self._logs_all = lifecycle.log.is_enabled_for(DEBUG)

    def lease_client(self) -> LeaseClient:
        """Open a lease client for one thread."""
        return LeaseClient(self._clients, self.lifecycle, tags=self.offer.tags)

    def begin(self, leases: Sequence[Lease], client: LeaseClient) -> Invocation | None:
        """Create the invocation for leases of one tag, filling up a batch that was leased short; renew its leases.

        None if all of them ended while the batch was filled up.
        """
        handler = self._handler(leases[0])
        leases = list(leases)
        if self.offer.tops_up and handler.batch is not None and handler.batch > 1:
            tag = leases[0].tag
            tags = UNTAGGED if tag is None else TagFilter.of(tag)
            if count := self.lifecycle.reserve(handler.batch - 1):
                more = client.top_up(count=count, tags=tags)
                self.lifecycle.record_leased(len(more), reserved=count)
                both = len(leases) + len(more)
                leases = client.in_force([*leases, *more])
                self.lifecycle.record_done(both - len(leases))
                if not leases:
                    return None
        invocation = Invocation(handler, leases, started_at=self.lifecycle.clock.monotonic())
        self.renewals.track(invocation, requested_at=client.requested_at)
        if handler.timeout_seconds is not None:
            self.timeouts.track(invocation)
        return invocation

    def end(self, invocation: Invocation, outcome: Outcome) -> Outcome:
        """Stop renewing and log, as the invocation's handler has ended; return the outcome to record.

        That of a call that was left comes too late.
        """
        if invocation.handler.timeout_seconds is not None and self.timeouts.untrack(invocation):
            invocation.error, outcome = invocation.timeout, InvocationFailed(())
        self.renewals.untrack(invocation)
        if self._on_invocation_end is not None:
            self._on_invocation_end(invocation)
        self.lifecycle.check_user()
        if self._logs_all:
            self.lifecycle.log.debug(
                events.HANDLER_FINISHED, **invocation.log_fields(now=self.lifecycle.clock.monotonic())
            )
        return outcome

    def unawaited(self) -> int:
        """Return the number of calls that still run, and that the worker's end does not wait for."""
        return self.timeouts.left() + self.renewals.stuck()

    def _handler(self, lease: Lease) -> Handler:
        handler = self._app.handler(lease.queue, lease.tag)
        if handler is None:
            raise LookupError(f"leased a task of tag {lease.tag!r}, for which {lease.queue!r} has no handler")
        return handler


class ThreadExecutor:
    """An executor with a thread per handler; an async handler runs in the event loop while its thread waits."""

    def __init__(self, context: ExecutorContext, *, count: int, loop: HandlerEventLoop | None) -> None:
        self._context = context
        self._loop = loop
        self._count = count
        self._begun = Event()
        self._after_invocation: Callable[[], None] = lambda: None
        self._clients: list[LeaseClient] = []
        self._ended: list[None] = []
        self._threads = [
            Thread(target=self._run_thread, name=f"towline-executor-{number}", daemon=True) for number in range(count)
        ]

    def caller_thread_loop(self) -> Callable[[Callable[[], None]], None] | None:
        """Return a function that runs the only thread's loop in its caller's thread, once `start` was called elsewhere.

        The function's argument is called after each handler. None when there are several threads.
        """
        if self._count != 1:
            return None
        self._threads.clear()

        def serve(after_invocation: Callable[[], None]) -> None:
            self._after_invocation = after_invocation
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
        for client in tuple(self._clients):
            client.interrupt()

    def running(self) -> int:
        """See `TaskExecutor.running`."""
        return self._count - len(self._ended) - self._context.unawaited()

    def _run_thread(self) -> None:
        self._context.variables.copy().run(self._run)

    def _run(self) -> None:
        lifecycle = self._context.lifecycle
        client: LeaseClient | None = None
        try:
            client = self._context.lease_client()
            self._clients.append(client)
            while not lifecycle.ending.is_set():
                count = lifecycle.reserve(self._context.offer.count)
                if not count:  # other threads have the last tasks of this worker
                    client.flush()
                    lifecycle.ending.wait(RESERVATION_POLL_SECONDS)
                    continue
                leases = client.exchange(count=count)
                lifecycle.record_leased(len(leases), reserved=count)
                if leases and lifecycle.ending.is_set():
                    client.give_back(leases)
                elif leases:
                    self._work(client, leases)
            client.flush()
        except BaseException as error:  # noqa: BLE001  the top of a thread: without it the worker would look alive and do nothing
            lifecycle.fail(error, thread="executor")
        finally:
            if client is not None:
                client.close()
            self._ended.append(None)
            lifecycle.wake()

    def _work(self, client: LeaseClient, leases: Sequence[Lease]) -> None:
        invocation = self._context.begin(leases, client)
        if invocation is None:
            return
        outcome = invocation.not_begun() or self._outcome(invocation)
        self._after_invocation()
        outcome = self._context.end(invocation, outcome)
        if isinstance(outcome, InvocationFailed):
            client.fail(outcome)
        else:
            client.finish(outcome)
        self._context.lifecycle.record_done(len(invocation.tasks))
        self._context.lifecycle.memory_is_back()

    def _outcome(self, invocation: Invocation) -> Outcome:
        if invocation.handler.is_async and self._loop is not None:
            return self._loop.result(invocation)
        lifecycle, name = self._context.lifecycle, invocation.handler.display_name
        try:
            value = invocation.run(self._context.log_context)
            lifecycle.forks.end_child(handler=name)
            return invocation.returned(value)
        except BaseException as error:  # noqa: BLE001  an exception of a handler is its own failure; the thread goes on
            lifecycle.spare.give()
            if lifecycle.forks.is_child() and isinstance(error, SystemExit):
                lifecycle.forks.end_child(handler=name, error=error)
            outcome = invocation.failed(error, now=lifecycle.clock.monotonic(), log=lifecycle.log)
            lifecycle.forks.end_child(handler=name, error=error)
            return outcome
