"""Tracing: adds as producer spans, handlers as consumer spans, and the trace's context in the headers of tasks.

The first lease of a task runs within the trace that added it; a later lease is a trace of its own with a link, so that
a task retried for days does not hold one trace open. Attributes follow OpenTelemetry's messaging conventions. Payloads
and tracebacks are left out, as they may quote what is secret.

Source: hardbyte/awa, ADR 39.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Final, Literal, TypeAlias, cast

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from queue_core.attempts.failures import failure_of
from queue_core.limits import MAX_HEADERS_BYTES
from queue_core.task import Lease, NewTask
from queue_core.telemetry.instrumentation import ErrorTest, HandlerCall
from queue_core.verbs import Added

Attributes: TypeAlias = dict[str, str | int]

SYSTEM: Final = "towline"
_MAX_DEPTH: Final = 2
"""Lists within lists that a handler's return value may have: one a task, in a batch."""


class Tracing:
    """An `Instrumentation` by OpenTelemetry's API. Without an SDK its spans are not recorded."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("queue_core", tracer_provider=tracer_provider)

    def add(self, queue: str, tasks: list[NewTask], call: Callable[[list[NewTask]], list[Added]]) -> list[Added]:
        """See `Instrumentation.add`."""
        attributes = _attributes("add", "send", queue, len(tasks))
        with self._span(
            f"add {queue}", SpanKind.PRODUCER, attributes, payloads=[task.payload for task in tasks]
        ) as span:
            added = call([_with_context(task) for task in tasks])
            if len(added) == 1 and span.is_recording():
                span.set_attribute("messaging.message.id", added[0].name)
            return added

    def handler(
        self, function: HandlerCall, leases: Sequence[Lease], *, is_async: bool, is_batch: bool, is_retry: ErrorTest
    ) -> HandlerCall:
        """See `Instrumentation.handler`."""
        if is_async:
            coroutine_function = cast("Callable[..., Coroutine[object, object, object]]", function)

            @wraps(function)
            async def traced_async(argument: object) -> object:
                with self._processing(leases, is_batch=is_batch, is_retry=is_retry):
                    return self._handed_over(await coroutine_function(argument), leases[0].queue)

            return traced_async

        @wraps(function)
        def traced(argument: object) -> object:
            with self._processing(leases, is_batch=is_batch, is_retry=is_retry):
                return self._handed_over(function(argument), leases[0].queue)

        return traced

    @contextmanager
    def _processing(self, leases: Sequence[Lease], *, is_batch: bool, is_retry: ErrorTest) -> Iterator[None]:
        """Open the span of a handler: a child of the add for the first lease, else linked to it."""
        first = leases[0]
        attributes = _attributes("process", "process", first.queue, len(leases))
        attributes["messaging.client.id"] = first.worker
        if first.tag is not None:
            attributes["towline.tag"] = first.tag
        if not is_batch:
            attributes["messaging.message.id"] = first.name
            attributes["messaging.message.body.size"] = len(first.payload)
            attributes["towline.lease_number"] = first.lease_number
        parent = Context()  # not the context of the worker's own thread
        origins: list[Link] = []
        if not is_batch and first.lease_number <= 1:
            parent = propagate.extract(dict(first.headers or {}), context=parent)
        else:
            origins = [
                Link(origin, {"messaging.message.id": lease.name})
                for lease in leases
                if (origin := _origin(lease.headers)).is_valid
            ]
        with self._span(
            f"process {first.queue}",
            SpanKind.CONSUMER,
            attributes,
            parent=parent,
            origins=origins,
            payloads=[lease.payload for lease in leases],
            is_retry=is_retry,
        ):
            yield

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        parent: Context | None = None,
        origins: Sequence[Link] = (),
        payloads: Sequence[bytes],
        is_retry: ErrorTest = lambda _error: False,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=attributes,
            links=origins,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                if span.is_recording():
                    if is_retry(error):
                        span.set_attribute("towline.outcome", "retry")
                    else:
                        _record(span, error, payloads)
                raise

    def _handed_over(self, value: object, queue: str) -> object:
        """Return what a handler returned, its follow-up tasks with the trace's context in their headers."""
        tasks = _tasks_in(value)
        if not tasks:
            return value
        to = tasks[0].queue or queue
        with self._span(f"add {to}", SpanKind.PRODUCER, _attributes("add", "send", to, len(tasks)), payloads=()):
            return _each_with_context(value)


def _attributes(name: str, kind: Literal["send", "process"], queue: str, count: int) -> Attributes:
    attributes: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
    if count != 1:
        attributes["messaging.batch.message_count"] = count
    return attributes


def _record(span: Span, error: BaseException, payloads: Sequence[bytes]) -> None:
    """Record an error as the task's attempt shows it: without payloads and secrets, and without its traceback."""
    failure = failure_of(error, payloads=payloads)
    span.set_attribute("error.type", failure.error)
    said = {"exception.type": failure.error, "exception.message": failure.message, "towline.place": failure.place}
    span.add_event("exception", said)
    span.set_status(Status(StatusCode.ERROR, failure.text))


def _origin(headers: Mapping[str, str] | None) -> trace.SpanContext:
    """Return the span that added a task; an invalid one if its headers name none."""
    if not headers:
        return trace.INVALID_SPAN_CONTEXT
    return trace.get_current_span(propagate.extract(dict(headers), context=Context())).get_span_context()


def _with_context(task: NewTask) -> NewTask:
    """Return a task with the present context in its headers; unchanged where there is none, or no room for it.

    Headers that it has already stay: a program that forwards a context of its own means it.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    own = task.headers or {}
    if not carrier or not carrier.keys().isdisjoint(own):
        return task
    headers = {**carrier, **own}
    size_bytes = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    return task if size_bytes > MAX_HEADERS_BYTES else replace(task, headers=headers)


def _tasks_in(value: object, depth: int = 0) -> list[NewTask]:
    if isinstance(value, NewTask):
        return [value]
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return [task for item in value for task in _tasks_in(item, depth + 1)]
    return []


def _each_with_context(value: object, depth: int = 0) -> object:
    if isinstance(value, NewTask):
        return _with_context(value)
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return [_each_with_context(item, depth + 1) for item in value]
    return value
