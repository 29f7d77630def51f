"""Tasks that run without a broker are acknowledged when it is back, or their leases are given back."""

from collections.abc import Iterator
from types import SimpleNamespace
from weakref import ref

import pytest
from billiard.pool import ApplyResult
from celery.worker import state

from queue_core.celery.transport.celery_state import KeptTasks
from queue_core.celery.transport.keeper import MISSES, LeaseKeeper
from queue_core.task import QueueSpec
from queue_core.testing import MemoryQueues


class RunningTask:
    """A task that runs in a pool, with its request in Celery's worker."""

    def __init__(self, tag: str, cache: dict[int, ApplyResult]) -> None:
        self.job = ApplyResult(cache, None)
        self.acknowledged = False
        self._message = SimpleNamespace(delivery_tag=tag)
        self._apply_result = ref(self.job)
        state.active_requests.add(self)


class Site:
    """A worker's memory, and a keeper of one lease whose task runs."""

    def __init__(self) -> None:
        self.cache: dict[int, ApplyResult] = {}
        self.kept = KeptTasks()
        self.queues = MemoryQueues(QueueSpec("work"))
        self.keeper = LeaseKeeper(self.queues, running=self.kept.awaited, clock=self.queues.clock, starts_thread=False)
        self.queues.queue("work").add(b"x")
        (lease,) = self.queues.queue("work").lease()
        self.keeper.hold(lease)
        self.tag = lease.token
        self.task = RunningTask(self.tag, self.cache)
        self.kept.keep(self.tag)
        self.keeper.keep(self.tag)

    def is_kept(self) -> bool:
        """Let rounds pass, and return whether the lease is kept."""
        for _ in range(MISSES):
            self.keeper.do_round()
        return self.keeper.is_held(self.tag)


@pytest.fixture
def site() -> Iterator[Site]:
    yield Site()
    state.active_requests.clear()


def test_a_pool_that_forgot_its_jobs_learns_of_them_after_each_outage(site: Site) -> None:
    for _ in range(2):
        site.kept.loop_ended()
        site.cache.clear()
        assert site.is_kept()
        site.kept.loop_began(site.keeper.held())
        assert [*site.cache.values()] == [site.task.job]
        assert site.is_kept()


def test_a_task_that_was_given_up_is_not_handed_back(site: Site) -> None:
    site.cache.clear()
    state.active_requests.discard(site.task)
    site.kept.loop_began(site.keeper.held())
    assert (site.cache, site.is_kept(), site.queues.queue("work").stats().ready) == ({}, False, 1)


def test_a_kept_lease_whose_job_no_pool_knows_is_given_back(site: Site) -> None:
    site.kept.loop_began(site.keeper.held())
    assert site.is_kept()
    site.task.job.discard()
    assert (site.is_kept(), site.queues.queue("work").stats().ready) == (False, 1)


def test_a_task_that_ends_in_an_outage_keeps_its_lease_until_it_can_be_acknowledged(
    site: Site,
) -> None:
    state.active_requests.discard(site.task)
    site.task.acknowledged = True
    assert site.is_kept()
    site.kept.loop_began(site.keeper.held())
    assert site.keeper.is_held(site.tag)
    assert not site.is_kept()
