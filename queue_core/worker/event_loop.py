"""HandlerEventLoop: the event loop of async handlers, in a thread of its own, with a check whether it is blocked."""

import asyncio
import contextlib
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, ContextVar
from dataclasses import replace
from threading import Thread
from types import FrameType
from typing import Any, Final

from queue_core.attempts.attempt import Failure
from queue_core.attempts.error_text import name_of, parts_of
from queue_core.attempts.failures import failure_message, failure_of, host_name
from queue_core.clock import seconds_between
from queue_core.worker import events
from queue_core.worker.code_lines import (
    MAX_FRAMES,
    MAX_LINES_SHOWN,
    CodeLine,
    line_of,
    lines_from,
    place_of_lines,
    shown_lines,
)
from queue_core.worker.context import Timeout
from queue_core.worker.invocation import Invocation, InvocationFailed, Outcome, traceback_without
from queue_core.worker.lifecycle import EXIT_HUNG, EXIT_LOOP_ENDED, LifecycleEnd, WorkerLifecycle
from queue_core.worker.log_context import LogContext

OnDone = Callable[[Invocation, Outcome], None]

BLOCKED_WARNED_SECONDS: Final = 5.0
"""Seconds after which a blocked loop is logged, with the line of code it is at."""
BLOCKED_SECONDS: Final = 60.0
"""Seconds after which a loop blocked for longer than each lease of its handlers ends the worker. Long enough for a
blocking call that does return; a queue's longer `lease` allows longer ones."""
MAX_SECONDS_PER_CHECK: Final = 2.0
"""Most seconds that one check adds to the blocked time: when the whole process stood still (a handler that holds the
interpreter lock, SIGSTOP, a suspended host), the loop may not be to blame."""
MAX_ESCAPES: Final = 100
"""Exceptions that may escape from the loop before its thread ends."""
MAX_STACK_ENTRIES: Final = 12
"""Entries of a blocked loop's stack that are logged."""

_INVOCATION: ContextVar[Invocation | None] = ContextVar("towline_call", default=None)
"""The invocation that an asyncio task belongs to, including tasks started by a handler."""


