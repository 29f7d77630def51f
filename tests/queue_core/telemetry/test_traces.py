"""One trace from a request to the task it adds and the tasks that follow; retries are linked, payloads left out."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from queue_core import App, Dead, InvalidSettingError, NewTask, QueueSpec, Retry, Task
from queue_core.client.asynchronous.connect import async_queues_of
from queue_core.telemetry import instrument, instrument_if_set, instrumentation, uninstrument
from queue_core.testing import MemoryQueues, run_until_empty
from tests.support.servers import QUEUE, a_server

if TYPE_CHECKING:
    from starlette.types import Message


class Spans:
    """The spans that were exported, and the provider that exports them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    instrument(found.provider)
    yield found
    uninstrument()


def test_one_trace_spans_a_request_its_task_and_the_task_handed_over(spans: Spans) -> None:
    queues, app = MemoryQueues(QueueSpec("thumbs"), QueueSpec("mail")), App()

    @app.task(queue="thumbs")
    def resize(task: Task) -> NewTask:
        return NewTask(b"done", queue="mail")

    @app.task(queue="mail")
    async def tell(task: Task) -> None:
        assert trace.get_current_span().is_recording()

    _request_that_adds(spans, queues)
    run_until_empty(app, queues=queues)

    server, add, process = spans.one("POST /cats"), spans.one("add thumbs"), spans.one("process thumbs")
    hand_over, told = spans.one("add mail"), spans.one("process mail")
    assert [_parent(span) for span in (add, process, hand_over, told)] == [
        _id(server),
        _id(add),
        _id(process),
        _id(hand_over),
    ]
    assert len({_trace(span) for span in spans.all()}) == 1
    assert [span.kind for span in (add, process, hand_over, told)] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
    ]
    assert dict(process.attributes or {}) == {
        "messaging.system": "towline",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "thumbs",
        "messaging.message.id": (add.attributes or {})["messaging.message.id"],
        "messaging.message.body.size": len(b"cat.jpg"),
        "messaging.client.id": (process.attributes or {})["messaging.client.id"],
        "towline.tag": "resize",
        "towline.lease_number": 1,
    }


def _request_that_adds(spans: Spans, queues: MemoryQueues) -> None:
    """Handle a request as an instrumented server does: within a span of its own; it adds by the async client."""
    import asyncio

    thumbs = async_queues_of(queues).queue("thumbs")

    async def cats(request: Request) -> PlainTextResponse:
        with spans.provider.get_tracer("server").start_as_current_span("POST /cats", kind=SpanKind.SERVER):
            await thumbs.add(NewTask(await request.body(), tag="resize"))
        return PlainTextResponse("added")

    site = Starlette(routes=[Route("/cats", cats, methods=["POST"])])
    statuses: list[int] = []

    async def receive() -> "Message":
        return {"type": "http.request", "body": b"cat.jpg", "more_body": False}

    async def send(message: "Message") -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": "/cats", "headers": [], "query_string": b""}

    async def handle() -> None:
        async with thumbs:
            await site(scope, receive, send)

    asyncio.run(handle())
    assert statuses == [200]


def test_a_later_lease_is_a_trace_of_its_own_that_is_linked(spans: Spans) -> None:
    queues, app = MemoryQueues(QueueSpec("work")), App()

    @app.task(queue="work")
    def fail_once(task: Task) -> None:
        if task.lease_number == 1:
            raise ValueError("not yet")

    queues.queue("work").add(b"one")
    run_until_empty(app, queues=queues)
    add = spans.one("add work")
    first, second = spans.named("process work")
    assert (_parent(first), first.links) == (_id(add), ())
    assert second.parent is None
    assert _trace(second) != _trace(add)
    assert [link.context.span_id for link in second.links] == [_id(add)]
    assert (second.attributes or {})["towline.lease_number"] == 2


def test_an_error_is_recorded_without_the_payload_and_without_a_traceback(spans: Spans) -> None:
    queues, app = MemoryQueues(QueueSpec("work", max_leases=1)), App()

    @app.task(queue="work")
    def leak(task: Task) -> None:
        raise ValueError(f"bad input: {task.text}, password=hunter2")

    queues.queue("work").add(b"secret payload")
    run_until_empty(app, queues=queues)
    span = spans.one("process work")
    assert span.status.status_code == StatusCode.ERROR
    (event,) = span.events
    assert dict(event.attributes or {}) == {
        "exception.type": "ValueError",
        "exception.message": "bad input: <payload>, password=***",
        "towline.place": (event.attributes or {})["towline.place"],
    }
    assert "secret payload" not in span.to_json()
    assert "hunter2" not in span.to_json()


