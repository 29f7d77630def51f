"""A snapshot that is seconds old, refreshed with what the queues say now, over the memory store and a manual clock."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from orchestrator.fleet.figures import FleetFigures, RunningTask, figures_of
from orchestrator.sources.live_fleet import Json, observed_now, refreshed
from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.eventually import eventually
from tests.support.servers import a_server

SHOWN_AT = 1_000.0
"""When the supervisor published its snapshot, in seconds since the epoch by its own clock."""


@dataclass
class PublishedSite:
    """A queue, and what a supervisor published of the pool `resize` on it."""

    clock: ManualClock
    queues: LocalQueues
    queue: LocalQueue
    workers: list[Json] = field(default_factory=list)
    settings: Json = field(default_factory=lambda: {"queue": "thumbs", "tags": ["resize"], "slo_seconds": 5.0})
    sample: Json = field(default_factory=lambda: {"ready": 99, "in_flight": 99, "oldest_seconds": 99.0, "cursor": 0})

    def worker(self, name: str, state: str, **others: object) -> None:
        known = {"worker": name, "pool": "resize", "state": state, "since": SHOWN_AT, "spawned_at": SHOWN_AT}
        self.workers.append({**known, "holding": 0, "finished": 0, **others})

    def snapshot(self) -> Json:
        pool = {"current": 7, "target": 2, "settings": self.settings, "sample": self.sample}
        return {"phase": "leading", "url": "x", "pools": {"resize": pool}, "workers": self.workers}

    def now(self, *, seconds: float = 3.0) -> FleetFigures:
        """The figures this many seconds after the snapshot was published."""
        now = SHOWN_AT + seconds
        return figures_of(
            refreshed(self.snapshot(), observed_now(self.queues, self.snapshot()), now_seconds=now), now_seconds=now
        )


@pytest.fixture
def site() -> Iterator[PublishedSite]:
    clock = ManualClock()
    queues = LocalQueues(QueueService(open_store("memory:"), clock=clock, jitter=lambda: 0.0))
    queues.put_queue(QueueSpec("thumbs", lease_seconds=60))
    yield PublishedSite(clock, queues, queues.queue("thumbs"))
    queues.close()


def tasks(count: int, tag: str = "resize") -> list[NewTask]:
    return [NewTask(b"x", name=f"{tag}-{number}", tag=tag) for number in range(count)]


def test_a_worker_that_began_a_task_is_no_longer_starting(site: PublishedSite) -> None:
    site.worker("w1", "starting")
    site.queue.add(tasks(3))
    site.clock.advance(1)
    site.queue.lease(worker="w1")
    site.clock.advance(2)
    (worker,), (pool,) = site.now().workers, site.now().pools
    assert (worker.state, worker.state_seconds) == ("busy", 2.0)
    assert worker.tasks == (RunningTask("resize-0", 2.0),)
    assert (pool.workers, pool.busy, pool.ready, pool.in_flight, pool.oldest_seconds) == (1, 1, 2, 1, 3.0)


def test_a_task_counts_as_done_at_once(site: PublishedSite) -> None:
    site.worker("w1", "busy", finished=4)
    site.queue.add(tasks(2))
    site.queue.delete(site.queue.lease(2, worker="w1"))
    site.clock.advance(2)
    (worker,), (pool,) = site.now().workers, site.now().pools
    assert (worker.state, worker.state_seconds, worker.finished) == ("idle", 2.0, 6)
    assert (pool.done, pool.busy, pool.ready, pool.in_flight) == (2, 0, 0, 0)


def test_what_the_supervisor_has_counted_is_not_counted_again(site: PublishedSite) -> None:
    site.worker("w1", "idle", finished=2)
    site.queue.add(tasks(3))
    site.queue.delete(site.queue.lease(2, worker="w1"))
    site.sample["cursor"] = site.queues.observe("thumbs").samples.cursor
    assert site.now().workers[0].finished == 2
    site.queue.delete(site.queue.lease(1, worker="w1"))
    assert site.now().workers[0].finished == 3
    del site.sample["cursor"]  # published by a supervisor that knew none
    assert site.now().workers[0].finished == 2


def test_a_worker_that_asked_for_a_task_is_idle_and_one_that_did_not_is_starting(site: PublishedSite) -> None:
    site.worker("w1", "starting")
    site.worker("w2", "starting")
    site.queue.lease(worker="w1")
    site.clock.advance(1)
    assert [(worker.state, worker.state_seconds) for worker in site.now().workers] == [("idle", 1.0), ("starting", 3.0)]


def test_a_worker_whose_lease_expired_holds_nothing(site: PublishedSite) -> None:
    site.worker("w1", "busy", holding=1)
    site.queue.add(tasks(1))
    site.queue.lease(worker="w1")
    site.clock.advance(61)
    (worker,) = site.now(seconds=61).workers
    assert (worker.state, worker.tasks, worker.holding) == ("idle", (), 0)


@pytest.mark.parametrize(("state", "shown"), [("draining", "finishing"), ("killed", "killed"), ("alone", "alone")])
def test_a_worker_that_leaves_or_works_alone_does_not_count_but_shows_its_task(
    site: PublishedSite, state: str, shown: str
) -> None:
    site.worker("w1", state)
    site.queue.add(tasks(1))
    site.queue.lease(worker="w1")
    (worker,), (pool,) = site.now().workers, site.now().pools
    assert (worker.state, [task.task for task in worker.tasks]) == (shown, ["resize-0"])
    assert (pool.workers, pool.busy) == (0, 0)


def test_a_worker_that_hung_is_busy_once_it_holds_a_task(site: PublishedSite) -> None:
    site.worker("w1", "unresponsive", condition="stopped")
    assert (site.now().workers[0].state, site.now().workers[0].notes) == ("unresponsive", ("stopped",))
    site.queue.add(tasks(1))
    site.queue.lease(worker="w1")
    assert (site.now().workers[0].state, site.now().workers[0].notes) == ("busy", ())


def test_a_worker_counts_until_its_replacement_is_there(site: PublishedSite) -> None:
    site.worker("w1", "idle", replaced_by="w2")
    assert site.now().pools[0].workers == 1
    site.worker("w2", "starting")
    assert site.now().pools[0].workers == 1


@pytest.mark.parametrize(
    ("tags", "ready"),
    [pytest.param(["resize"], 2, id="tags"), pytest.param("untagged", 1, id="untagged"), pytest.param([], 6, id="all")],
)
def test_a_pool_counts_the_tasks_of_its_tags(site: PublishedSite, tags: object, ready: int) -> None:
    site.settings["tags"] = tags
    site.queue.add([*tasks(2), *tasks(3, tag="render"), NewTask(b"untagged")])
    assert site.now().pools[0].ready == ready


def test_a_pool_whose_queue_is_gone_stays_as_it_was_published(site: PublishedSite) -> None:
    site.settings["queue"] = "gone"
    site.worker("w1", "busy", holding=1)
    figures = site.now()
    assert (figures.pools[0].ready, figures.pools[0].workers, figures.pools[0].done) == (99, 7, None)
    assert (figures.workers[0].state, figures.workers[0].holding) == ("busy", 1)


def test_a_worker_whose_call_waits_at_the_server_is_leasing() -> None:
    with a_server(spec=QueueSpec("thumbs")) as server, ThreadPoolExecutor(1) as calls:
        caller, observer = HttpQueues(server.url), HttpQueues(server.url)
        workers = [{"worker": name, "pool": "resize", "state": "idle", "since": SHOWN_AT} for name in ("w1", "w2")]
        snapshot: Json = {"pools": {"resize": {"settings": {"queue": "thumbs"}}}, "workers": workers}

        def states() -> list[str]:
            shown = refreshed(snapshot, observed_now(observer, snapshot), now_seconds=SHOWN_AT)
            return [worker.state for worker in figures_of(shown, now_seconds=SHOWN_AT).workers]

        call = calls.submit(caller.queue("thumbs").lease, worker="w1", wait_seconds=60)
        eventually(lambda: states() == ["leasing", "idle"])
        observer.queue("thumbs").add(b"task")
        call.result()
        assert states() == ["busy", "idle"]
        caller.close()
        observer.close()


def test_a_snapshot_that_says_little_is_shown_with_what_it_says() -> None:
    figures = figures_of({"pools": {"resize": {"current": 1}, "odd": None}, "workers": [{}, 3]}, now_seconds=0.0)
    assert [(pool.pool, pool.workers, pool.target) for pool in figures.pools] == [("resize", 1, None), ("odd", 0, None)]
    assert [worker.worker for worker in figures.workers] == [""]
    assert figures_of({}, now_seconds=0.0) == FleetFigures("", "")
