"""HookRunner: the hooks of one worker, run once before its first lease and once after its last task."""

from collections.abc import Callable, Coroutine
from contextvars import copy_context
from threading import Event, Lock
from typing import Any, Final

from queue_core.attempts.error_text import name_of
from queue_core.attempts.redaction import redacted_traceback
from queue_core.worker import events
from queue_core.worker.event_loop import HandlerEventLoop
from queue_core.worker.functions.hooks import AppHooks
from queue_core.worker.lifecycle import WorkerLifecycle
from queue_core.worker.slow_hooks import SlowHooks

SHORTEST_STOP_SECONDS: Final = 1.0
"""Least time that an async hook of the worker's end gets, even when the grace is over."""
ANSWER_SECONDS: Final = 5.0
"""Seconds that the event loop may be busy before a hook of the worker's end is not run in it: a handler that was left
at its timeout may block it, and would keep the process, and so its replacement, until the grace is over."""


class HookRunner:
    """The hooks of a worker: those that are async run in the event loop of its handlers."""

    def __init__(
        self,
        hooks: AppHooks,
        loop: HandlerEventLoop | None,
        lifecycle: WorkerLifecycle,
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`answer_seconds`: how long the loop may be busy before a hook of the end is not run in it."""
        self._hooks = hooks
        self._loop = loop
        self._lifecycle = lifecycle
        self._answer_seconds = answer_seconds
        self._is_blocked = False
        self.context = copy_context()
        """The context variables as the `on_start` hooks left them, for handlers in other threads."""
        self._lock = Lock()
        self._is_begun = False
        self._ended = Event()

    def start(self) -> None:
        """Run the `on_start` hooks in this thread. Raises `AppError` for one that fails."""
        self._hooks.start(self._complete, SlowHooks(self._lifecycle.log, self._lifecycle.clock).watch)
        self.context = copy_context()
        self._is_begun = True

    def stop(self, *, grace_left_seconds: Callable[[], float]) -> None:
        """Run the `on_stop` hooks in this thread, once; log those that fail."""
        with self._lock:
            is_due, self._is_begun = self._is_begun, False
        if is_due:

            def complete(coroutine: Coroutine[Any, Any, object]) -> object:
                self._check_answer(coroutine, most_seconds=max(SHORTEST_STOP_SECONDS, grace_left_seconds()))
                return self._complete(coroutine, max(SHORTEST_STOP_SECONDS, grace_left_seconds()))

            for name, error in self.context.copy().run(lambda: [*self._hooks.stop(complete)]):
                text = redacted_traceback(error)
                self._lifecycle.log.error(events.HOOK_FAILED, hook=name, error=name_of(type(error)), traceback=text)
        self._ended.set()

    def wait_until_stopped(self, *, timeout_seconds: float) -> None:
        """Sleep until another thread has run `stop`, or the time is up."""
        self._ended.wait(max(0.0, timeout_seconds))

    def _check_answer(self, coroutine: Coroutine[Any, Any, object], *, most_seconds: float) -> None:
        """Raise `TimeoutError` where the loop is blocked; one wait is enough for all hooks."""
        if self._loop is not None and not self._is_blocked:
            self._is_blocked = not self._loop.answers(timeout_seconds=min(self._answer_seconds, most_seconds))
        if self._is_blocked:
            coroutine.close()
            raise TimeoutError("a handler blocks the event loop")

    def _complete(self, coroutine: Coroutine[Any, Any, object], timeout_seconds: float | None = None) -> object:
        assert self._loop is not None, "a worker with async hooks has an event loop"
        context = copy_context()
        try:
            return self._loop.complete(coroutine, context=context, timeout_seconds=timeout_seconds)
        finally:
            for variable, value in context.items():  # what an async hook sets, handlers see
                if variable.get(self) is not value:
                    variable.set(value)
