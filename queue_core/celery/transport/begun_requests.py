"""Celery's requests whose tasks have begun: which they are, and their end where Celery does not record one.

A pool of threads, and a worker of one process, lose the end of a task whose exception can't be read, or is no
`Exception`: the request would be active for ever, and its lease renewed. Celery itself is not imported here.
"""

import sys
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from queue_core.celery.transport import events
from queue_core.celery.transport.celery_state import active_requests, copied
from queue_core.log import get_logger

LOOKS: Final = 2
"""Looks at a request whose task has ended, before its end counts as lost: it is recorded just after the task."""
LOST: Final = "its task ended with an exception that Celery could not record"
_ended: Final[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()
"""The looks at requests whose tasks have ended in this process; most are gone before the first."""

_log = get_logger()


@cache
def watch() -> None:
    """Learn of each request that is received, and of each task that ends in this process, from now on."""
    signals: Any = sys.modules["celery.signals"]
    signals.task_received.connect(_on_received)
    signals.task_postrun.connect(_on_end)


def has_begun(request: object) -> bool:
    """Return whether the pool has begun with a request, whatever became of it since."""
    return getattr(request, "time_start", None) is not None


def end_lost() -> None:
    """Have the tasks fail that ended in this process a while ago, and that Celery still takes for running."""
    active = active_requests()
    for request in copied(_ended):
        if request.acknowledged and request not in active:
            _ended.pop(request, None)
        elif _ended[request] < LOOKS:
            _ended[request] += 1
        else:
            _ended.pop(request, None)
            fail(request)


def fail(request: Any) -> None:
    """Record a task as failed, as Celery does when the process that ran it has died: it is counted, or deleted."""
    error = sys.modules["celery.exceptions"].WorkerLostError
    try:
        raise error(LOST)  # noqa: TRY301 - it takes its traceback from here
    except error:
        info = sys.modules["billiard.einfo"].ExceptionInfo()
    try:
        request.on_failure(info)
    except Exception:  # noqa: BLE001 - of a result backend or a signal's receiver; the message was answered before
        _log.exception(events.END_NOT_RECORDED, task=str(request.id))


def _on_received(*, request: Any, **_: object) -> None:
    message = getattr(request, "_message", None)
    note = getattr(getattr(getattr(message, "channel", None), "qos", None), "note_request", None)
    if note is not None:  # a message of this transport
        note(request)


def _on_end(*, task_id: str, **_: object) -> None:
    request = sys.modules["celery.worker.state"].requests.get(task_id)
    if request is not None:
        _ended[request] = 0
