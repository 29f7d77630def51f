"""Runner: one worker from its first lease to its exit. It monitors the executor, and drains it when it must end."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from queue_core.client.queue import Queue
from queue_core.clock import Clock, SystemClock
from queue_core.errors import AppError, QueueError
from queue_core.log import get_logger
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.async_executor import AsyncExecutor
from queue_core.worker.context import Task
from queue_core.worker.event_loop import BLOCKED_SECONDS, HandlerEventLoop
from queue_core.worker.hook_runner import SHORTEST_STOP_SECONDS, HookRunner
from queue_core.worker.invocation import Invocation
from queue_core.worker.lease_client import LeaseClient, QueueClients
from queue_core.worker.lifecycle import EXIT_OK, EXIT_UNREACHABLE, LifecycleEnd, WorkerLifecycle
from queue_core.worker.own_memory import OwnMemory
from queue_core.worker.renewals import Renewals
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.thread_executor import ExecutorContext, TaskExecutor, ThreadExecutor
from queue_core.worker.timeouts import CLEAN_UP_SECONDS, Timeouts


def supervisor_lives(lock: Path) -> bool:
    """Return whether a process holds the lock; False when the file is gone or unreadable."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that workers that check at the same moment do not take each other for the supervisor.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class OrphanWatch:
    """A watch that measures how long the supervisor has been absent."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._absent_since: float | None = None

    def absent_seconds(self, *, now: float) -> float:
        """Return the seconds since a call first found the lock free; 0 while it is held."""
        if supervisor_lives(self._lock):
            self._absent_since = None
            return 0.0
        if self._absent_since is None:
            self._absent_since = now
        return now - self._absent_since


WATCH_SECONDS: Final = 1.0
"""Seconds between two checks of the worker's age, memory, supervisor and reach of the queue."""
DRAIN_WATCH_SECONDS: Final = 0.5
"""The same while the worker drains."""
MAX_NAMED: Final = 10
"""Tasks that the log entry of a drain names."""
UNWIND_SECONDS: Final = 1.0
"""Seconds that cancelled async handlers may take to clean up after their tasks were released. Must fit into the
supervisor's margin, which kills a worker 2 s after its grace (`DRAIN_MARGIN_SECONDS`)."""


