"""The log lines of a handler say which task they belong to, by whichever library they are written."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.contextvars import get_contextvars

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.task import NewTask
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.log_context import trace_id_of
from tests.support.eventually import eventually
from tests.support.fleet.worker_process import worker_on_one_task
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

PROGRAM = """
import logging

import structlog
from queue_core import App, Task

app = App()
logging.getLogger("shop").setLevel(logging.INFO)

@app.task(queue="q")
def handle(task: Task) -> None:
    print("printed")
    logging.getLogger("shop").info("by logging")
    logging.getLogger("other").info("below its level")
    structlog.get_logger().info("thumb.made", width=3)
"""


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


@both_kinds
def test_a_handler_has_its_task_in_the_context_of_the_log(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, seen = App(), {}

    def handle(task: Task) -> None:
        seen[task.name] = get_contextvars()

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(
        [NewTask(name="a", tag="x", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}), NewTask(name="b")]
    )
    with running_worker(app, queues.queue, concurrency=2):
        eventually(lambda: queue.stats().deleted_total == 2)
    shared = {"queue": "q", "worker": "w-1", "lease_number": 1}
    assert seen == {
        "a": {**shared, "task": "a", "tag": "x", "trace_id": TRACE},
        "b": {**shared, "task": "b", "tag": None},
    }
    assert get_contextvars() == {}


def test_async_handlers_side_by_side_each_have_their_own_context(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, seen = App(), {}
    arrived = asyncio.Event()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        seen[task.name] = None
        if len(seen) == 2:
            arrived.set()
        await arrived.wait()
        seen[task.name] = get_contextvars()["task"]

    queue.add([NewTask(name="a"), NewTask(name="b")])
    with running_worker(app, queues.queue, concurrency=2):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert seen == {"a": "a", "b": "b"}


@pytest.mark.parametrize(
    ("headers", "trace_id"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00"}, TRACE, id="W3C"),
        pytest.param({"traceparent": f"01-{TRACE}-00f067aa0ba902b7-00-more"}, TRACE, id="a later version"),
        pytest.param({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00-more"}, None, id="too long"),
        pytest.param({"traceparent": f"ff-{TRACE}-00f067aa0ba902b7-00"}, None, id="no version"),
        pytest.param({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-00"}, None, id="no trace"),
        pytest.param({"traceparent": f"00-{TRACE}-{'0' * 16}-00"}, None, id="no parent"),
        pytest.param({"traceparent": f"00-{TRACE.upper()}-00f067aa0ba902b7-00"}, None, id="capitals"),
        pytest.param({"traceparent": "junk", "trace-id": "order-7"}, "order-7", id="its own"),
        pytest.param({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "trace-id": "x"}, TRACE, id="both"),
    ],
)
def test_a_trace_is_found_in_the_headers(headers: dict[str, str], trace_id: str | None) -> None:
    assert trace_id_of(headers) == trace_id


def test_lines_of_logging_and_of_structlog_carry_the_task(tmp_path: Path) -> None:
    done = worker_on_one_task(tmp_path, PROGRAM)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    context = {"queue": "q", "task": "t", "tag": "x", "lease_number": 1, "worker": "w-1"}
    own = [line for line in lines if line["event"] in {"program.logged", "thumb.made"}]
    assert [line["event"] for line in own] == ["program.logged", "thumb.made"]
    assert (own[0]["logger"], own[0]["message"], own[1]["width"]) == ("shop", "by logging", 3)
    assert [{name: line[name] for name in context} for line in own] == [context, context]
    started = next(line for line in lines if line["event"] == "worker.started")
    assert "task" not in started


def test_what_a_program_configured_for_its_own_log_is_left_alone(tmp_path: Path) -> None:
    done = worker_on_one_task(
        tmp_path, "import logging\nlogging.basicConfig(format='mine: %(message)s', level=20)\n" + PROGRAM
    )
    assert "mine: by logging" in done.stderr
    assert "program.logged" not in done.stderr


def test_a_line_that_a_handler_prints_reaches_a_file_at_once(tmp_path: Path) -> None:
    done = worker_on_one_task(tmp_path, PROGRAM + "    import os\n    os.write(1, b'written later\\n')\n")
    assert done.stdout == "printed\nwritten later\n"


def test_the_log_of_a_library_is_not_written_twice(tmp_path: Path) -> None:
    warning = "    logging.getLogger('asyncio').warning('slow')\n"
    done = worker_on_one_task(tmp_path, PROGRAM + warning)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines if line.get("message") == "slow"] == ["library.logged"]
