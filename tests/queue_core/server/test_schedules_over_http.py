"""Schedules over HTTP: the same verbs and the same errors as with an opened store."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.schedules import Schedules
from queue_core.clock import MICROSECONDS, Instant, ManualClock, SteadyClock, after
from queue_core.errors import InvalidRequestError, PermissionDeniedError, UnknownScheduleError
from queue_core.schedules.schedule import CatchUp, Schedule
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server, a_timed_server

SECONDLY = Schedule("secondly", QUEUE, every=1.0, payload=b"\x00tick", tag="t", headers={"n": "1"}, max_leases=3)


@dataclass(frozen=True)
class TimedClient:
    """A client of a server under a manual clock."""

    server: RunningServer
    clock: ManualClock
    queues: HttpQueues

    @property
    def schedules(self) -> Schedules:
        """The schedules, over HTTP."""
        return self.queues.schedules


@pytest.fixture
def timed() -> Iterator[TimedClient]:
    """A client of a server with one schedule."""
    with a_timed_server() as (running, clock), closing(running.queues()) as queues:
        queues.schedules.declare([SECONDLY])
        yield TimedClient(running, clock, queues)


def test_a_client_sees_what_a_program_with_the_store_sees(timed: TimedClient) -> None:
    ours, theirs = timed.schedules, LocalQueues(QueueService(timed.server.store, clock=timed.clock)).schedules
    timed.clock.advance(2)
    assert [one.task for one in ours.add_ticks().added] == ["secondly-20231114T221321Z", "secondly-20231114T221322Z"]
    assert ours.list() == theirs.list()
    assert ours.pause("secondly") == theirs.list()[0]
    assert ours.resume("secondly") == theirs.list()[0]
    assert ours.add_ticks() == theirs.add_ticks()
    for lease in timed.queues.queue(QUEUE).lease(10, worker="w"):
        assert (lease.payload, lease.tag, lease.headers) == (b"\x00tick", "t", {"n": "1"})


def test_what_was_missed_and_what_is_amiss_travels(timed: TimedClient) -> None:
    schedules = timed.schedules
    changes = schedules.declare([SECONDLY, Schedule("lost", "nowhere", cron="* * * * *", origin="tasks:app")])
    assert (changes.added, changes.is_any) == (("lost",), True)
    timed.clock.advance(3600)
    report = schedules.add_ticks()
    assert [(one.schedule, one.catch_up) for one in report.missed] == [("secondly", "skip")]
    assert [one.schedule for one in report.troubles] == ["lost"]
    assert {one.schedule for one in report.coming} == {"secondly", "lost"}
    assert schedules.declare([], keep=["tasks:app"]).removed == ("secondly",)


def test_ticks_that_were_skipped_travel(timed: TimedClient) -> None:
    schedules = timed.schedules
    assert schedules.declare([replace(SECONDLY, overlap="skip")]).changed == ("secondly",)
    timed.clock.advance(3)
    (skipped,) = schedules.add_ticks().skipped
    (status,) = schedules.list()
    assert (skipped.count, skipped.task) == (2, "secondly-20231114T221321Z")
    assert (status.overlap, status.skipped, status.last_skipped) == ("skip", 2, skipped.last)


def test_a_run_by_hand_and_unknown_names(timed: TimedClient) -> None:
    schedules = timed.schedules
    added = schedules.run("secondly")
    assert (added.is_new, added.tick) == (True, timed.clock.now())
    for verb in (schedules.run, schedules.pause, schedules.resume):
        with pytest.raises(UnknownScheduleError, match="schedules: secondly"):
            verb("nope/x")


@pytest.mark.parametrize("wrong", [{"cron": "x", "every": None}, {"name": "a b"}, {"payload": b"x" * 20_000}])
def test_a_wrong_declaration_is_refused(timed: TimedClient, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        timed.schedules.declare([replace(SECONDLY, **wrong)])  # type: ignore[arg-type]


def test_a_producer_may_run_a_schedule_and_not_pause_it() -> None:
    secret = "producer-0123456789abcdef"
    tokens = (AccessToken(Role.PRODUCER, secret), AccessToken(Role.ADMIN, "admin-0123456789abcdef"))
    with (
        a_server(options=ServeOptions(tokens=tokens)) as server,
        closing(server.queues(token="admin-0123456789abcdef")) as admin,
        closing(server.queues(token=secret)) as producer,
    ):
        admin.schedules.declare([SECONDLY])
        theirs = producer.schedules
        assert theirs.run("secondly").is_new
        for verb in (theirs.pause, theirs.resume):
            with pytest.raises(PermissionDeniedError):
                verb("secondly")
        with pytest.raises(PermissionDeniedError):
            theirs.add_ticks()


@pytest.mark.parametrize(
    ("catch_up", "count"),
    [pytest.param("skip", 1, id="skip"), pytest.param("last", 1, id="last"), pytest.param("all", 6, id="all")],
)
def test_ticks_go_by_the_wall_clock_while_the_stores_time_lags_behind_it(catch_up: CatchUp, count: int) -> None:
    """A host that slept: its wall clock is an hour ahead of the time that the store counts leases by."""
    host = ManualClock(Instant(1_700_001_000 * MICROSECONDS))
    store = MemoryStore()
    store.clock = clock = SteadyClock(host, boot="boot")
    queues = LocalQueues(QueueService(store))
    queues.put_queue(QueueSpec(QUEUE))
    queues.schedules.declare([replace(SECONDLY, every=600.0, catch_up=catch_up)])
    host.step(3600)
    host.advance(1)
    queues.put_queue(QueueSpec(QUEUE))  # a change notices the step
    assert len(queues.schedules.add_ticks().added) == count
    assert after(clock.now(), 600) < host.now()
    assert len(queues.queue(QUEUE).lease(10, worker="w")) == count
    host.advance(599)
    assert len(queues.schedules.add_ticks().added) == 1