def test_asking_for_a_later_lease_is_no_error_and_giving_up_is_one(spans: Spans) -> None:
    queues, app = MemoryQueues(QueueSpec("work")), App()
    calls = []

    @app.task(queue="work", on={TimeoutError: Retry(1)})
    def three(task: Task) -> None:
        calls.append(task)
        if len(calls) == 1:
            raise Retry(1)
        if len(calls) == 2:
            raise TimeoutError
        raise Dead("not an image")

    queues.queue("work").add(b"one")
    run_until_empty(app, queues=queues)
    retried, mapped, dead = spans.named("process work")
    for span in (retried, mapped):
        assert span.status.status_code == StatusCode.UNSET
        assert (span.attributes or {})["towline.outcome"] == "retry"
    assert dead.status.status_code == StatusCode.ERROR
    assert (dead.attributes or {})["error.type"] == "Dead"


def test_a_batch_is_linked_to_the_add_of_each_task(spans: Spans) -> None:
    queues, app = MemoryQueues(QueueSpec("work")), App()

    @app.task(queue="work", batch=10)
    def many(tasks: list[Task]) -> list[NewTask | None]:
        return [NewTask(b"next", queue="after") if task.payload == b"one" else None for task in tasks]

    queues.put_queue(QueueSpec("after"))
    queues.queue("work").add(b"one")
    queues.queue("work").add(b"two")
    run_until_empty(app, queues=queues)
    adds, process = spans.named("add work"), spans.one("process work")
    assert process.parent is None
    assert {link.context.span_id for link in process.links} == {_id(add) for add in adds}
    assert (process.attributes or {})["messaging.batch.message_count"] == 2
    (after,) = queues.queue("after").peek().tasks
    assert _span_id_in(after.headers) == _id(spans.one("add after"))


def test_a_task_added_by_a_handler_belongs_to_its_trace(spans: Spans) -> None:
    queues, app = MemoryQueues(QueueSpec("work"), QueueSpec("after")), App()

    @app.task(queue="work")
    async def add_more(task: Task) -> None:
        queues.queue("after").add(b"next")

    queues.queue("work").add(b"one")
    run_until_empty(app, queues=queues)
    assert _parent(spans.one("add after")) == _id(spans.one("process work"))


def test_headers_of_the_program_stay(spans: Spans) -> None:
    queues = MemoryQueues(QueueSpec("work"))
    own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "request-id": "7"}
    queues.queue("work").add([NewTask(b"one", headers=own), NewTask(b"two", headers={"request-id": "8"})])
    first, second = queues.queue("work").peek().tasks
    assert first.headers == own
    assert second.headers is not None
    assert second.headers["request-id"] == "8"
    assert _span_id_in(second.headers) == _id(spans.one("add work"))


def test_headers_without_room_for_a_context_stay_as_they_are(spans: Spans) -> None:
    queues = MemoryQueues(QueueSpec("work"))
    full = {"x": "y" * 4090}
    queues.queue("work").add(NewTask(b"one", headers=full))
    (stored,) = queues.queue("work").peek().tasks
    assert stored.headers == full


def test_a_task_added_over_http_carries_its_trace(spans: Spans) -> None:
    with a_server() as running:
        queue = running.queues().queue(QUEUE)
        queue.add(b"one")
        (lease,) = queue.lease()
        assert _span_id_in(lease.headers) == _id(spans.one(f"add {QUEUE}"))
        queue.close()


def test_nothing_is_traced_and_no_package_imported_unless_it_is_asked_for() -> None:
    program = (
        "import sys\n"
        "from queue_core import NewTask, QueueSpec\n"
        "from queue_core.testing import MemoryQueues\n"
        "queues = MemoryQueues(QueueSpec('work'))\n"
        "queues.queue('work').add(b'one')\n"
        "print(queues.queue('work').peek().tasks[0].headers, 'opentelemetry' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["None", "False"]


def test_a_worker_traces_by_its_environment() -> None:
    try:
        instrument_if_set({})
        assert instrumentation.active is None
        instrument_if_set({"TOWLINE_OTEL": "0"})
        assert instrumentation.active is None
        with pytest.raises(InvalidSettingError, match="TOWLINE_OTEL must be 1 or 0"):
            instrument_if_set({"TOWLINE_OTEL": "yes"})
        instrument_if_set({"TOWLINE_OTEL": "1"})
        assert instrumentation.active is not None
    finally:
        uninstrument()


def test_without_an_sdk_a_context_that_came_is_passed_on() -> None:
    queues = MemoryQueues(QueueSpec("work"))
    came = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    instrument()
    try:
        queues.queue("work").add(b"none")
        with trace.use_span(trace.get_current_span(propagate.extract(came))):
            queues.queue("work").add(b"one")
    finally:
        uninstrument()
    none, one = queues.queue("work").peek().tasks
    assert none.headers is None
    assert one.headers == came


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def _trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def _parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return int(span.parent.span_id)


def _span_id_in(headers: object) -> int:
    assert isinstance(headers, dict)
    return trace.get_current_span(propagate.extract(headers)).get_span_context().span_id
