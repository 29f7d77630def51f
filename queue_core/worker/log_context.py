"""LogContext: the fields by which the log lines of a handler are found, as context variables of structlog.

Binds them around a call; renders and configures nothing.
"""

import re
from contextvars import Context, ContextVar
from typing import Final

from structlog.contextvars import STRUCTLOG_KEY_PREFIX, bind_contextvars

from queue_core.task import Headers, Lease

TRACEPARENT: Final = "traceparent"
"""Header of a W3C trace context."""
TRACE_ID: Final = "trace-id"
"""Header with a program's own trace id, where there is no valid `traceparent`."""
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_FIELDS: Final = ("queue", "task", "tag", "lease_number", "worker", "trace_id")


def trace_id_of(headers: Headers) -> str | None:
    """Return the trace id of a valid `traceparent`, else the header `trace-id`, else None.

    Source: W3C Trace Context, 3.2.2: neither id is all zeros, no version is ff; version 00 has four fields.
    """
    given = headers.get(TRACEPARENT, "")
    match = _TRACEPARENT.fullmatch(given)
    if match is not None and not (given.startswith("00-") and len(given) != len("00-") + 32 + 1 + 16 + 1 + 2):
        return match[1]
    return headers.get(TRACE_ID) or None


class LogContext:
    """The context variables that structlog merges into log lines, looked up once: binding a task takes half a us."""

    def __init__(self, worker: str) -> None:
        """`worker`: the name that each line has."""
        scratch = Context()
        scratch.run(bind_contextvars, **dict.fromkeys(_FIELDS))
        by_name: dict[str, ContextVar[object]] = {var.name: var for var in scratch}
        self._queue, self._task, self._tag, self._lease_number, self._worker, self._trace_id = (
            by_name[STRUCTLOG_KEY_PREFIX + name] for name in _FIELDS
        )
        self._name = worker

    def bind(self, lease: Lease) -> None:
        """Bind all fields for a task in the present context, a handler's own; a batch has its first task's."""
        self._queue.set(lease.queue)
        self._worker.set(self._name)
        self.bind_task(lease)

    def base(self, queue: str, begun: Context | None = None) -> Context:
        """Return a context with the fields that all tasks of a queue share, for `bind_task` in copies of it.

        `begun`: the variables that it has besides.
        """
        context = Context() if begun is None else begun.copy()
        context.run(self._queue.set, queue)
        context.run(self._worker.set, self._name)
        return context

    def bind_task(self, lease: Lease) -> None:
        """Bind the fields of a task in the present context, a copy of `base`."""
        self._task.set(lease.name)
        self._tag.set(lease.tag)
        self._lease_number.set(lease.lease_number)
        if lease.headers:
            trace_id = trace_id_of(lease.headers)
            if trace_id is not None:
                self._trace_id.set(trace_id)