class HandlerEventLoop:
    """The event loop that runs async handlers, submitted from any thread; it cancels an invocation without leases once.

    A child task's `SystemExit` or `KeyboardInterrupt` ends a loop, and so the worker: the invocation that started the
    child has failed, the tasks of the others are released uncounted.
    """

    def __init__(self, lifecycle: WorkerLifecycle, *, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._lifecycle = lifecycle
        self._log_context = LogContext(lifecycle.settings.worker)
        self._context = self._log_context.base(lifecycle.queue)
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._serve, name="towline-handlers", daemon=True)
        self._invocations: dict[Invocation, None] = {}
        self._running: dict[asyncio.Task[None], Invocation] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        self._end: asyncio.Task[None] | None = None  # the loop itself keeps no strong reference
        self._is_lost = False
        self._blamed: frozenset[str] = frozenset()
        self._failure = Failure()
        self._checked_at = 0.0
        self._blocked_for_seconds = 0.0
        self._has_responded = True
        self._is_warned = False

    def start(self) -> None:
        """Start the loop's thread."""
        self._thread.start()
        loop, thread = weakref.ref(self._loop), self._thread
        os.register_at_fork(after_in_child=lambda: _stop_in_child(loop(), thread))

    def submit(self, invocation: Invocation, on_done: OnDone) -> None:
        """Run the handler; `then` is called in the loop's thread with the outcome, and must not block."""
        invocation.is_alive = self.is_alive
        self._invocations[invocation] = None
        self._loop.call_soon_threadsafe(self._begin, invocation, on_done, context=self._context)

    def result(self, invocation: Invocation) -> Outcome:
        """Run the handler, block until it ends, and return the outcome."""
        future: Future[Outcome] = Future()
        self.submit(invocation, lambda _, outcome: future.set_result(outcome))
        return future.result()

    def adopt(self, context: Context) -> None:
        """Run handlers in copies of this context from now on: context variables that hooks set are theirs."""
        self._context = self._log_context.base(self._lifecycle.queue, context)

    def complete(
        self,
        coroutine: Coroutine[Any, Any, object],
        *,
        context: Context | None = None,
        timeout_seconds: float | None = None,
    ) -> object:
        """Run a hook's coroutine, block until it ends, and return its value. Raises `TimeoutError`.

        `context`: the context it runs in, and changes.
        """

        async def run() -> object:
            return await self._loop.create_task(coroutine, context=context)

        running = run()
        try:
            future = asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError:  # the loop is closed
            running.close()
            coroutine.close()
            raise
        try:
            return future.result(timeout_seconds)
        except TimeoutError:
            future.cancel()
            raise

    def answers(self, *, timeout_seconds: float) -> bool:
        """Sleep until the loop runs a callback; return False at the timeout, or when it is closed: it is blocked."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it is closed
            return False
        return answered.wait(timeout_seconds)

    def is_alive(self) -> bool:
        """Return whether the loop still runs; after that no lease of its handlers is renewed."""
        return not self._is_lost

    def blamed_tokens(self) -> frozenset[str]:
        """Return the tokens of leases whose handlers may have ended or blocked the loop; empty while it runs."""
        return self._blamed

    @property
    def failure(self) -> Failure:
        """The failure of the leases in `blamed_tokens`: why the loop ended, or where it was blocked."""
        return self._failure

    def check(self) -> None:
        """Detect a blocked loop; call this about once a second, from another thread."""
        now = self._lifecycle.clock.monotonic()
        if self._has_responded:
            self._blocked_for_seconds, self._is_warned = 0.0, False
            if self._invocations and not self._is_lost:
                self._has_responded = False
                with contextlib.suppress(RuntimeError):  # it is closed
                    self._loop.call_soon_threadsafe(self._respond)
        else:
            self._blocked_for_seconds += min(MAX_SECONDS_PER_CHECK, now - self._checked_at)
        self._checked_at = now
        bound = max([self._blocked_seconds, *map(_longest_lease_seconds, tuple(self._invocations))])
        if self._blocked_for_seconds >= bound and not self._is_lost:
            self._lose(
                self._current_invocation(),
                f"the event loop of async handlers was blocked for {self._blocked_for_seconds:.0f} s, longer than each "
                f"lease and {self._blocked_seconds:g} s{_standing_at(self._lines())}; a handler that blocks must be "
                "plain, or use asyncio.to_thread",
                event=events.LOOP_BLOCKED,
                code=EXIT_HUNG,
                traceback_text=self._stack(),
                failure=Failure(place=place_of_lines(self._lines()), host=host_name()),
            )
        elif (
            self._blocked_for_seconds >= min(BLOCKED_WARNED_SECONDS, self._blocked_seconds / 2) and not self._is_warned
        ):
            self._is_warned = True
            self._lifecycle.log.warning(
                events.LOOP_BLOCKED,
                seconds=round(self._blocked_for_seconds, 1),
                bound_seconds=bound,
                stack=self._stack(),
            )

    def close(self, *, timeout_seconds: float) -> bool:
        """Cancel the running handlers and end the loop after their clean-up; return False at the timeout."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._begin_unwind)
        self._thread.join(timeout=timeout_seconds)
        return not self._thread.is_alive()

    def running(self) -> list[str]:
        """Return the names of the handlers that have not returned, for the log."""
        return sorted({invocation.handler.display_name for invocation in tuple(self._running.values())})

    def _serve(self) -> None:
        try:
            self._run_until_closed()
        finally:
            self._loop.close()

    def _run_until_closed(self) -> None:
        """Run the loop; an exception that escapes ends the worker, but the other handlers may still clean up."""
        for _ in range(MAX_ESCAPES):
            try:
                self._loop.run_forever()
                self._lifecycle.forks.end_child(handler=", ".join(self.running()))
            except (SystemExit, KeyboardInterrupt) as error:
                self._fail_whatever_happens(error)
            except BaseException as error:  # noqa: BLE001  the top of a thread: it must not end unnoticed
                self._fail_whatever_happens(error)
                return
            else:
                if self._end is not None:
                    return
                self._lifecycle.log.warning(events.LOOP_STOPPED, reason="a handler called stop() on it; it continues")

    def _fail_whatever_happens(self, error: BaseException, invocation: Invocation | None = None) -> None:
        self._lifecycle.spare.give()
        try:
            self._fail(error, invocation)
        except BaseException:  # noqa: BLE001  there is no memory to say more
            self._is_lost = True
            self._lifecycle.end_whatever_happens(
                lambda: LifecycleEnd(
                    events.LOOP_FAILED, "the event loop of async handlers ended", EXIT_LOOP_ENDED, urgency="release"
                )
            )

    def _fail(self, error: BaseException, invocation: Invocation | None = None) -> None:
        invocation = invocation or _invocation_of(error)
        self._lifecycle.forks.end_child(handler=invocation.handler.display_name if invocation else "", error=error)
        tasks = [task for one in ([invocation] if invocation else tuple(self._invocations)) for task in one.tasks]
        self._lose(
            invocation,
            f"{name_of(type(error))} ended the event loop of async handlers: raised by a task that "
            f"{invocation.handler.display_name if invocation else 'a handler'} started",
            event=events.LOOP_FAILED,
            code=EXIT_LOOP_ENDED,
            traceback_text=traceback_without(error, tasks),
            failure=failure_of(error),
        )

    def _lose(
        self,
        invocation: Invocation | None,
        reason: str,
        *,
        event: str,
        code: int,
        traceback_text: str,
        failure: Failure,
    ) -> None:
        """End the worker at once, because the loop no longer runs its handlers.

        `failure`: of the tasks to blame; `reason` becomes its message, as the error's own may quote another's payload.
        """
        if self._is_lost:
            return
        self._is_lost = True
        blamed = (invocation,) if invocation is not None else tuple(self._invocations)
        self._failure = replace(failure, message=failure_message(reason))
        self._blamed = frozenset(task.lease.token for one in blamed for task in one.tasks)
        self._lifecycle.log.error(
            event,
            reason=reason,
            handlers=sorted({one.handler.display_name for one in blamed}),
            tasks=[task.name for one in blamed for task in one.tasks][:MAX_LINES_SHOWN],
            traceback=traceback_text,
        )
        self._lifecycle.end(LifecycleEnd(event, reason, code, urgency="release"))

    def _current_invocation(self) -> Invocation | None:
        """Return the invocation whose task runs in the loop now, if known."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        get_context = getattr(task, "get_context", None)  # from Python 3.12 on
        return get_context().get(_INVOCATION) if get_context is not None else self._running.get(task)

    def _stack(self) -> str:
        """Return the stack of the loop's thread: lines of code without values."""
        frame = self._frame()
        return "".join(traceback.format_stack(frame)[-MAX_STACK_ENTRIES:]) if frame is not None else ""

    def _lines(self) -> tuple[CodeLine, ...]:
        return lines_from(self._frame(), until=_RUN_CODE)

    def _lines_of(self, task: "asyncio.Task[None]") -> tuple[CodeLine, ...]:
        """Return the lines at which a handler stands; while it blocks the loop, those of the loop's thread."""
        return self._lines() if asyncio.current_task(self._loop) is task else _awaited_lines(task)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  the only way to see another's stack

    def _respond(self) -> None:
        self._has_responded = True

    def _begin(self, invocation: Invocation, on_done: OnDone) -> None:
        try:
            self._create_task(invocation, on_done)
        except BaseException as error:  # noqa: BLE001  there is no memory: asyncio would log it and go on without the call
            self._fail_whatever_happens(error, invocation)

    def _create_task(self, invocation: Invocation, on_done: OnDone) -> None:
        # A plain handler's thread, or a handler that blocked this loop, may have let the leases end.
        outcome = invocation.not_begun() if invocation.remaining() else InvocationFailed(())
        if outcome is not None:
            self._invocations.pop(invocation, None)
            on_done(invocation, outcome)
            return
        task = self._loop.create_task(self._run(invocation, on_done))
        self._running[task] = invocation
        task.add_done_callback(self._ended)
        invocation.lines = lambda: self._lines_of(task)
        invocation.cancel = lambda: self._cancel(task)
        if invocation.handler.timeout_seconds is not None:
            invocation.time_out = lambda timeout: self._time_out(task, invocation, timeout)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        invocation = self._running.pop(task, None)
        self._cancelled.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # its outcome was not recorded
            self._fail_whatever_happens(error, invocation)

    def _cancel(self, task: "asyncio.Task[None]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs in it
            self._loop.call_soon_threadsafe(self._cancel_once, task)

    def _time_out(self, task: "asyncio.Task[None]", invocation: Invocation, timeout: Timeout) -> None:
        def cancel() -> None:
            if task in self._running and task not in self._cancelled:
                invocation.timeout, invocation.stood_at = timeout, invocation.lines()
                self._cancel_once(task)

        with contextlib.suppress(RuntimeError):  # as above
            self._loop.call_soon_threadsafe(cancel)

    def _cancel_once(self, task: "asyncio.Task[None]") -> None:
        """Cancel a task unless it was cancelled before: a second cancel would interrupt its clean-up."""
        if task in self._running and task not in self._cancelled:
            self._cancelled.add(task)
            task.cancel()

    def _begin_unwind(self) -> None:
        self._end = self._loop.create_task(self._unwind())

    async def _run(self, invocation: Invocation, on_done: OnDone) -> None:
        _INVOCATION.set(invocation)
        self._log_context.bind_task(invocation.tasks[0].lease)
        outcome: Outcome
        try:
            returned = invocation.handler.function(invocation.argument())
            if isinstance(returned, Coroutine):
                returned = await returned
            self._lifecycle.forks.end_child(handler=invocation.handler.display_name)
            outcome = invocation.returned(returned)
        except BaseException as error:  # noqa: BLE001  an exception of a handler is its own failure; the loop goes on
            self._lifecycle.spare.give()
            if self._lifecycle.forks.is_child() and isinstance(error, SystemExit):
                self._lifecycle.forks.end_child(handler=invocation.handler.display_name, error=error)
            outcome = invocation.failed(error, now=self._lifecycle.clock.monotonic(), log=self._lifecycle.log)
            self._lifecycle.forks.end_child(handler=invocation.handler.display_name, error=error)
        self._invocations.pop(invocation, None)
        on_done(invocation, outcome)
        self._lifecycle.memory_is_back()

    async def _unwind(self) -> None:
        running = tuple(self._running)
        for task in running:
            self._cancel_once(task)
        if running:
            await asyncio.wait(running)
        self._loop.stop()


_RUN_CODE: Final = HandlerEventLoop._run.__code__  # noqa: SLF001  where the user's part of a stack begins


def _stop_in_child(loop: asyncio.AbstractEventLoop | None, thread: Thread) -> None:
    """Stop the loop in a child that a handler forked, so that it runs none of the other handlers."""
    if loop is None or threading.get_ident() != thread.ident:
        return
    ready = getattr(loop, "_ready", None)  # callbacks due in this iteration
    if ready is not None:
        ready.clear()
    loop.stop()


def _invocation_of(error: BaseException) -> Invocation | None:
    """Return the invocation in whose context a callback raised the error that ended the loop."""
    for frame, _ in traceback.walk_tb(parts_of(error).traceback):
        handle = frame.f_locals.get("self")
        if isinstance(handle, asyncio.Handle):
            task = getattr(getattr(handle, "_callback", None), "__self__", None)
            if isinstance(task, asyncio.Task) and task.done() and not task.cancelled():
                task.exception()  # keeps asyncio from logging it, with payloads it may quote
            context = getattr(handle, "_context", None)
            return context.get(_INVOCATION) if context is not None else None
    return None


def _standing_at(lines: tuple[CodeLine, ...]) -> str:
    shown = shown_lines(lines)
    return f", at {shown}" if shown else ""


def _longest_lease_seconds(invocation: Invocation) -> float:
    return max(seconds_between(task.lease.leased_at, task.lease.expires_at) for task in invocation.tasks)


def _awaited_lines(task: "asyncio.Task[None]") -> tuple[CodeLine, ...]:
    """Return the lines at which a handler and the coroutines that it awaits stand, innermost first."""
    lines: list[CodeLine] = []
    awaiting: object = getattr(task.get_coro(), "cr_await", None)  # the first frame is ours
    while (frame := getattr(awaiting, "cr_frame", None)) is not None and len(lines) < MAX_FRAMES:
        lines.insert(0, line_of(frame))
        awaiting = getattr(awaiting, "cr_await", None)
    return tuple(lines)
