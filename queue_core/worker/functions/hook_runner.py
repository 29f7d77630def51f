"""HookRunner: the hooks of one worker, run once before its first lease and once after its last task."""

import traceback
from collections.abc import Callable, Coroutine
from threading import Event, Lock
from typing import Any, Final

from queue_core.worker import events
from queue_core.worker.event_loop import HandlerEventLoop
from queue_core.worker.functions.hooks import AppHooks
from queue_core.worker.lifecycle import WorkerLifecycle

SHORTEST_STOP_SECONDS: Final = 1.0
"""Least time that an async hook of the worker's end gets, even when the grace is over."""


class HookRunner:
    """The hooks of a worker: those that are async run in the event loop of its handlers."""

    def __init__(self, hooks: AppHooks, loop: HandlerEventLoop | None, lifecycle: WorkerLifecycle) -> None:
        self._hooks = hooks
        self._loop = loop
        self._lifecycle = lifecycle
        self._lock = Lock()
        self._is_begun = False
        self._ended = Event()

    def start(self) -> None:
        """Run the `on_start` hooks in this thread. Raises `AppError` for one that fails."""
        self._hooks.start(self._complete)
        self._is_begun = True

    def stop(self, *, grace_left_seconds: Callable[[], float]) -> None:
        """Run the `on_stop` hooks in this thread, once; log those that fail."""
        with self._lock:
            is_due, self._is_begun = self._is_begun, False
        if is_due:

            def complete(coroutine: Coroutine[Any, Any, object]) -> object:
                return self._complete(coroutine, max(SHORTEST_STOP_SECONDS, grace_left_seconds()))

            for name, error in self._hooks.stop(complete):
                text = "".join(traceback.format_exception(error, limit=-30))
                self._lifecycle.log.error(events.HOOK_FAILED, hook=name, error=type(error).__name__, traceback=text)
        self._ended.set()

    def wait_until_stopped(self, *, timeout_seconds: float) -> None:
        """Sleep until another thread has run `stop`, or the time is up."""
        self._ended.wait(max(0.0, timeout_seconds))

    def _complete(self, coroutine: Coroutine[Any, Any, object], timeout_seconds: float | None = None) -> object:
        assert self._loop is not None, "a worker with async hooks has an event loop"
        return self._loop.complete(coroutine, timeout_seconds=timeout_seconds)
