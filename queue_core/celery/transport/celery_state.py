"""Celery's worker in this process: which requests it runs, and how it ends; without importing Celery."""

import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

from queue_core.celery.transport.keeper import TaskState


def running_tags() -> frozenset[str]:
    """Return the delivery tags of the messages whose tasks run in this worker; none outside a worker of Celery."""
    tags = map(_tag_of, active_requests())
    return frozenset(tag for tag in tags if isinstance(tag, str))


def active_requests() -> list[Any]:
    """Return the requests that this worker's pool runs; none outside a worker of Celery."""
    state: Any = sys.modules.get("celery.worker.state")
    return [] if state is None else copied(state.active_requests)


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
    request = active_request(tag)
    return None if request is None else RunningRequest(request)


def active_request(tag: str) -> Any:
    """Return the request that came with this delivery tag, if its task runs; else None."""
    return next((one for one in active_requests() if _tag_of(one) == tag), None)


def _tag_of(request: Any) -> Any:
    return getattr(getattr(request, "_message", None), "delivery_tag", None)


class KeptTasks:
    """Tasks that run on while their worker has no broker, until their leases have ended.

    Celery acknowledges one that ends meanwhile only when its loop goes on. When a connection is lost, Celery 5.5 has
    its prefork pool forget all jobs, so that they would end unnoticed; later versions, only those that were not begun.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Any] = {}
        self._jobs: dict[str, Any] = {}
        """Those that a pool can forget."""
        self._is_looping = False

    def keep(self, tag: str) -> None:
        """Remember the task that came with this delivery tag."""
        request = active_request(tag)
        if request is None:
            return
        self._requests[tag] = request
        find = getattr(request, "_apply_result", None)
        job = None if find is None else find()
        if isinstance(getattr(job, "_cache", None), dict):
            self._jobs[tag] = job

    def loop_ended(self) -> None:
        """Expect that the pool forgets the jobs, and that nothing is acknowledged before the loop begins again."""
        self._is_looping = False

    def loop_began(self, held: frozenset[str]) -> None:
        """Make the jobs known to their pool again, before it reads what has ended, unless they were given up.

        Args:
            held: the tags whose leases are held; all others are forgotten here.
        """
        running = running_tags()
        self._requests = {tag: request for tag, request in self._requests.items() if tag in held}
        jobs = self._jobs.items()
        self._jobs = {tag: job for tag, job in jobs if tag in held and tag in running and not job.ready()}
        for job in self._jobs.values():
            job._cache.setdefault(job._job, job)  # noqa: SLF001 - there is no other way
        self._is_looping = True

    def awaited(self) -> frozenset[str]:
        """Return the tags of tasks that will be acknowledged, or were, though the broker does not know it yet."""
        if self._is_looping:  # nobody will acknowledge a task whose job no pool knows
            jobs = list(self._jobs.items())
            return running_tags() - {tag for tag, job in jobs if job._job not in job._cache}  # noqa: SLF001
        requests = list(self._requests.items())
        return running_tags() | {tag for tag, request in requests if getattr(request, "acknowledged", False)}


def is_task_consumer(consumer: object) -> bool:
    """Return whether a consumer of kombu's is that of a Celery worker's tasks."""
    owner = getattr(getattr(consumer, "on_decode_error", None), "__self__", None)
    return "celery.worker.state" in sys.modules and type(owner).__module__.startswith("celery.worker.")


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


def copied(requests: Any) -> list[Any]:
    """Copy a set that other threads change meanwhile."""
    while True:
        try:
            return list(requests)
        except RuntimeError:
            continue