class Runner:
    """A worker: it leases, handles, renews and deletes up to `settings.concurrency` tasks at a time, until it must end.

    `run` may be called once. `drain` may be called from any thread and from a signal handler.
    """

    def __init__(
        self,
        app: App,
        settings: WorkerSettings,
        *,
        open_queue: Callable[[str], Queue],
        open_waiting: Callable[[str], Queue] | None = None,
        clock: Clock | None = None,
        watch_seconds: float = WATCH_SECONDS,
        blocked_seconds: float = BLOCKED_SECONDS,
        clean_up_seconds: float = CLEAN_UP_SECONDS,
        recycled_code: int = EXIT_OK,
        on_last_lease: Callable[[], None] = lambda: None,
        on_invocation_end: Callable[[Invocation], None] | None = None,
    ) -> None:
        """Create the executor for the settings; `run` starts it.

        Args:
            open_queue: opens the client of a queue that all threads share.
            open_waiting: opens a client for one waiting thread, whose wait `close` interrupts; None where a wait can't
                be interrupted.
            watch_seconds: seconds between two checks whether the worker must end.
            blocked_seconds: least time for which the event loop of async handlers may be blocked.
            clean_up_seconds: time in which an async handler that was cancelled at its timeout must end.
            recycled_code: exit code of a worker that reached a recycle limit.
            on_last_lease: called, from any thread, when a worker with a limit of tasks has leased the last of them.
            on_invocation_end: called, in the handler's thread or the loop's, when a handler has ended.

        Raises `AppError` when the app has no handlers for the queue and tags of the settings.
        """
        queue = _queue_of(app, settings)
        offer = app.offer(queue, settings.tags)
        log = get_logger().bind(worker=settings.worker, queue=queue)
        self._lifecycle = WorkerLifecycle(
            settings, queue=queue, clock=clock or SystemClock(), log=log, on_last_lease=on_last_lease
        )
        waiting = None if open_waiting is None else lambda: open_waiting(queue)
        self._clients = QueueClients(open_queue(queue), waiting)
        self._renewals = Renewals(self._clients.shared, self._lifecycle)
        self._timeouts = Timeouts(self._lifecycle, self._renewals, self._client, clean_up_seconds=clean_up_seconds)
        self._context = ExecutorContext(
            app,
            offer,
            self._lifecycle,
            self._renewals,
            self._timeouts,
            self._clients,
            on_invocation_end=on_invocation_end,
        )
        handlers = app.serving(queue, settings.tags)
        app.prepare(handlers)
        self._has_timeouts = any(handler.timeout_seconds is not None for handler in handlers)
        self._loop = (
            HandlerEventLoop(self._lifecycle, blocked_seconds=blocked_seconds)
            if any(handler.is_async for handler in handlers) or app.hooks.need_loop
            else None
        )
        self._hooks = HookRunner(app.hooks, self._loop, self._lifecycle)
        self._is_started = False
        self._executor = self._make_executor(all_async=all(handler.is_async for handler in handlers))
        lock = settings.supervisor_lock
        self._memory = OwnMemory(is_forked=settings.is_forked)
        self._orphan_watch = OrphanWatch(lock) if lock is not None else None
        self._watch_seconds = watch_seconds
        self._is_abandoned = False
        self._stops_in_caller = False
        self._recycled_code = recycled_code
        self._grace_ends_at = 0.0

    @property
    def queue(self) -> str:
        """Return the queue that it serves."""
        return self._lifecycle.queue

    @property
    def tasks_done(self) -> int:
        """Return how many tasks have ended."""
        return self._lifecycle.tasks_done

    @property
    def is_abandoned(self) -> bool:
        """Return whether handlers still run although the drain is over: the process must end without them."""
        return self._is_abandoned

    def grace_left_seconds(self) -> float:
        """Return the seconds of the grace left after `run` has returned; negative when it is over."""
        return self._grace_ends_at - self._lifecycle.clock.monotonic()

    def caller_thread_loop(self) -> Callable[[Callable[[], None]], None] | None:
        """Return a function that runs the only handler thread's loop in its caller's thread; call `run` in another.

        The function's argument is called after each handler. None with a concurrency above 1 or async handlers only.
        Call this before `run`.
        """
        serve = self._executor.caller_thread_loop() if isinstance(self._executor, ThreadExecutor) else None
        if serve is None:
            return None
        self._stops_in_caller = True

        def serve_and_stop(after_invocation: Callable[[], None]) -> None:
            try:
                serve(after_invocation)
            finally:
                self._hooks.stop(grace_left_seconds=self._hook_seconds)

        return serve_and_stop

    def start(self) -> None:
        """Start the renewals and the event loop, and run the app's `on_start` hooks in this thread; `run` goes on.

        Raises `AppError` for a hook that fails; nothing was leased then, and nothing runs.
        """
        self._is_started = True
        self._renewals.start()
        if self._has_timeouts:
            self._timeouts.start()
        if self._loop is not None:
            self._loop.start()
        try:
            self._hooks.start()
            self._context.variables = self._hooks.context
            if self._loop is not None:
                self._loop.adopt(self._hooks.context)
        except BaseException:
            self._renewals.close()
            self._timeouts.close()
            if self._loop is not None:
                self._loop.close(timeout_seconds=UNWIND_SECONDS)
            raise

    def drain(self, reason: str) -> None:
        """Lease no more, let running handlers finish within the grace, release the rest, and make `run` return."""
        self._lifecycle.request_end(LifecycleEnd(events.WORKER_DRAINING, reason))

    def release_now(self, reason: str) -> None:
        """Drain without a grace."""
        self._lifecycle.request_end(LifecycleEnd(events.WORKER_DRAINING, reason, urgency="release"))

    def run(self) -> int:
        """Run the worker until it ends, and return the exit code. Raises as `start`, unless that was called before."""
        if not self._is_started:
            self.start()
        lifecycle = self._lifecycle
        settings = lifecycle.settings
        lifecycle.log.info(
            events.WORKER_STARTED,
            pool=settings.pool,
            tags=list(self._context.offer.tags.tags) or self._context.offer.tags.kind,
            concurrency=settings.concurrency,
        )
        self._executor.start()
        ending = self._watch()
        lifecycle.stop_reason = ending.reason
        lifecycle.ending.set()
        lifecycle.log.info(ending.event, reason=ending.reason, tasks=lifecycle.tasks_done, **self._held_fields())
        self._executor.interrupt()
        ending = self._finish(ending)
        self._drain(ending)
        lifecycle.log.info(
            events.WORKER_DRAINED,
            reason=ending.reason,
            code=ending.code,
            tasks=lifecycle.tasks_done,
            seconds=round(lifecycle.clock.monotonic() - lifecycle.started_at, 3),
        )
        return self._recycled_code if ending.event == events.WORKER_RECYCLED else ending.code

    def _held_fields(self) -> dict[str, object]:
        """Return which tasks are worked on, for how many seconds each, and the grace that they have."""
        held = self._renewals.held()
        if not held:
            return {}
        now = self._lifecycle.clock.monotonic()
        named = [{"task": task.name, "seconds": round(now - began, 3)} for task, began in held[:MAX_NAMED]]
        return {"held": named, "held_total": len(held), "grace_seconds": self._lifecycle.settings.grace_seconds}

    def _make_executor(self, *, all_async: bool) -> TaskExecutor:
        count = self._lifecycle.settings.concurrency
        if all_async and self._loop is not None:
            return AsyncExecutor(self._context, count=count, loop=self._loop)
        return ThreadExecutor(self._context, count=count, loop=self._loop)

    def _watch(self) -> LifecycleEnd:
        """Sleep until a request to end, and check the limits meanwhile."""
        while True:
            ending = self._lifecycle.next_end_request(timeout_seconds=self._watch_seconds)
            if ending is not None:
                return ending
            self._check_limits()

    def _check_limits(self) -> None:
        lifecycle, settings = self._lifecycle, self._lifecycle.settings
        lifecycle.check_user()
        if self._loop is not None:
            self._loop.check()
        bounds = settings.recycle
        limit = bounds.memory_bytes
        if bounds.age_seconds is not None or limit is not None:
            now = lifecycle.clock.monotonic()
            lifecycle.recycle(memory_bytes=0 if limit is None else self._memory.measure(limit_bytes=limit, now=now))
        if self._orphan_watch is not None:
            absent_seconds = self._orphan_watch.absent_seconds(now=lifecycle.clock.monotonic())
            if absent_seconds > settings.orphan_grace_seconds:
                lifecycle.end(LifecycleEnd(events.WORKER_ORPHANED, f"no supervisor for {absent_seconds:.1f} s"))
        unreached_seconds = lifecycle.unreached_seconds()
        if unreached_seconds > settings.unreachable_seconds:
            reason = f"no answer from the queue for {unreached_seconds:.1f} s"
            lifecycle.end(LifecycleEnd(events.WORKER_DRAINING, reason, EXIT_UNREACHABLE))

    def _finish(self, ending: LifecycleEnd) -> LifecycleEnd:
        """Sleep until the executor has finished, or a more urgent request to end; return the last request."""
        while ending.urgency == "finish" and self._is_busy():
            request = self._lifecycle.next_end_request(timeout_seconds=min(self._watch_seconds, DRAIN_WATCH_SECONDS))
            if request is None:
                self._check_limits()
            elif request.urgency == "finish":
                self._executor.interrupt()  # one more call was left, for which nobody is to wait
            else:
                ending = request
                self._lifecycle.stop_reason = ending.reason
                self._lifecycle.log.info(
                    ending.event, reason=ending.reason, tasks=self._lifecycle.tasks_done, **self._held_fields()
                )
        return ending

    def _drain(self, ending: LifecycleEnd) -> None:
        lifecycle = self._lifecycle
        now = lifecycle.clock.monotonic()
        self._grace_ends_at = now + (0.0 if ending.urgency == "release" else lifecycle.settings.grace_seconds)
        self._wait_for_executor(until=self._grace_ends_at)
        lifecycle.over.set()
        self._release(self._renewals.abandon())
        self._renewals.close()
        self._timeouts.close()
        self._executor.interrupt()
        self._stop_hooks()
        has_unwound = self._loop is None or self._loop.close(timeout_seconds=UNWIND_SECONDS)
        if not has_unwound and self._loop is not None and ending.code == EXIT_OK:  # else it was logged what hangs
            lifecycle.log.warning(
                events.HANDLER_STUCK,
                reason=f"cancelled, but still cleaning up after {UNWIND_SECONDS:g} s",
                handlers=self._loop.running(),
            )
        if has_unwound and self._loop is not None:
            self._wait_for_executor(until=lifecycle.clock.monotonic() + UNWIND_SECONDS)
        self._is_abandoned = not has_unwound or self._executor.running() > 0 or self._context.unawaited() > 0

    def _is_busy(self) -> bool:
        return self._executor.running() > 0 or self._timeouts.unreleased() > 0

    def _client(self) -> LeaseClient:
        """Open a client that releases, and never waits."""
        return LeaseClient(QueueClients(self._clients.shared), self._lifecycle, tags=self._context.offer.tags)

    def _stop_hooks(self) -> None:
        """Run the `on_stop` hooks, or wait until the thread of the handlers has; not while it is stuck in one."""
        if not self._stops_in_caller:
            self._hooks.stop(grace_left_seconds=self._hook_seconds)
        elif not (self._executor.running() or self._context.unawaited()):
            self._hooks.wait_until_stopped(timeout_seconds=max(SHORTEST_STOP_SECONDS, self._hook_seconds()))

    def _hook_seconds(self) -> float:
        """Return the seconds that hooks may take now: the rest of the grace, all of it before the drain has begun."""
        return self.grace_left_seconds() if self._grace_ends_at else self._lifecycle.settings.grace_seconds

    def _wait_for_executor(self, *, until: float) -> None:
        """Sleep until the executor has finished, the time is up, or the leases are to be released at once."""
        while self._is_busy() and (left := until - self._lifecycle.clock.monotonic()) > 0:
            request = self._lifecycle.next_end_request(timeout_seconds=min(left, DRAIN_WATCH_SECONDS))
            if request is not None and request.urgency == "release":
                held = self._held_fields()
                self._lifecycle.log.info(request.event, reason=request.reason, tasks=self._lifecycle.tasks_done, **held)
                self._grace_ends_at = self._lifecycle.clock.monotonic()
                return

    def _release(self, rest: list[Task]) -> None:
        """Release the tasks that no handler finished in time: leasable at once, and the lease is not counted.

        Leases of a handler that ended or blocked the loop are counted, or its task would do so for ever.
        """
        if not rest:
            return
        blamed = self._loop.blamed_tokens() if self._loop is not None else frozenset[str]()
        try:
            client = self._client()
            client.give_back_unfinished([task for task in rest if task.lease.token not in blamed])
            if self._loop is not None:
                at_fault = [task for task in rest if task.lease.token in blamed]
                client.give_back_unfinished(at_fault, blamed=self._loop.failure)
        except QueueError as error:
            self._lifecycle.log.warning(events.QUEUE_UNREACHED, error=str(error), verb="release", count=len(rest))


def _queue_of(app: App, settings: WorkerSettings) -> str:
    if settings.queue:
        return settings.queue
    if len(app.queues) != 1:
        found = ", ".join(app.queues) or "none"
        raise AppError(f"which queue? the app has handlers for: {found}; name one by TOWLINE_QUEUE or --queue")
    return app.queues[0]
