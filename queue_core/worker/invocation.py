"""Invocation: one call of a handler with its tasks, and the outcome: delete, hand on, retry or make dead."""

import inspect
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Final, Literal

from structlog.typing import FilteringBoundLogger

from queue_core.attempts.attempt import GIVEN_BACK, MAX_ERROR_CHARACTERS, Failure
from queue_core.attempts.error_text import is_kind, name_of, parts_of, path_of, without_traceback
from queue_core.attempts.failures import (
    failure_message,
    failure_of,
    host_name,
    reason_of,
)
from queue_core.attempts.redaction import redacted_traceback
from queue_core.fast_values import value
from queue_core.limits import MAX_REASON_CHARACTERS, MAX_TASKS_PER_ADD, check_add_count
from queue_core.process.wording import counted
from queue_core.task import Lease, NewTask
from queue_core.telemetry import instrumentation
from queue_core.verbs import Deletion
from queue_core.verbs.validation import check_new_tasks
from queue_core.worker import events
from queue_core.worker.app import Handler
from queue_core.worker.code_lines import (
    CodeLine,
    full_lines,
    lines_from,
    place_of_lines,
    shown_lines,
    traceback_of_lines,
)
from queue_core.worker.context import Backoff, Dead, Retry, Task, Timeout, wish_of
from queue_core.worker.log_context import LogContext

MAX_TRACEBACK_CHARACTERS: Final = 20_000
"""Longest traceback in the log; the first characters are cut."""


@value
class InvocationDone:
    """A task whose handler returned: it will be deleted, and the tasks in `then` added in the same transaction.

    `handler`: of one with follow-up tasks, which may be refused.
    """

    task: Task
    then: tuple[NewTask, ...] = ()
    handler: Handler | None = None

    @property
    def deletion(self) -> Deletion:
        return Deletion(self.task.lease.token, self.then)


@dataclass(frozen=True, slots=True)
class InvocationFailed:
    """Tasks to release: after the queue's back-off (None) or a delay in seconds, or as dead.

    `backoff`: that of their handler, which each task's own lease number is put into; `failure`: why.
    """

    tasks: tuple[Task, ...]
    delay_seconds: float | None = None
    dead_reason: str = ""
    charge: Literal["counted", "uncounted"] = "counted"
    backoff: Backoff | None = None
    failure: Failure = GIVEN_BACK

    def releases(self, *, jitter: float) -> "list[InvocationFailed]":
        """Return the same, one for each delay: the handler's back-off applied to each task; `jitter` in [0, 1)."""
        if self.backoff is None:
            return [self]
        by_number: dict[int, list[Task]] = {}
        for task in self.tasks:
            by_number.setdefault(task.lease_number, []).append(task)
        return [
            self._backed_off(self.backoff, number, tuple(tasks), jitter=jitter) for number, tasks in by_number.items()
        ]

    def _backed_off(
        self, backoff: Backoff, number: int, tasks: tuple[Task, ...], *, jitter: float
    ) -> "InvocationFailed":
        if backoff.attempts is not None and number >= backoff.attempts:
            reason = self.failure.text[:MAX_REASON_CHARACTERS]
            return replace(self, tasks=tasks, dead_reason=reason, backoff=None)
        delay_seconds = backoff.delay_seconds(leases=number, jitter=jitter)
        return replace(self, tasks=tasks, delay_seconds=delay_seconds, backoff=None)


