"""Every verb over HTTP comes to the same as in process, value by value."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queues
from queue_core.clock import Instant, ManualClock, after
from queue_core.errors import InvalidRequestError, LeaseLostError, UnknownQueueError
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, UNTAGGED, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, ObservationQuery
from tests.support.servers import IMPATIENT

SPEC = QueueSpec("work", lease_seconds=30.0, max_leases=2, retry_min_seconds=0.0, retry_max_seconds=0.0)
ODD_PAYLOADS = [b"", b"\x00\xff", "é".encode(), bytes(range(256)), b"x" * (1 << 20)]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same empty queue twice: behind a server, and in process; one clock."""

    remote: Queues
    local: Queues
    clock: ManualClock

    @property
    def both(self) -> tuple[Queues, Queues]:
        return self.remote, self.local


@pytest.fixture
def pair() -> Iterator[Pair]:
    clock = ManualClock()
    thread = ServerThread(MemoryStore(), ServeOptions(port=0), clock=clock)
    remote = HttpQueues(thread.start(), retries=IMPATIENT)
    local = LocalQueues(QueueService(MemoryStore(), clock=clock, jitter=lambda: 0.0))
    assert [queues.put_queue(SPEC) for queues in (remote, local)] == [True, True]
    yield Pair(remote, local, clock)
    remote.close()
    thread.stop()
    local.close()


def _same(pair: Pair, story: Callable[[Queues], object]) -> None:
    """Run a story on both and compare all that it returns."""
    outcomes = [story(queues) for queues in pair.both]
    assert outcomes[0] == outcomes[1]


def test_settings_come_back_as_they_were_put(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        emails = {"user_emails": ("a@b", "ü@b"), "writer_emails": ("w@b",)}
        changed = QueueSpec("work", on_exhausted="delete", max_leases=None, lease_calls_per_second=10, **emails)  # type: ignore[arg-type]
        return queues.put_queue(changed), queues.queues(), queues.put_queue(QueueSpec("other")), queues.queues()

    _same(pair, story)


def test_payloads_names_and_tags_come_back_byte_for_byte(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        added = queue.add([NewTask(payload, tag="t/ä b?&") for payload in ODD_PAYLOADS])
        again = [queue.add(NewTask(b"n", name="named")), queue.add(NewTask(b"n", name="named"))]
        return added, again, queue.lease(10, worker="wörker/1"), queue.tag_stats(), queue.tag_stats(limit=1)

    _same(pair, story)


@pytest.mark.parametrize(
    "tags",
    [ANY, UNTAGGED, TagFilter.of("a"), TagFilter.of("a", "b & c"), TagFilter.oldest(), TagFilter.oldest("b & c", "a")],
    ids=["any", "untagged", "one", "several", "oldest", "oldest of some"],
)
def test_tags_in_every_form(pair: Pair, tags: TagFilter) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        queue.add([NewTask(b"1"), NewTask(b"2", tag="b & c"), NewTask(b"3", tag="a"), NewTask(b"4")])
        return queue.stats(tags=tags), queue.peek(tags=tags, payload_bytes=1), queue.lease(10, tags=tags)

    _same(pair, story)


def test_etas_and_delays(pair: Pair) -> None:
    later = after(pair.clock.now(), 60.0)

    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        queue.add([NewTask(b"d", delay_seconds=0.5), NewTask(b"e", eta=later), NewTask(b"old", eta=Instant(1))])
        return queue.peek(states=frozenset({TaskState.DELAYED})), queue.lease(10), queue.stats()

    _same(pair, story)


def test_a_life_of_leases(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        queue.add([NewTask(b"%d" % number) for number in range(6)])
        one, two, three, four = queue.lease(4, worker="w")
        outcomes: list[object] = [
            queue.renew([one, two.token], seconds=90.0),
            queue.release(two, delay_seconds=5.0, charge="uncounted"),
            queue.release(three.token, dead_reason="bad input"),
            queue.delete(one, then=[NewTask(b"next"), NewTask(b"after", name="after")]),
            queue.exchange([Deletion(four.token), Deletion("99.99")], worker="w", count=2),
            [replace(task, spent=()) for task in queue.peek(names=["after", "_3", "nobody"]).tasks],  # fences stay home
            queue.redrive(["_3"]),
            queue.delete_by_name(["after", "after", "nobody"]),
            queue.stats(),
            replace(queues.observe("work", workers=["w", "x"]), heard=None),  # a server alone hears of workers
        ]
        return outcomes

    _same(pair, story)


def test_a_task_has_its_own_bound_of_leases(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        queue.add([NewTask(b"once", max_leases=1), NewTask(b"thrice", max_leases=3)])
        queue.release(queue.lease(2), delay_seconds=0.0)
        return [replace(task, spent=()) for task in queue.peek().tasks], queue.stats()

    _same(pair, story)


def test_pausing_purging_and_redriving(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        queue.add([NewTask(b"%d" % number, tag="odd" if number % 2 else None) for number in range(8)])
        queue.pause()
        paused = queue.lease(8)
        queue.resume()
        queue.release(queue.lease(2), dead_reason="no use")
        return (
            paused,
            queue.redrive(tags=UNTAGGED),
            queue.purge(tags=TagFilter.of("odd")),
            queue.purge(dead="only"),
            queue.purge(),
            queue.stats(),
            queues.delete_queue("work"),
        )

    _same(pair, story)


def test_mistakes_raise_the_same(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue("work")
        outcomes: list[object] = []
        for call in (
            lambda: queues.queue("no such queue").add(b"x"),
            lambda: queue.renew("1.1"),
            lambda: queue.delete(["1.1", "2.2"]),
            lambda: queue.lease(0),
            lambda: queue.lease(tags=TagFilter.of("")),
            lambda: queues.put_queue(QueueSpec("a b")),
        ):
            with pytest.raises((UnknownQueueError, LeaseLostError, InvalidRequestError)) as raised:
                call()
            outcomes.append((type(raised.value), str(raised.value)))
        return outcomes

    _same(pair, story)


def test_many_queues_are_observed_as_one_by_one(pair: Pair) -> None:
    def story(queues: Queues) -> object:
        for name in ("left", "right"):
            queues.put_queue(QueueSpec(name))
            queues.queue(name).add([NewTask(b"a", tag="a"), NewTask(b"b", tag="b")])
            queues.queue(name).add([NewTask(b"c", tag="b", delay_seconds=second) for second in (5, 20, 20.5, 99)])
        queues.queue("left").delete(queues.queue("left").lease(worker="w"))
        looks = [
            ObservationQuery("left", TagFilter.of("b"), 0, ("w",), 32.0),
            ObservationQuery("none of this name"),
            ObservationQuery("right", after=1),
        ]
        many = [None if one is None else replace(one, heard=None) for one in queues.observe_many(looks)]
        single = queues.observe("left", tags=TagFilter.of("b"), workers=["w"], ahead_seconds=32.0)
        assert [(to_come.position, to_come.ready_at - single.now) for to_come in single.upcoming] == [
            (1, 5_000_000),
            (2, 20_000_000),
            (3, 20_500_000),
        ]
        assert queues.observe("left").upcoming == ()
        assert many[:2] == [replace(single, heard=None), None]
        return many

    _same(pair, story)
