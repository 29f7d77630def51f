"""No number in a program's settings of handlers and tasks ends in any other error than a refusal."""

import math
from collections.abc import Callable

import pytest

from queue_core import ANY, App, Backoff, NewTask, Retry
from queue_core.errors import QueueError
from tests.support.fleet.workers import memory_queues

NUMBERS = (0, -1, 1e305, math.nan, math.inf, -math.inf, 2**63, 2**64, 10**400, -(10**400), 10**5_000)


def nothing() -> None:
    """Do nothing."""


def refused_or_done(call: Callable[[], object]) -> bool:
    """Return True; any error that is no refusal is raised."""
    try:
        call()
    except QueueError as error:
        assert str(error)
    return True


@pytest.mark.parametrize(
    "number", NUMBERS, ids=lambda number: f"{number:.6g}" if isinstance(number, float) else hex(number)[:20]
)
def test_a_number_is_refused_or_works_and_no_later_call_fails(number: float) -> None:
    queues, queue = memory_queues()
    app = App("memory:")
    function = app.function(queue="q")(nothing)
    calls: list[Callable[[], object]] = [
        lambda: Retry(number),
        lambda: Backoff(number),
        lambda: Backoff(0, number),
        lambda: app.task(queue="q", timeout=number),
        lambda: app.task(queue="q", batch=number),  # type: ignore[arg-type]
        lambda: app.periodic(every=number)(function),
        lambda: function.with_(delay=number).add(),
        lambda: function.with_(eta=number).add(),  # type: ignore[arg-type]
        lambda: function.with_(max_leases=number).add(),  # type: ignore[arg-type]
        lambda: function.with_(priority=number).add(),  # type: ignore[arg-type]
        lambda: queue.add([NewTask(b"x", delay_seconds=number)]),
        lambda: queue.lease(seconds=number),
        lambda: queue.peek(limit=number),  # type: ignore[arg-type]
        lambda: queues.lead("leader", "holder", seconds=number),
        lambda: queues.register("notes", "one", {}, seconds=number),
        lambda: queues.wait_ready([("q", ANY)], wait_seconds=number),
        lambda: queue.lease(wait_seconds=number, count=1),
        lambda: queue.renew(queue.lease(), seconds=number),
        lambda: queue.release(queue.lease(), delay_seconds=number),
    ]
    with app.bound_to(queues):
        for call in calls:
            assert refused_or_done(call)
            queue.add(b"x")
            assert queue.stats().ready + queue.stats().in_flight > 0
            assert queue.peek().tasks
    queues.close()
