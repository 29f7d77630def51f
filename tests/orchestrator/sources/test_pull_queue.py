"""The queue as the fleet sees it, over the memory store and a clock that stands still."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import PresentWorker, QueueSample, Waiting
from orchestrator.fleet.exits import DeathNotice
from orchestrator.source import SampleQuery
from orchestrator.sources.pull_queue import (
    MAX_AT_ONCE,
    MAX_HELD_AT_ONCE,
    MAX_NEW_AT_ONCE,
    PresenceQuery,
    QueueSource,
    ServersPresence,
)
from queue_core.admission import Rate, TagLimits
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.errors import QueueError, StoreUnavailableError, UnknownQueueError, WorkerRetiredError
from queue_core.stats import WorkerActivity
from queue_core.stores import open_store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, Lease, NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from queue_core.verbs import Observation, ObservationQuery
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import NOW, a_pool
from tests.support.servers import QUEUE, a_server
from tests.support.stores.remote_memory import RemoteMemory


@dataclass
class Site:
    clock: ManualClock
    queues: LocalQueues
    queue: LocalQueue
    source: QueueSource

    def sample(self, **settings: object) -> QueueSample:
        return self.source.sample(a_pool(**settings), workers=["w1", "w2"], now=Monotonic(NOW))


@pytest.fixture
def site() -> Iterator[Site]:
    clock = ManualClock()
    queues = LocalQueues(QueueService(open_store("memory:"), clock=clock, jitter=lambda: 0.0))
    queues.put_queue(QueueSpec("thumbs", lease_seconds=60, retry_min_seconds=10))
    yield Site(clock, queues, queues.queue("thumbs"), QueueSource(queues))
    queues.close()


def test_what_waits_is_told_with_its_age(site: Site) -> None:
    site.queue.add(b"first")
    site.clock.advance(5)
    site.queue.add(b"second")
    site.clock.advance(2)
    sample = site.sample()
    assert (sample.at, sample.ready, sample.in_flight) == (NOW, 2, 0)
    assert sample.waiting == (Waiting(1, 7.0), Waiting(2, 2.0))


def test_what_is_held_is_told_with_who_holds_it(site: Site) -> None:
    site.queue.add(b"task")
    site.clock.advance(3)
    site.queue.lease(worker="w1")
    site.clock.advance(2)
    (running,) = site.sample().running
    assert (running.worker, running.held_seconds, running.waited_seconds, running.lease_number) == ("w1", 2.0, 3.0, 1)


def test_what_limits_of_tags_hold_back_is_no_demand(site: Site) -> None:
    site.queues.put_queue(QueueSpec("thumbs", per_tag=TagLimits(max_in_flight=2)))
    site.queue.add([NewTask(tag=f"t{number % 20}") for number in range(60)])
    site.clock.advance(7)
    sample = site.sample()
    assert (sample.ready, sample.held, sample.held_by, sample.held_by_rate) == (
        40,
        20,
        "per_tag.max_in_flight: 2",
        False,
    )
    assert sample.describe_held() == ("60 waiting, 20 of them limited by per_tag.max_in_flight: 2: 40 can be leased")


def test_what_has_no_room_in_its_queue_is_no_demand_and_waits_from_when_there_is(site: Site) -> None:
    site.queues.put_queue(QueueSpec("thumbs", max_in_flight=2))
    site.queue.add([NewTask() for _ in range(9)])
    leases = site.queue.lease(count=2, worker="w1")
    site.clock.advance(50)
    full = site.sample()
    assert (full.ready, full.held, full.held_by, full.waiting) == (0, 7, "max_in_flight: 2", ())
    site.queue.delete(leases[0])
    site.clock.advance(3)
    assert site.sample().waiting == (Waiting(1, 3.0),)
    assert site.sample().ready == 1


def test_a_queue_that_has_had_room_since_it_was_first_seen_counts_all_of_a_wait(site: Site) -> None:
    site.queues.put_queue(QueueSpec("thumbs", rate=Rate(1.0, burst=2)))
    site.sample()
    site.queue.add([NewTask() for _ in range(9)])
    site.clock.advance(30)
    sample = site.sample()
    assert (sample.ready, sample.held, sample.held_by_rate) == (2, 7, True)
    assert [one.position for one in sample.waiting] == [1, 2]
    assert sample.oldest_seconds == 30.0


def test_a_finished_lease_is_told_once(site: Site) -> None:
    site.sample()
    site.queue.add(b"task")
    (lease,) = site.queue.lease(worker="w1")
    site.clock.advance(4)
    site.queue.delete(lease)
    site.clock.advance(1)
    (finished,) = site.sample().finished
    assert (finished.worker, finished.held_seconds, finished.ended_seconds_ago) == ("w1", 4.0, 1.0)
    assert finished.outcome == "deleted"
    assert site.sample().finished == ()


def test_a_lease_is_told_with_how_many_were_held_when_it_was_first_seen(site: Site) -> None:
    site.sample()
    site.queue.add([NewTask(b"task")] * 5)
    (first,) = site.queue.lease(worker="w1")
    assert [lease.at_a_time for lease in site.sample().running] == [1]
    site.queue.lease(3, worker="w2")
    assert sorted(lease.at_a_time for lease in site.sample().running) == [1, 4, 4, 4]
    site.clock.advance(1)
    site.queue.delete(first)
    site.queue.lease(worker="w1")
    sample = site.sample()
    assert [lease.at_a_time for lease in sample.finished] == [1]
    assert [lease.at_a_time for lease in sample.running] == [4, 4, 4, 4]


def test_leases_that_began_and_ended_between_two_looks_are_counted_among_themselves(site: Site) -> None:
    site.sample()
    site.queue.add([NewTask(b"task")] * 4)
    pair = site.queue.lease(2, worker="w1")
    site.clock.advance(1)
    site.queue.delete(pair)
    (alone,) = site.queue.lease(worker="w1")
    site.clock.advance(1)
    (other,) = site.queue.lease(worker="w2")
    site.clock.advance(1)
    site.queue.delete([alone, other])
    assert [lease.at_a_time for lease in site.sample().finished] == [2, 2, 1, 2]


def test_a_lease_that_lasts_is_told_with_how_many_were_held_when_it_began(site: Site) -> None:
    site.sample()
    site.queue.add([NewTask(b"task")] * 3)
    site.queue.lease(worker="w1")
    site.clock.advance(1)
    (brief,) = site.queue.lease(worker="w2")
    site.clock.advance(1)
    site.queue.delete(brief)
    site.queue.lease(worker="w2")
    assert [lease.at_a_time for lease in site.sample().running] == [1, 2]


def test_a_task_that_is_leased_again_is_another_lease(site: Site) -> None:
    site.sample()
    site.queue.add([NewTask(b"task")] * 2)
    (lease,) = site.queue.lease(worker="w1")
    assert [running.at_a_time for running in site.sample().running] == [1]
    site.queue.release(lease, delay_seconds=0)
    site.queue.lease(2, worker="w1")
    sample = site.sample()
    assert [finished.at_a_time for finished in sample.finished] == [1]
    assert [running.at_a_time for running in sample.running] == [2, 2]


def test_a_task_that_died_with_its_lease_is_told_as_died(site: Site) -> None:
    site.sample()
    site.queue.add(b"task")
    site.queue.release(site.queue.lease(worker="w1"), dead_reason="broken")
    assert [finished.outcome for finished in site.sample().finished] == ["died"]


def test_what_finished_before_the_first_look_is_not_told(site: Site) -> None:
    site.queue.add(b"task")
    site.queue.delete(site.queue.lease(worker="w1"))
    first = site.sample()
    assert (first.finished, first.arrivals) == ((), 0)


def test_tasks_to_come_are_told_as_far_ahead_as_is_asked_and_retries_are_not(site: Site) -> None:
    site.queue.add([NewTask(tag="a", delay_seconds=8.0)] * 3 + [NewTask(delay_seconds=8.0), NewTask(tag="a")])
    site.queue.add([NewTask(tag="a", delay_seconds=seconds) for seconds in (12.0, 99.0)])
    site.queue.release(site.queue.lease(worker="w1"), delay_seconds=5.0)
    asked = SampleQuery(a_pool(tags=["a"]), ["w1"], ahead_seconds=32.0)
    site.clock.advance(1.0)
    sample = site.source.sample(asked.pool, workers=asked.workers, ahead_seconds=32.0, now=Monotonic(NOW))
    assert (sample.delayed, sample.upcoming) == (6, (Waiting(3, -7.0), Waiting(4, -11.0)))
    both = site.source.samples([asked, replace(asked, pool=a_pool("none"), ahead_seconds=0.0)], now=Monotonic(NOW))
    assert [found.upcoming for found in both.values() if isinstance(found, QueueSample)] == [sample.upcoming, ()]


def test_more_finished_leases_than_one_look_holds_are_all_told(site: Site) -> None:
    site.sample()
    for _ in range(3):
        site.queue.add([NewTask(b"task")] * 500)
        site.queue.delete(site.queue.lease(500, worker="w1"))
    assert len(site.sample().finished) == 1500


def test_tasks_that_became_leasable_are_counted_however_they_did(site: Site) -> None:
    site.sample()
    site.queue.add([NewTask(b"now"), NewTask(b"later", delay_seconds=30)])
    assert site.sample().arrivals == 1
    (lease,) = site.queue.lease(worker="w1")
    assert site.sample().arrivals == 0
    site.queue.release(lease, delay_seconds=0)
    assert site.sample().arrivals == 1
    site.queue.lease(worker="w1")
    site.clock.advance(30)
    assert site.sample().arrivals == 1  # its eta came
    site.clock.advance(31)
    assert site.sample().arrivals == 1  # its lease expired


def test_a_pool_sees_the_tasks_of_its_own_tags_only(site: Site) -> None:
    site.queue.add([NewTask(b"a", tag="a"), NewTask(b"b", tag="b"), NewTask(b"none")])
    assert site.sample(name="one", tags=["a"]).ready == 1
    assert site.sample(name="two", tags=["a", "b"]).ready == 2
    assert site.sample(name="rest", untagged=True).ready == 1
    assert site.sample(name="all").ready == 3


def test_finished_leases_of_another_pools_tags_are_left_out(site: Site) -> None:
    site.sample(tags=["a"])
    site.queue.add([NewTask(b"a", tag="a"), NewTask(b"b", tag="b")])
    site.queue.delete(site.queue.lease(2, worker="w1"))
    assert len(site.sample(tags=["a"]).finished) == 1


def test_a_paused_queue_is_told_as_paused(site: Site) -> None:
    site.queue.pause()
    assert site.sample().paused is True


def test_when_a_worker_first_asked_for_a_lease_is_told(site: Site) -> None:
    site.queue.lease(worker="w1")
    site.clock.advance(3)
    assert site.sample().first_seen_seconds_ago == {"w1": 3.0}


def test_a_worker_that_ended_a_lease_since_the_last_look_has_worked(site: Site) -> None:
    site.queue.add([NewTask(b"a"), NewTask(b"b")])
    site.sample()
    (lease,) = site.queue.lease(worker="w1")
    site.queue.lease(worker="w2")
    site.queue.delete(lease)
    assert site.source.has_worked("w1", a_pool())
    assert not site.source.has_worked("w2", a_pool())
    assert len(site.sample().finished) == 1, "the next look tells it as ever"
    assert not site.source.has_worked("w1", a_pool())


def test_an_idle_worker_is_fenced_and_a_busy_one_is_not(site: Site) -> None:
    site.queue.add(b"task")
    site.queue.lease(worker="busy")
    assert site.source.retire("busy") is False
    assert site.source.retire("idle") is True


def test_a_busy_worker_that_is_to_finish_gets_no_more_and_its_end_is_found_by_asking_again(site: Site) -> None:
    site.queue.add([NewTask(b"task"), NewTask(b"another")])
    (lease,) = site.queue.lease(worker="busy")
    assert site.source.retire("busy", busy="finish") is False
    with pytest.raises(WorkerRetiredError):
        site.queue.lease(worker="busy")
    site.queue.delete(lease)
    assert site.source.retire("busy", busy="finish") is True


def test_what_a_worker_gave_back_since_it_was_requested_is_told(site: Site) -> None:
    pool = a_pool(tags=["a"])
    site.queue.add([NewTask(name=name, tag="a") for name in ("before", "asked", "done", "of-another", "kept")])
    before, asked, done = site.queue.lease(3, worker="w1")
    (anothers,) = site.queue.lease(worker="w2")
    site.clock.advance(2)
    site.queue.release(before)
    site.clock.advance(5)
    site.queue.release([asked], charge="uncounted")
    site.queue.release([anothers], charge="uncounted")
    site.queue.delete(done)
    site.clock.advance(1)
    (told,) = site.source.given_back_by("w1", pool, within_seconds=3)
    assert (told.queue, told.task, told.tag, told.held_seconds, told.lease_number) == ("thumbs", "asked", "a", 7.0, 1)
    assert [one.task for one in site.source.given_back_by("w1", pool, within_seconds=8)] == ["before", "asked"]
    site.sample(tags=["a"])
    assert site.source.given_back_by("w1", a_pool(), within_seconds=8) == []


def test_all_that_a_dead_worker_holds_is_leasable_at_once(site: Site) -> None:
    site.queue.add([NewTask(b"1", name="one"), NewTask(b"2", name="two", tag="a")])
    site.queue.lease(2, worker="dead")
    site.clock.advance(2)
    released = site.source.release_held_by("dead", DeathNotice("SIGKILL", "ended by SIGKILL", is_on_this_host=True))
    assert [(task.queue, task.task, task.tag, task.held_seconds) for task in released] == [
        ("thumbs", "one", None, 2.0),
        ("thumbs", "two", "a", 2.0),
    ]
    (attempt,) = site.queue.peek(limit=1).tasks[0].attempts
    assert (attempt.worker, attempt.outcome, attempt.text) == ("dead", "worker_died", "ended by SIGKILL")
    assert len(site.queue.lease(2, worker="w1")) == 2


def test_an_arrival_is_told_by_the_pool_whose_tags_it_has(site: Site) -> None:
    pools = [a_pool("one", tags=["a"]), a_pool("two", tags=["b"])]
    assert site.source.wait_for_arrival(pools, timeout_seconds=0) is None
    site.queue.add(NewTask(b"task", tag="b"))
    assert site.source.wait_for_arrival(pools, timeout_seconds=5) == "two"


def test_one_supervisor_leads_until_it_lets_go(site: Site) -> None:
    assert site.source.lead("one", seconds=15) is True
    assert site.source.lead("two", seconds=15) is False
    assert site.source.lead("one", seconds=0) is True
    assert site.source.lead("two", seconds=15) is True


def test_a_queue_that_does_not_answer_is_unavailable(site: Site) -> None:
    with pytest.raises(SourceUnavailableError, match="no queue 'missing'"):
        site.sample(queue="missing")


class Servers:
    """Two servers over one store, with a client of each."""

    def __init__(self, stack: ExitStack) -> None:
        memory = MemoryStore()
        self._pool = stack.enter_context(ThreadPoolExecutor(2))
        self.a, self.b = (stack.enter_context(a_server(RemoteMemory(memory))) for _ in range(2))
        self.at_a, self.at_b = self.a.queues(), self.b.queues()
        stack.callback(self.at_a.close)
        stack.callback(self.at_b.close)

    def lease_at_b(self) -> Future[list[Lease]]:
        return self._pool.submit(self.at_b.queue(QUEUE).lease, worker="w1", wait_seconds=30.0)

    def sample(self, *, elsewhere: PresenceQuery | None) -> QueueSample:
        """As a supervisor at the first server sees it."""
        source = QueueSource(self.at_a, all_presence=elsewhere)
        return source.sample(a_pool(queue=QUEUE), workers=["w1"], now=Monotonic(NOW))


@pytest.fixture
def asked() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


def test_a_worker_that_waits_at_another_server_of_the_store_asks(asked: Servers) -> None:
    asked.at_a.queue(QUEUE).lease(worker="w1")
    call = asked.lease_at_b()
    eventually(lambda: asked.b.waiting() == 1)
    eventually(lambda: asked.sample(elsewhere=None).presence["w1"].silent_seconds > 0.0)
    both = ServersPresence([asked.at_a, asked.at_b])
    assert asked.sample(elsewhere=both.all).presence["w1"].silent_seconds == 0.0
    asked.b.thread.stop()
    call.result(30)
    assert "w1" not in asked.sample(elsewhere=both.all).presence, "while one of them is away nobody can tell"


class Counted(LocalQueues):
    """Counts the observations of one queue, and those of many."""

    def __init__(self, service: QueueService) -> None:
        super().__init__(service)
        self.single: list[str] = []
        self.many: list[int] = []
        self.failure: QueueError | None = None

    def observe(
        self,
        queue: str,
        *,
        tags: TagFilter = ANY,
        after: int = 0,
        workers: Sequence[str] = (),
        ahead_seconds: float = 0.0,
    ) -> Observation:
        self.single.append(queue)
        return super().observe(queue, tags=tags, after=after, workers=workers, ahead_seconds=ahead_seconds)

    def observe_many(self, looks: Sequence[ObservationQuery]) -> list[Observation | None]:
        if self.failure is not None:
            raise self.failure
        self.many.append(len(looks))
        return super().observe_many(looks)


@pytest.fixture
def counted() -> Iterator[Counted]:
    queues = Counted(QueueService(open_store("memory:"), clock=ManualClock(), jitter=lambda: 0.0))
    for number in range(MAX_AT_ONCE + 1):
        queues.put_queue(QueueSpec(f"q{number}"))
    yield queues
    queues.close()


POOLS = [SampleQuery(a_pool(f"p{number}", queue=f"q{number}"), ["w1"]) for number in range(MAX_AT_ONCE + 1)]


def test_many_pools_are_looked_at_in_a_few_calls_as_they_would_be_one_by_one(counted: Counted) -> None:
    source, alone = QueueSource(counted), QueueSource(counted)
    for at in (NOW, NOW + 1):
        counted.queue("q7").add(b"task")
        counted.queue("q7").delete(counted.queue("q7").lease(worker="w1"))
        found = source.samples(POOLS, now=Monotonic(at))
        assert found == {one.pool.name: alone.sample(one.pool, workers=one.workers, now=Monotonic(at)) for one in POOLS}
    assert counted.many == [*[MAX_NEW_AT_ONCE] * 4, 1, MAX_AT_ONCE, 1]


def test_a_pool_without_a_queue_or_with_many_leases_is_left_to_a_look_of_its_own(counted: Counted) -> None:
    source = QueueSource(counted)
    counted.queue("q0").add([NewTask(b"task")] * (MAX_HELD_AT_ONCE + 1))
    counted.queue("q0").lease(MAX_HELD_AT_ONCE + 1, worker="w1")
    pools = [SampleQuery(a_pool("busy", queue="q0"), ["w1"]), SampleQuery(a_pool("lost", queue="none"), []), POOLS[1]]
    source.samples(pools, now=Monotonic(NOW))
    assert list(source.samples(pools, now=Monotonic(NOW + 1))) == ["p1"]


def test_a_store_that_is_away_is_asked_once_for_all_pools_of_a_call(counted: Counted) -> None:
    source = QueueSource(counted)
    source.samples(POOLS[:9], now=Monotonic(NOW))
    counted.failure = StoreUnavailableError("away")
    found = source.samples(POOLS[:9], now=Monotonic(NOW + 1))
    assert {type(one) for one in found.values()} == {SourceUnavailableError}
    assert (len(found), counted.single) == (9, [])


def test_pools_are_looked_at_one_by_one_where_the_server_knows_no_other_way(counted: Counted) -> None:
    counted.failure = UnknownQueueError("there is no such thing")
    assert QueueSource(counted).samples(POOLS, now=Monotonic(NOW)) == {}


class AServer:
    """A server that has heard of these workers; of None it is away."""

    def __init__(self, *heard: WorkerActivity, is_away: bool = False) -> None:
        self.heard = list(heard)
        self.is_away = is_away

    def worker_activity(self, queue: str, *, prefix: str = "") -> list[WorkerActivity]:
        if self.is_away:
            raise StoreUnavailableError("away")
        return [one for one in self.heard if one.worker.startswith(prefix)]


def test_a_worker_that_moved_is_told_as_the_server_knows_it_that_heard_of_it_last() -> None:
    left = AServer(WorkerActivity("resize/a", 9.0, waits=True, hung_up=True))
    joined = AServer(WorkerActivity("resize/a", 0.0, waits=True, hung_up=False), WorkerActivity("x", 0.0, True, False))
    for servers in ([left, joined], [joined, left]):
        assert ServersPresence(servers)("thumbs", "resize/") == [
            PresentWorker("resize/a", 0.0, waits=True, hung_up=False)
        ]


def test_a_server_that_is_away_has_nobody_waiting_at_it() -> None:
    there = AServer(WorkerActivity("resize/a", 1.0, waits=False, hung_up=False))
    found = ServersPresence([AServer(is_away=True), there])("thumbs", "resize/")
    assert [one.worker for one in found] == ["resize/a"]


def test_when_no_server_answers_nobody_is_taken_for_gone() -> None:
    with pytest.raises(StoreUnavailableError):
        ServersPresence([AServer(is_away=True), AServer(is_away=True)])("thumbs", "resize/")


def test_over_a_store_nobody_can_tell() -> None:
    assert ServersPresence([])("thumbs", "resize/") == []


def test_of_all_servers_nobody_can_tell_while_one_does_not_answer() -> None:
    there = AServer(WorkerActivity("resize-1", 9.0, waits=True, hung_up=False))
    with pytest.raises(StoreUnavailableError):
        ServersPresence([AServer(is_away=True), there]).all("thumbs", "")
    joined = AServer(WorkerActivity("resize-1", 0.0, waits=True, hung_up=False))
    assert ServersPresence([joined, there]).all("thumbs", "") == [PresentWorker("resize-1", 0.0, waits=True)]
