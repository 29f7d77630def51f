"""A trace through Towline has the shape of one through Celery by Celery's own instrumentation."""

from collections.abc import Iterator

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from queue_core import App, QueueSpec, Task
from queue_core.telemetry import instrument, uninstrument
from queue_core.testing import MemoryQueues, run_until_empty
from tests.support.eventually import eventually

Shape = list[tuple[SpanKind, SpanKind | None]]
"""Each span's kind and its parent's, within one trace."""


class Traces:
    """A provider for both, and what it exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def take(self, count: int) -> list[ReadableSpan]:
        """Return the spans exported, once there are so many, and forget them."""
        eventually(lambda: len(self._exporter.get_finished_spans()) >= count)
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@pytest.fixture
def traces() -> Iterator[Traces]:
    found = Traces()
    instrument(found.provider)
    CeleryInstrumentor().instrument(tracer_provider=found.provider)
    yield found
    CeleryInstrumentor().uninstrument()
    uninstrument()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_task_of_celery_and_one_of_towline_are_traced_alike(traces: Traces) -> None:
    request = traces.provider.get_tracer("server")

    celery = Celery("shop", broker="memory://", backend="cache+memory://")

    @celery.task(name="resize")
    def resize(path: str) -> None: ...

    with start_worker(celery, perform_ping_check=False, pool="solo"):
        with request.start_as_current_span("request", kind=SpanKind.SERVER):
            resize.delay("cat.jpg")
        celerys = shape(traces.take(3))

    queues, app = MemoryQueues(QueueSpec("thumbs")), App()

    @app.task(queue="thumbs")
    def resize_too(task: Task) -> None: ...

    with request.start_as_current_span("request", kind=SpanKind.SERVER):
        queues.queue("thumbs").add(b"cat.jpg")
    run_until_empty(app, queues=queues)
    assert shape(traces.take(3)) == celerys
    assert celerys == [
        (SpanKind.CONSUMER, SpanKind.PRODUCER),
        (SpanKind.PRODUCER, SpanKind.SERVER),
        (SpanKind.SERVER, None),
    ]


def shape(spans: list[ReadableSpan]) -> Shape:
    """Return the kinds of spans and of their parents, in a fixed order. They must be of one trace."""
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    pairs = [(span.kind, by_id[span.parent.span_id].kind if span.parent is not None else None) for span in spans]
    return sorted(pairs, key=lambda pair: pair[0].name)
