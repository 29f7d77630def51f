"""The jobs of tasks that run without a broker: their pool learns of them again, or their leases are given back."""

from collections.abc import Iterator
from types import SimpleNamespace
from weakref import ref

import pytest
from billiard.pool import ApplyResult
from celery.worker import state

from queue_core.kombu.celery_state import KeptJobs, running_tags
from queue_core.kombu.keeper import MISSES, LeaseKeeper
from queue_core.task import QueueSpec
from queue_core.testing import MemoryQueues


class RunningTask:
    """A task that runs in a pool, with its request in Celery's worker."""

    def __init__(self, tag: str, cache: dict[int, ApplyResult]) -> None:
        self.job = ApplyResult(cache, None)
        self._message = SimpleNamespace(delivery_tag=tag)
        self._apply_result = ref(self.job)
        state.active_requests.add(self)


@pytest.fixture
def cache() -> Iterator[dict[int, ApplyResult]]:
    """The jobs that a pool knows."""
    yield {}
    state.active_requests.clear()


def test_a_pool_that_forgot_its_jobs_learns_of_those_that_run(cache: dict[int, ApplyResult]) -> None:
    jobs, runs, cancelled = KeptJobs(), RunningTask("runs", cache), RunningTask("cancelled", cache)
    for tag in ("runs", "cancelled"):
        jobs.keep(tag)
    cache.clear()
    assert jobs.forgotten() == frozenset()
    state.active_requests.discard(cancelled)
    jobs.hand_back()
    assert [*cache.values()] == [runs.job]
    jobs.connection_lost()
    cache.clear()
    assert jobs.forgotten() == frozenset()
    jobs.hand_back()
    assert [*cache.values()] == [runs.job]


def test_a_kept_lease_whose_job_no_pool_knows_is_given_back(cache: dict[int, ApplyResult]) -> None:
    jobs, queues = KeptJobs(), MemoryQueues(QueueSpec("work"))
    queues.queue("work").add(b"x")
    (lease,) = queues.queue("work").lease()
    running = lambda: running_tags() - jobs.forgotten()  # noqa: E731
    keeper = LeaseKeeper(queues, running=running, clock=queues.clock, starts_thread=False)
    keeper.hold(lease)
    task = RunningTask(lease.token, cache)
    jobs.keep(lease.token)
    keeper.keep(lease.token)
    jobs.hand_back()
    for _ in range(MISSES):
        keeper.do_round()
    assert keeper.is_held(lease.token)
    task.job.discard()
    for _ in range(MISSES):
        keeper.do_round()
    assert (keeper.is_held(lease.token), queues.queue("work").stats().ready) == (False, 1)
