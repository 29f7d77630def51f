"""Hosts whose clocks are an hour off share a store with one that is right: the store's clock decides for all."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import pytest

from queue_core.client.connect import open_queues
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import SystemClock, seconds_between
from queue_core.task import Lease, NewTask, QueueSpec
from tests.support.eventually import eventually
from tests.support.skewed_host import SkewedHost, a_skewed_host
from tests.support.stores.engines import EngineUnavailableError
from tests.support.stores.shared_engines import SharedEngines

HOUR = 3600.0
HONEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Hosts:
    """Ours, one an hour ahead and one an hour behind."""

    ours: LocalQueues
    ahead: SkewedHost
    behind: SkewedHost

    def new_queue(self, name: str) -> LocalQueue:
        self.ours.put_queue(QueueSpec(name, retry_min_seconds=0.0, retry_max_seconds=0.0))
        return self.ours.queue(name)


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def hosts(request: pytest.FixtureRequest, shared_engines: SharedEngines) -> Iterator[Hosts]:
    try:
        url = shared_engines.new_url(request.param)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    with (
        closing(open_queues(url)) as ours,
        a_skewed_host(url, seconds=HOUR) as ahead,
        a_skewed_host(url, seconds=-HOUR) as behind,
    ):
        assert isinstance(ours, LocalQueues)
        yield Hosts(ours, ahead, behind)


def test_a_host_whose_clock_is_an_hour_off_changes_nothing(hosts: Hosts) -> None:
    clock, queue = SystemClock(), hosts.new_queue("shared")
    hosts.ahead("shared", "add", NewTask(b"from ahead"))
    hosts.behind("shared", "add", NewTask(b"from behind"))
    leases = queue.lease(2, seconds=60.0)
    assert [lease.payload for lease in leases] == [b"from ahead", b"from behind"]
    assert all(abs(seconds_between(lease.ready_at, clock.now())) < HONEST_SECONDS for lease in leases)

    assert hosts.ahead("shared", "lease", 1) == hosts.behind("shared", "lease", 1) == []
    queue.release(leases, delay_seconds=0.0)
    (of_behind,) = cast("list[Lease]", hosts.behind("shared", "lease", 1, seconds=60.0))
    (of_ahead,) = cast("list[Lease]", hosts.ahead("shared", "lease", 1, seconds=60.0))
    assert queue.lease(1) == []
    for lease in (of_behind, of_ahead):
        assert abs(seconds_between(lease.leased_at, clock.now())) < HONEST_SECONDS
        assert HONEST_SECONDS < seconds_between(clock.now(), lease.expires_at) <= 60.0 + HONEST_SECONDS
    hosts.behind("shared", "renew", of_behind, seconds=30.0)
    hosts.ahead("shared", "delete", of_ahead)
    hosts.behind("shared", "delete", of_behind)
    stats = queue.stats()
    assert (stats.ready, stats.in_flight, stats.expired_total, stats.deleted_total) == (0, 0, 0, 2)


def test_a_delay_and_the_end_of_a_lease_come_when_they_should_on_every_host(hosts: Hosts) -> None:
    queue = hosts.new_queue("delayed")
    hosts.behind("delayed", "add", [NewTask(b"later", delay_seconds=30.0), NewTask(b"soon", delay_seconds=0.3)])
    assert hosts.ahead("delayed", "lease", 2) == []
    (soon,) = cast("list[Lease]", eventually(lambda: hosts.ahead("delayed", "lease", 2, seconds=0.3)))
    assert soon.payload == b"soon"
    (again,) = cast("list[Lease]", eventually(lambda: hosts.behind("delayed", "lease", 2, seconds=30.0)))
    assert (again.payload, again.lease_number) == (b"soon", 2)
    assert queue.lease(2) == []
    assert queue.stats().delayed == 1


def test_a_lead_is_kept_against_hosts_whose_clock_says_that_it_is_over(hosts: Hosts) -> None:
    assert hosts.behind("", "lead", "fleet", "behind", seconds=30.0)
    assert not hosts.ahead("", "lead", "fleet", "ahead", seconds=30.0)
    assert not hosts.ours.lead("fleet", "ours", seconds=30.0)
    assert hosts.behind("", "lead", "fleet", "behind", seconds=0.2)
    assert eventually(lambda: hosts.ahead("", "lead", "fleet", "ahead", seconds=30.0))