Outcome = tuple[InvocationDone, ...] | InvocationFailed
UNREADABLE: Final = "(its text can't be made)"
"""The message of an exception that can't be read at all."""
TOO_LATE: Final = Failure("given_back", message="its worker stood still, and could not be sure of the lease any more")
"""The failure of leases whose handlers were not called, as they may have ended before."""


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
        is_retry=lambda error: is_kind(handler.translate(error), Retry),
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
        self.timeout: Timeout | None = None
        """Set once the handler has run beyond its timeout."""
        self.stood_at: tuple[CodeLine, ...] = ()
        """The lines of code, innermost first, that the handler was at then."""
        self.cancel: Callable[[], None] = _nothing
        """Cancels the handler once all its tasks are lost; works for async handlers only."""
        self.time_out: Callable[[Timeout], None] = _ignored
        """Cancels the handler because it ran beyond its timeout; works for async handlers only."""
        self.is_alive: Callable[[], bool] = _always
        """Return whether the handler can still run; its leases are renewed only then."""
        self.is_in_force: Callable[[], bool] = _always
        """Return whether its leases hold for sure, by the monotonic clock; asked right before the handler is called."""
        self.lines: Callable[[], tuple[CodeLine, ...]] = _nowhere
        """The lines of code the handler is at, innermost first, to log for a handler that does not return."""

    def argument(self) -> Task | list[Task]:
        """Return the handler's argument: a task, or a list for a batch handler."""
        return self.tasks[0] if self.handler.batch is None else list(self.tasks)

    def not_begun(self) -> InvocationFailed | None:
        """Return the outcome of a call whose leases may have ended before it began; None: the handler may be called.

        The process was stopped, or a handler kept the interpreter lock or the event loop: another worker may have the
        tasks.
        """
        if self.is_in_force():
            return None
        return InvocationFailed(self.remaining(), charge="uncounted", failure=TOO_LATE)

    def remaining(self) -> tuple[Task, ...]:
        """Return the tasks whose leases are not lost."""
        return tuple(task for task in self.tasks if not task.lost)

    def run(self, log_context: LogContext) -> object:
        """Call a plain handler in this thread, with context variables of its own."""
        thread_id = get_ident()
        self.lines = lambda: _lines_of_thread(thread_id)
        return copy_context().run(self._call, log_context)

    def _call(self, log_context: LogContext) -> object:
        log_context.bind(self.tasks[0].lease)
        return self.handler.function(self.argument())

    def returned(self, value: object) -> tuple[InvocationDone, ...]:
        """Return the outcome of a return value. Raises `TypeError` or `InvalidRequestError` for an invalid value.

        Raises `Timeout` after the handler's timeout: it swallowed its cancellation, and its work may be half done.
        """
        if self.timeout is not None:
            raise self.timeout
        self.value = value
        if self.handler.batch is None:
            done = [self._done(self.tasks[0], value)]
        elif value is None:
            done = [InvocationDone(task) for task in self.tasks]
        elif isinstance(value, list | tuple) and len(value) == len(self.tasks):
            done = [self._done(task, entry) for task, entry in zip(self.tasks, value, strict=True)]
        else:
            raise TypeError(
                f"handler {self.handler.display_name} of batches must return None or a list with an entry for each of "
                f"its {counted(len(self.tasks), 'task')}, got {_shown(value)}"
            )
        return tuple([outcome for outcome in done if not outcome.task.lost])

    def failed(self, error: BaseException, *, now: float, log: FilteringBoundLogger) -> InvocationFailed:
        """Return the outcome of an exception as `raised` does, whatever the exception is: it costs an attempt."""
        try:
            return self.raised(error, now=now, log=log)
        except BaseException:  # noqa: BLE001  a user's exception that can't be read, or there is no memory to do so
            without_traceback(error)  # what the handler's variables hold may be all the memory there is
            self.error = error
            failure = Failure("raised", name_of(type(error))[:MAX_ERROR_CHARACTERS], UNREADABLE, self.handler.place)
            return InvocationFailed(self.remaining(), backoff=self.handler.retry, failure=failure)

    def raised(self, error: BaseException, *, now: float, log: FilteringBoundLogger) -> InvocationFailed:
        """Return the outcome of an exception; log it unless it is a `Retry`.

        After the handler's timeout any exception is the end of its cancellation.
        """
        if self.timeout is not None:
            self.error = self.timeout
            remaining = self.remaining()  # none of a call that was left
            return self.timed_out(self.timeout, remaining, now=now, log=log) if remaining else InvocationFailed(())
        self.error = error
        meant = self.handler.translate(error)
        origin = error if meant is not error else _cause_of(error)
        wish = wish_of(meant)
        if wish is not None:
            is_given_back = isinstance(wish, Retry) and origin is None
            failure = self._failure_of(origin or error, outcome="given_back" if is_given_back else "raised")
            return self._as_wished(wish, self.remaining(), failure, now=now, log=log)
        failure = self._failure_of(error)
        remaining = self.remaining()
        log_failure = log.error if remaining else log.debug  # a handler without tasks was cancelled
        log_failure(
            events.HANDLER_FAILED,
            **self.log_fields(now=now),
            error=failure.error,
            message=failure.message,
            place=failure.place,
            **self._retry_fields(),
            traceback=failure.traceback,
        )
        return InvocationFailed(remaining, backoff=self.handler.retry, failure=failure)

    def timed_out(
        self, timeout: Timeout, tasks: tuple[Task, ...], *, now: float, log: FilteringBoundLogger
    ) -> InvocationFailed:
        """Return the outcome of a handler that ran beyond its timeout with these tasks; log where it stood."""
        self.error = timeout
        shown = shown_lines(self.stood_at)
        message = failure_message(f"{timeout}, it was at {shown}" if shown else str(timeout))
        place = place_of_lines(self.stood_at) or self.handler.place
        stack = traceback_of_lines(f"{path_of(Timeout)}: {timeout}", self.stood_at, tasks)
        failure = Failure("timed_out", Timeout.__name__, message, place, host_name(), path_of(Timeout), stack)
        wish = wish_of(self.handler.translate(timeout))
        log_timeout = log.error if wish is None else log.info
        log_timeout(
            events.HANDLER_TIMED_OUT,
            **self.log_fields(now=now),
            timeout_seconds=timeout.seconds,
            place=failure.place,
            **self._retry_fields(wish),
            where=full_lines(self.stood_at),
        )
        if wish is not None:
            return self._as_wished(wish, tasks, failure, now=now, log=log)
        return InvocationFailed(tasks, backoff=self.handler.retry, failure=failure)

    def _as_wished(
        self, wish: Retry | Dead, tasks: tuple[Task, ...], failure: Failure, *, now: float, log: FilteringBoundLogger
    ) -> InvocationFailed:
        """Return the outcome of a `Retry` or `Dead`; log that the handler gave its task up."""
        if isinstance(wish, Retry):
            return InvocationFailed(tasks, delay_seconds=wish.delay_seconds, charge=wish.charge, failure=failure)
        reason = reason_of(wish.reason, [task.payload for task in tasks]) or "its handler gave it up"
        log.warning(events.HANDLER_GAVE_UP, **self.log_fields(now=now), reason=reason, place=failure.place)
        return InvocationFailed(tasks, dead_reason=reason, failure=failure)

    def _failure_of(self, error: BaseException, *, outcome: Literal["raised", "given_back"] = "raised") -> Failure:
        """Return a failure whose place is the handler's where it is none of the user's: a value that can't be used."""
        payloads, place = [task.payload for task in self.tasks], self.handler.place
        failure = failure_of(error, payloads=payloads, outcome=outcome, otherwise=place)
        return failure if self.value is None else replace(failure, place=place)

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

    def _retry_fields(self, wish: Retry | Dead | None = None) -> dict[str, float | int]:
        """Return when a failed task may be leased again, and its most attempts, where its handler says so."""
        if wish is not None:
            return {"again_seconds": wish.delay_seconds} if isinstance(wish, Retry) else {}
        retry = self.handler.retry
        if retry is None:
            return {}
        seconds = retry.delay_seconds(leases=self.tasks[0].lease_number, jitter=0.0)
        return {"again_seconds": seconds} | ({} if retry.attempts is None else {"attempts": retry.attempts})

    def _done(self, task: Task, value: object) -> InvocationDone:
        return InvocationDone(task) if value is None else InvocationDone(task, self._then(value), self.handler)

    def _then(self, value: object) -> tuple[NewTask, ...]:
        tasks = [value] if isinstance(value, NewTask) else value
        if not isinstance(tasks, list | tuple) or not all(isinstance(task, NewTask) for task in tasks):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(
                f"handler {self.handler.display_name} must return None, a NewTask or a list of NewTask (at most "
                f"{MAX_TASKS_PER_ADD}), got {_shown(value)}{_strangers(value)}"
            )
        check_add_count(len(tasks))
        check_new_tasks(tasks)
        return tuple(tasks)


