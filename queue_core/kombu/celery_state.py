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
    tags = map(_tag_of, _copied(state.active_requests))
    return frozenset(tag for tag in tags if isinstance(tag, str))


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
    request = _active_request(tag)
    return None if request is None else RunningRequest(request)


def _active_request(tag: str) -> Any:
    state: Any = sys.modules.get("celery.worker.state")
    requests = () if state is None else _copied(state.active_requests)
    return next((one for one in requests if _tag_of(one) == tag), None)


def _tag_of(request: Any) -> Any:
    return getattr(getattr(request, "_message", None), "delivery_tag", None)


class KeptJobs:
    """The pool's jobs of tasks that run on while their worker has no broker.

    When a connection is lost, Celery 5.5 has its prefork pool forget all jobs: a task would end unnoticed, and never be
    acknowledged. Later versions have it forget only those that were not begun.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Any] = {}
        self._is_known = False
        """Whether the pool should know them."""

    def keep(self, tag: str) -> None:
        """Remember the job of the task that came with this delivery tag, if its pool can forget it."""
        find = getattr(_active_request(tag), "_apply_result", None)
        job = None if find is None else find()
        if isinstance(getattr(job, "_cache", None), dict):
            self._jobs[tag] = job

    def connection_lost(self) -> None:
        """Expect that the pool forgets the jobs."""
        self._is_known = False

    def hand_back(self) -> None:
        """Make the jobs known to their pool again, unless their tasks were given up: before it reads what has ended."""
        running = running_tags()
        self._jobs = {tag: job for tag, job in self._jobs.items() if tag in running and not job.ready()}
        for job in self._jobs.values():
            job._cache.setdefault(job._job, job)  # noqa: SLF001 - there is no other way
        self._is_known = True

    def forgotten(self) -> frozenset[str]:
        """Return the tags whose jobs no pool knows any more: nobody will acknowledge them."""
        jobs = list(self._jobs.items()) if self._is_known else []
        return frozenset(tag for tag, job in jobs if job._job not in job._cache)  # noqa: SLF001


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
