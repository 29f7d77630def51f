"""Leases are renewed while they are held, whatever becomes of their connection, and ended once."""

import pytest

from queue_core.celery.transport.keeper import RETRY_SECONDS, GivenBack, LeaseKeeper
from queue_core.errors import StoreUnavailableError
from queue_core.stats import QueueStats
from queue_core.task import Lease, QueueSpec, TaskState
from queue_core.testing import MemoryQueues

LEASE_SECONDS = 30.0


class Site:
    """A keeper over a store in memory, in virtual time, and the tasks that run."""

    def __init__(self) -> None:
        self.queues = MemoryQueues(QueueSpec("work", lease_seconds=LEASE_SECONDS, max_leases=2))
        self.queue = self.queues.queue("work")
        self.running: set[str] = set()
        self.keeper = LeaseKeeper(
            self.queues, running=lambda: frozenset(self.running), clock=self.queues.clock, starts_thread=False
        )

    def lease(self) -> Lease:
        self.queue.add(b"x")
        (lease,) = self.queue.lease()
        self.keeper.hold(lease)
        return lease

    def let_pass(self, seconds: float) -> None:
        """Let time pass, with a round of the keeper whenever one is due."""
        left = seconds
        while left > 0:
            pause = self.keeper.do_round()
            step = left if pause is None else min(left, max(pause, 0.1))
            self.queues.clock.advance(step)
            left -= step
        self.keeper.do_round()

    def stats(self) -> QueueStats:
        return self.queue.stats()


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_held_lease_does_not_expire(site: Site) -> None:
    site.lease()
    site.let_pass(20 * LEASE_SECONDS)
    assert (site.stats().in_flight, site.stats().expired_total) == (1, 0)


@pytest.mark.parametrize(("lease_seconds", "pause_seconds"), [(0.6, 0.2), (LEASE_SECONDS, RETRY_SECONDS)])
def test_the_next_round_is_due_in_time(site: Site, lease_seconds: float, pause_seconds: float) -> None:
    site.queue.add(b"x")
    (lease,) = site.queue.lease(seconds=lease_seconds)
    site.keeper.hold(lease)
    assert site.keeper.do_round() == pytest.approx(pause_seconds)


def test_nothing_is_due_where_nothing_is_held(site: Site) -> None:
    assert site.keeper.do_round() is None


def test_an_acknowledged_lease_is_deleted_once(site: Site) -> None:
    lease = site.lease()
    site.keeper.end(lease.token, None)
    site.keeper.end(lease.token, None)
    site.keeper.flush()
    assert (site.stats().deleted_total, site.keeper.has_endings()) == (1, False)


def test_a_lost_lease_is_renewed_no_more_and_its_late_end_changes_nothing(site: Site) -> None:
    lease = site.lease()
    site.queue.release(lease, delay_seconds=0)
    site.queues.clock.advance(LEASE_SECONDS)
    site.keeper.do_round()
    assert not site.keeper.is_held(lease.token)
    site.keeper.end(lease.token, None)
    site.keeper.flush()
    assert (site.stats().ready, site.stats().deleted_total) == (1, 0)


def test_a_kept_lease_is_renewed_while_its_task_runs_and_ended_by_its_late_acknowledgement(site: Site) -> None:
    lease = site.lease()
    site.running.add(lease.token)
    site.keeper.keep(lease.token)
    site.let_pass(5 * LEASE_SECONDS)
    assert site.stats().in_flight == 1
    site.keeper.end(lease.token, None)
    site.keeper.do_round()
    assert site.stats().deleted_total == 1


def test_a_kept_lease_whose_task_was_given_up_is_given_back(site: Site) -> None:
    lease = site.lease()
    site.running.add(lease.token)
    site.keeper.keep(lease.token)
    site.let_pass(5)
    site.running.clear()
    site.let_pass(5)
    assert (site.stats().ready, site.stats().expired_total) == (1, 0)


def test_a_task_at_its_limit_is_dead_with_its_reason(site: Site) -> None:
    for _ in range(2):
        if not site.stats().added_total:
            lease = site.lease()
        else:
            (lease,) = site.queue.lease()
            site.keeper.hold(lease)
        site.keeper.end(lease.token, GivenBack(delay_seconds=0, error="the process that ran it died"))
        site.keeper.flush()
    (dead,) = site.queue.peek().tasks
    assert (dead.state, "the process that ran it died" in dead.reason) == (TaskState.DEAD, True)


def test_deletions_that_a_call_did_not_bring_wait_again(site: Site) -> None:
    lease = site.lease()
    site.keeper.end(lease.token, None)
    with pytest.raises(StoreUnavailableError), site.keeper.deletions("work") as deletions:
        assert [one.token for one in deletions] == [lease.token]
        raise StoreUnavailableError("gone")
    site.keeper.flush()
    assert site.stats().deleted_total == 1


def test_a_flush_leaves_what_is_spared_to_the_next(site: Site) -> None:
    early, late = site.lease(), site.lease()
    site.keeper.end(early.token, None)
    spared = site.keeper.held()
    site.keeper.end(late.token, None)
    site.keeper.flush(spared=spared)
    assert (site.stats().deleted_total, site.keeper.has_endings()) == (1, True)
    site.keeper.flush()
    assert (site.stats().deleted_total, site.keeper.has_endings()) == (2, False)


def test_the_child_of_a_fork_renews_nothing_of_its_parent(site: Site) -> None:
    lease = site.lease()
    site.keeper.renew_after_fork()
    assert not site.keeper.is_held(lease.token)
    assert site.keeper.do_round() is None