def _shown(value: object) -> str:
    """Return the type of a value, never the value: it may contain a payload."""
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def _strangers(value: object) -> str:
    """Return the first type in a list that is no task's, as words to append."""
    if not isinstance(value, list | tuple):
        return ""
    stranger = next((entry for entry in value if not isinstance(entry, NewTask)), None)
    return f" with one of type {type(stranger).__name__}"


def traceback_without(error: BaseException, tasks: Sequence[Task]) -> str:
    """Return the traceback as text, with values of payloads replaced by `<payload>`, and secrets by `***`."""
    text = redacted_traceback(error, [task.payload for task in tasks])
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else "..." + text[-MAX_TRACEBACK_CHARACTERS:]


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that an `except` block answered by raising `error`, or None."""
    links = parts_of(error)
    return links.cause or links.context


def _lines_of_thread(thread_id: int) -> tuple[CodeLine, ...]:
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001  the only way to see another thread's stack
    return lines_from(frame, until=_CALL_CODE)


_CALL_CODE: Final = Invocation._call.__code__  # noqa: SLF001  where the user's part of a stack begins


def _nothing() -> None:
    """Do nothing: a plain handler can't be cancelled."""


def _ignored(_timeout: Timeout) -> None:
    """Do nothing, as above."""


def _always() -> bool:
    return True


def _nowhere() -> tuple[CodeLine, ...]:
    return ()
