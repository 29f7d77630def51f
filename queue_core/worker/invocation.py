"""One call of a handler: what it was given, how it went, and what is to become of its tasks."""

import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Final, Literal

from structlog.typing import FilteringBoundLogger

from queue_core.fast_values import builder
from queue_core.limits import MAX_REASON_CHARACTERS, MAX_TASKS_PER_ADD, check_add_count
from queue_core.store import Deletion
from queue_core.task import Lease, NewTask
from queue_core.validation import check_new_tasks
from queue_core.worker import events
from queue_core.worker.app import Handler
from queue_core.worker.context import Dead, Retry, Task

MAX_TRACEBACK_CHARACTERS: Final = 20_000
SHORTEST_REDACTED_CHARACTERS: Final = 4
LINES_SHOWN: Final = 5

new_deletion = builder(Deletion)


@dataclass(frozen=True, slots=True)
class InvocationDone:
    """A task whose handler returned: it is to be deleted, and what follows from it added."""

    task: Task
    then: tuple[NewTask, ...] = ()

    @property
    def deletion(self) -> Deletion:
        return new_deletion(self.task.lease.token, self.then)


new_done = builder(InvocationDone)


@dataclass(frozen=True, slots=True)
class InvocationFailed:
    """Tasks to be given back: after the queue's back-off (None) or a delay, or as dead."""

    tasks: tuple[Task, ...]
    delay_seconds: float | None = None
    dead_reason: str = ""
    charge: Literal["counted", "uncounted"] = "counted"


Outcome = tuple[InvocationDone, ...] | InvocationFailed


class Invocation:
    """A handler at work on the tasks of one lease. Tasks lost meanwhile are in no outcome."""

    def __init__(self, handler: Handler, leases: Sequence[Lease], *, started_at: float) -> None:
        self.handler = handler
        self.tasks = tuple(map(Task, leases))
        self.started_at = started_at
        self.value: object = None
        """What its handler returned."""
        self.error: BaseException | None = None
        """What its handler raised, or why its value can't be used."""
        self.cancel: Callable[[], None] = _nothing
        """Interrupts the handler once all its tasks are lost; only an async one can be."""
        self.is_alive: Callable[[], bool] = _always
        """Whether its handler can go on. Its leases are renewed for no longer."""
        self.where: Callable[[], str] = _nowhere
        """The lines the handler is at, innermost first, for a person who wonders why it does not return."""

    def argument(self) -> Task | list[Task]:
        """What the handler is called with."""
        return self.tasks[0] if self.handler.batch is None else list(self.tasks)

    def remaining(self) -> tuple[Task, ...]:
        """The tasks that are not lost."""
        return tuple(task for task in self.tasks if not task.lost)

    def run(self) -> object:
        """Call a plain handler in this thread, in a context of its own: no task sees another's context variables."""
        thread_id = get_ident()
        self.where = lambda: _line_of_thread(thread_id)
        return copy_context().run(self.handler.function, self.argument())

    def returned(self, value: object) -> tuple[InvocationDone, ...]:
        """What a handler's return value asks for. Raises `TypeError` or an `InvalidRequestError` for nonsense."""
        self.value = value
        if self.handler.batch is None:
            done = [new_done(self.tasks[0], self._then(value))]
        elif value is None:
            done = [new_done(task) for task in self.tasks]
        elif isinstance(value, list | tuple) and len(value) == len(self.tasks):
            done = [new_done(task, self._then(entry)) for task, entry in zip(self.tasks, value, strict=True)]
        else:
            raise TypeError(
                f"handler {self.handler.display_name} of batches must return None or a list with an entry for each of "
                f"its {len(self.tasks)} tasks, got {_shown(value)}"
            )
        return tuple([outcome for outcome in done if not outcome.task.lost])

    def raised(self, error: BaseException, *, now: float, log: FilteringBoundLogger) -> InvocationFailed:
        """What a handler's exception asks for; logged unless the handler meant it."""
        self.error = error
        held = self.remaining()
        error = self.handler.translate(error)
        if isinstance(error, Retry):
            return InvocationFailed(held, delay_seconds=error.delay_seconds, charge=error.charge)
        if isinstance(error, Dead):
            return InvocationFailed(held, dead_reason=error.reason[:MAX_REASON_CHARACTERS] or "its handler gave it up")
        tell = log.error if held else log.debug  # a handler that lost all its tasks was told to stop
        tell(
            events.HANDLER_FAILED,
            **self.log_fields(now=now),
            error=type(error).__name__,
            traceback=traceback_without(error, self.tasks),
        )
        return InvocationFailed(held)

    def log_fields(self, *, now: float) -> dict[str, str | int | float | None]:
        """What every log line on this call says."""
        first = self.tasks[0]
        told: dict[str, str | int | float | None] = {
            "handler": self.handler.display_name,
            "task": first.name,
            "tag": first.tag,
            "lease_number": first.lease_number,
            "seconds": round(now - self.started_at, 3),
        }
        if self.handler.batch is not None:
            told["count"] = len(self.tasks)
        return told

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
    """The kind of a value, never the value: it may be made of a payload."""
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def traceback_without(error: BaseException, tasks: Sequence[Task]) -> str:
    """The traceback as text, with payloads that the error's message quotes taken out."""
    text = "".join(traceback.format_exception(error, limit=-30))
    for task in tasks:
        for quoted in (task.payload.decode(errors="replace"), repr(task.payload)[2:-1]):
            if len(quoted) >= SHORTEST_REDACTED_CHARACTERS:
                text = text.replace(quoted, "<payload>")
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else "..." + text[-MAX_TRACEBACK_CHARACTERS:]


def _line_of_thread(thread_id: int) -> str:
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001  the only way to see another thread's stack
    lines: list[str] = []
    while frame is not None and len(lines) < LINES_SHOWN:
        lines.append(line_of(frame))
        frame = frame.f_back
    return " < ".join(lines)


def line_of(frame: FrameType) -> str:
    """Where a frame is, for a person."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _nothing() -> None:
    """A plain handler can't be interrupted."""


def _always() -> bool:
    return True


def _nowhere() -> str:
    return ""
