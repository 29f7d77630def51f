"""Invocation: one call of a handler with its tasks, and the outcome: delete, hand on, retry or make dead."""

import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import get_ident
from types import FrameType
from typing import Final, Literal

from structlog.typing import FilteringBoundLogger

from queue_core.fast_values import value
from queue_core.limits import MAX_REASON_CHARACTERS, MAX_TASKS_PER_ADD, check_add_count
from queue_core.store import Deletion
from queue_core.task import Lease, NewTask
from queue_core.telemetry import instrumentation
from queue_core.validation import check_new_tasks
from queue_core.worker import events
from queue_core.worker.app import Handler
from queue_core.worker.context import Dead, Retry, Task

MAX_TRACEBACK_CHARACTERS: Final = 20_000
"""Longest traceback in the log; the first characters are cut."""
SHORTEST_REDACTED_CHARACTERS: Final = 4
"""Payloads shorter than this are not redacted: they would match unrelated text."""
MAX_LINES_SHOWN: Final = 5
"""Lines of code, or tasks, that one log entry names at most."""


@value
class InvocationDone:
    """A task whose handler returned: it will be deleted, and the tasks in `then` added in the same transaction."""

    task: Task
    then: tuple[NewTask, ...] = ()

    @property
    def deletion(self) -> Deletion:
        return Deletion(self.task.lease.token, self.then)


@dataclass(frozen=True, slots=True)
class InvocationFailed:
    """Tasks to release: after the queue's back-off (None) or a delay in seconds, or as dead."""

    tasks: tuple[Task, ...]
    delay_seconds: float | None = None
    dead_reason: str = ""
    charge: Literal["counted", "uncounted"] = "counted"


Outcome = tuple[InvocationDone, ...] | InvocationFailed


def traced_handler(handler: Handler, leases: Sequence[Lease]) -> Handler:
    """Return a handler with the function that the active instrumentation has called for these leases."""
    active = instrumentation.active
    if active is None:
        return handler
    function = active.handler(
        handler.function,
        leases,
        is_async=handler.is_async,
        is_batch=handler.batch is not None,
        is_retry=lambda error: isinstance(handler.translate(error), Retry),
    )
    function.__qualname__ = handler.display_name
    return replace(handler, function=function)


class Invocation:
    """One call of a handler with the tasks of one lease. Outcomes leave out tasks whose lease is lost."""

    def __init__(self, handler: Handler, leases: Sequence[Lease], *, started_at: float) -> None:
        self.handler = handler if instrumentation.active is None else traced_handler(handler, leases)
        self.tasks = tuple(map(Task, leases))
        self.started_at = started_at
        self.value: object = None
        """The return value of the handler."""
        self.error: BaseException | None = None
        """The exception of the handler, or the reason why its value can't be used."""
        self.cancel: Callable[[], None] = _nothing
        """Cancels the handler once all its tasks are lost; works for async handlers only."""
        self.is_alive: Callable[[], bool] = _always
        """Return whether the handler can still run; its leases are renewed only then."""
        self.location: Callable[[], str] = _nowhere
        """The lines of code the handler is at, innermost first, to log for a handler that does not return."""

    def argument(self) -> Task | list[Task]:
        """Return the handler's argument: a task, or a list for a batch handler."""
        return self.tasks[0] if self.handler.batch is None else list(self.tasks)

    def remaining(self) -> tuple[Task, ...]:
        """Return the tasks whose leases are not lost."""
        return tuple(task for task in self.tasks if not task.lost)

    def run(self) -> object:
        """Call a plain handler in this thread, with context variables of its own."""
        thread_id = get_ident()
        self.location = lambda: _line_of_thread(thread_id)
        return copy_context().run(self.handler.function, self.argument())

    def returned(self, value: object) -> tuple[InvocationDone, ...]:
        """Return the outcome of a return value. Raises `TypeError` or `InvalidRequestError` for an invalid value."""
        self.value = value
        if self.handler.batch is None:
            done = [InvocationDone(self.tasks[0], self._then(value))]
        elif value is None:
            done = [InvocationDone(task) for task in self.tasks]
        elif isinstance(value, list | tuple) and len(value) == len(self.tasks):
            done = [InvocationDone(task, self._then(entry)) for task, entry in zip(self.tasks, value, strict=True)]
        else:
            raise TypeError(
                f"handler {self.handler.display_name} of batches must return None or a list with an entry for each of "
                f"its {len(self.tasks)} tasks, got {_shown(value)}"
            )
        return tuple([outcome for outcome in done if not outcome.task.lost])

    def raised(self, error: BaseException, *, now: float, log: FilteringBoundLogger) -> InvocationFailed:
        """Return the outcome of an exception; log it unless it is a `Retry` or `Dead`."""
        self.error = error
        remaining = self.remaining()
        error = self.handler.translate(error)
        if isinstance(error, Retry):
            return InvocationFailed(remaining, delay_seconds=error.delay_seconds, charge=error.charge)
        if isinstance(error, Dead):
            return InvocationFailed(
                remaining, dead_reason=error.reason[:MAX_REASON_CHARACTERS] or "its handler gave it up"
            )
        log_failure = log.error if remaining else log.debug  # a handler without tasks was cancelled
        log_failure(
            events.HANDLER_FAILED,
            **self.log_fields(now=now),
            error=type(error).__name__,
            traceback=traceback_without(error, self.tasks),
        )
        return InvocationFailed(remaining)

    def log_fields(self, *, now: float) -> dict[str, str | int | float | None]:
        """Return the fields that every log entry on this invocation has."""
        first = self.tasks[0]
        fields: dict[str, str | int | float | None] = {
            "handler": self.handler.display_name,
            "task": first.name,
            "tag": first.tag,
            "lease_number": first.lease_number,
            "seconds": round(now - self.started_at, 3),
        }
        if self.handler.batch is not None:
            fields["count"] = len(self.tasks)
        return fields

    def _then(self, value: object) -> tuple[NewTask, ...]:
        if value is None:
            return ()
        tasks = [value] if isinstance(value, NewTask) else value
        if not isinstance(tasks, list | tuple) or not all(isinstance(task, NewTask) for task in tasks):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(
                f"handler {self.handler.display_name} must return None, a NewTask or a list of NewTask (at most "
                f"{MAX_TASKS_PER_ADD}), got {_shown(value)}"
            )
        check_add_count(len(tasks))
        check_new_tasks(tasks)
        return tuple(tasks)


def _shown(value: object) -> str:
    """Return the type of a value, never the value: it may contain a payload."""
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def traceback_without(error: BaseException, tasks: Sequence[Task]) -> str:
    """Return the traceback as text, with quoted payloads replaced by `<payload>`."""
    text = "".join(traceback.format_exception(error, limit=-30))
    for task in tasks:
        for quoted in (task.payload.decode(errors="replace"), repr(task.payload)[2:-1]):
            if len(quoted) >= SHORTEST_REDACTED_CHARACTERS:
                text = text.replace(quoted, "<payload>")
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else "..." + text[-MAX_TRACEBACK_CHARACTERS:]


def _line_of_thread(thread_id: int) -> str:
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001  the only way to see another thread's stack
    lines: list[str] = []
    while frame is not None and len(lines) < MAX_LINES_SHOWN:
        lines.append(line_of(frame))
        frame = frame.f_back
    return " < ".join(lines)


def line_of(frame: FrameType) -> str:
    """Return the file, line and function of a frame."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _nothing() -> None:
    """Do nothing: a plain handler can't be cancelled."""


def _always() -> bool:
    return True


def _nowhere() -> str:
    return ""
