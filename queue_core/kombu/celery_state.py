"""Celery's worker in this process: which requests it runs, and how it ends; without importing Celery."""

import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

from queue_core.kombu.keeper import TaskState


def running_tags() -> frozenset[str]:
    """Return the delivery tags of the messages whose tasks run in this worker; none outside a worker of Celery."""
    state: Any = sys.modules.get("celery.worker.state")
    if state is None:
        return frozenset()
    tags = set()
    for request in _copied(state.active_requests):
        message = getattr(request, "_message", None)
        tag = getattr(message, "delivery_tag", None)
        if isinstance(tag, str):
            tags.add(tag)
    return frozenset(tags)


class RunningRequest:
    """A request that was accepted by this worker's pool, and what became of it."""

    def __init__(self, request: Any) -> None:
        self._request = ref(request)

    def state(self) -> TaskState:
        """Return whether it runs, has ended, or was cancelled by its worker."""
        request = self._request()
        if request is None:
            return "ended"
        if request in sys.modules["celery.worker.state"].active_requests:
            return "runs"
        return "cancelled" if getattr(request, "_already_cancelled", False) else "ended"


def running_request(tag: str) -> RunningRequest | None:
    """Return the request that came with this delivery tag, if its task runs."""
    state: Any = sys.modules.get("celery.worker.state")
    if state is None:
        return None
    for request in _copied(state.active_requests):
        if getattr(getattr(request, "_message", None), "delivery_tag", None) == tag:
            return RunningRequest(request)
    return None


def is_stopping() -> bool:
    """Return whether the worker of this process was told to stop: what it runs then is given back."""
    state: Any = sys.modules.get("celery.worker.state")
    if state is None:
        return False
    # Celery tells a stop by an exit code, which may be 0.
    codes = (getattr(state, name, None) for name in ("should_stop", "should_terminate"))
    return any(code is not None and code is not False for code in codes)


def call_around_tasks(call: Callable[..., None]) -> bool:
    """Have `call` called when a task begins or ends in this process; False outside a worker of Celery.

    Celery keeps no reference to it. Only tasks that run in the worker's own process are seen.
    """
    signals: Any = sys.modules.get("celery.signals")
    if signals is None or "celery.worker.state" not in sys.modules:
        return False
    signals.task_prerun.connect(call)
    signals.task_postrun.connect(call)
    return True


def stop() -> None:
    """Have Celery's worker in this process end once its tasks are done, as SIGTERM does; elsewhere do nothing."""
    state: Any = sys.modules.get("celery.worker.state")
    if state is not None and not is_stopping():
        state.should_stop = 0


def _copied(requests: Any) -> list[Any]:
    """Copy a set that other threads change meanwhile."""
    while True:
        try:
            return list(requests)
        except RuntimeError:
            continue
