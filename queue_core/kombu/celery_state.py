"""Celery's worker in this process: which requests it runs, and how it ends; without importing Celery."""

import sys
from typing import Any


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


def is_stopping() -> bool:
    """Return whether the worker of this process was told to stop: what it runs then is given back."""
    state: Any = sys.modules.get("celery.worker.state")
    if state is None:
        return False
    # Celery tells a stop by an exit code, which may be 0.
    codes = (getattr(state, name, None) for name in ("should_stop", "should_terminate"))
    return any(code is not None and code is not False for code in codes)


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
