"""A call of an operator or a supervisor whose answer was lost is sent again, and takes effect once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.schedules.schedule import Schedule
from queue_core.task import NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs.criteria import MatchedBatch, Search
from tests.support.cutting_proxy import CuttingProxy, a_proxy
from tests.support.servers import IMPATIENT, QUEUE, a_server

OLD = TagFilter.of("old")


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    with a_server() as server, a_proxy(server) as proxy:
        yield proxy


@pytest.fixture
def queues(proxy: CuttingProxy) -> Iterator[HttpQueues]:
    queues = HttpQueues(proxy.url, retries=IMPATIENT)
    queue = queues.queue(QUEUE)
    queues.put_queue(QueueSpec(QUEUE, max_leases=1))
    queue.add([NewTask(b"dies", tag="dead"), *[NewTask(b"x", tag="old")] * 13])
    (dies,) = queue.lease(tags=TagFilter.of("dead"), worker="w")
    queue.release(dies)
    queue.lease(tags=OLD, worker="gone")
    queues.schedules.declare([Schedule("nightly", QUEUE, every=86_400)])
    yield queues
    queues.close()


def matching(queues: HttpQueues) -> MatchedBatch:
    return queues.queue(QUEUE).change_matching(
        "retag", Search(OLD, frozenset({TaskState.READY})), dry_run=False, tag="new"
    )


CALLS: dict[str, tuple[Callable[[HttpQueues], Any], object]] = {
    "purge": (lambda queues: queues.queue(QUEUE).purge(), 13),
    "purge of the dead": (lambda queues: queues.queue(QUEUE).purge(dead="only"), 1),
    "redrive": (lambda queues: queues.queue(QUEUE).redrive(), 1),
    "redrive by name": (lambda queues: queues.queue(QUEUE).redrive(["_1"]), 1),
    "retag of all that match": (lambda queues: (matching(queues).matched, matching(queues).matched), (12, 0)),
    "put a queue": (lambda queues: queues.put_queue(QueueSpec("new")), True),
    "delete a queue": (lambda queues: queues.delete_queue(QUEUE), 14),
    "retire": (lambda queues: queues.retire_worker("idle"), True),
    "release of a dead worker": (lambda queues: [one.worker for one in queues.release_worker("gone")], ["gone"]),
    "a schedule's run": (lambda queues: queues.schedules.run("nightly").is_new, True),
    "a schedule's pause": (lambda queues: queues.schedules.pause("nightly").paused_at is None, False),
    "declaration": (
        lambda queues: queues.schedules.declare([Schedule("weekly", QUEUE, every=604_800)]).added,
        ("weekly",),
    ),
    "lead": (lambda queues: queues.lead("pool", "me", seconds=60), True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_answer_was_lost_has_its_first_answer(queues: HttpQueues, proxy: CuttingProxy, name: str) -> None:
    call, answer = CALLS[name]
    proxy.seen.clear()
    proxy.fates.append("lose answer")
    assert call(queues) == answer
    assert proxy.seen[:2] == ["lose answer", "pass"]


def test_a_change_of_all_that_match_counts_what_the_whole_call_changed(queues: HttpQueues, proxy: CuttingProxy) -> None:
    proxy.fates.append("lose answer")
    batch = matching(queues)
    assert (batch.matched, batch.changed) == (12, 12)
