"""Schedules on every store: each tick is added once, by any number of callers, through deletion, restart and races."""

from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.client.schedules import Schedules
from queue_core.clock import START, ManualClock
from queue_core.errors import InvalidRequestError, UnknownScheduleError
from queue_core.schedules.report import TickReport
from queue_core.schedules.schedule import Schedule
from queue_core.store import Store
from queue_core.task import QueueSpec
from queue_core.unit import schedules as verbs
from queue_core.unit.service import QueueService
from tests.support.stores.restored_tasks import opened_again
from tests.support.stores.task_builders import QUEUE, a_queue, at

SECONDLY = Schedule("secondly", QUEUE, every=1.0, payload=b"tick", tag="t", headers={"n": "1"}, catch_up="all")


class Site:
    """A program with an opened store, and a clock that only moves when told."""

    def __init__(self, store: Store, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(START)
        self.queues = LocalQueues(QueueService(store, clock=self.clock))

    @property
    def schedules(self) -> Schedules:
        """The schedules."""
        return self.queues.schedules

    def ticks(self, seconds: float = 0.0) -> TickReport:
        """Let time pass, then add what is due."""
        self.clock.advance(seconds)
        return self.schedules.add_ticks()

    def finish_all(self) -> list[str]:
        """Lease and delete every task; return the names."""
        queue, names = self.queues.queue(QUEUE), []
        while leases := queue.lease(100, worker="w"):
            names += [lease.name for lease in leases]
            queue.delete(leases)
        return names


@pytest.fixture
def site(store: Store) -> Site:
    """A store with one schedule, of a tick a second."""
    site = Site(store)
    site.schedules.declare([SECONDLY])
    return site


def test_a_tick_is_a_task_with_all_that_the_schedule_says(site: Site) -> None:
    assert site.ticks(0.999999).added == ()
    (added,) = site.ticks(0.000001).added
    assert (added.schedule, added.queue, added.tick, added.is_new) == ("secondly", QUEUE, at(1), True)
    (lease,) = site.queues.queue(QUEUE).lease(10, worker="w")
    assert (lease.name, lease.payload, lease.tag, lease.headers) == (added.task, b"tick", "t", {"n": "1"})
    assert (added.task, lease.ready_at) == ("secondly-20231114T221321Z", at(1))


def test_the_report_names_the_next_tick(site: Site) -> None:
    (coming,) = site.ticks(1.5).coming
    assert (coming.schedule, coming.queue, coming.tag, coming.tick) == ("secondly", QUEUE, "t", at(2))


def test_a_tick_that_was_done_and_deleted_is_not_added_again(site: Site, store: Store) -> None:
    site.ticks(1)
    assert len(site.finish_all()) == 1
    another = Site(store, site.clock)
    assert another.ticks().added == ()
    assert another.ticks(0.5).added == ()
    assert site.finish_all() == []


def test_names_that_are_free_at_once_make_no_second_task(store: Store) -> None:
    a_queue(store, "free", name_retention_seconds=0.0)
    site = Site(store)
    site.schedules.declare([replace(SECONDLY, queue="free")])
    assert len(site.ticks(3).added) == 3
    leases = site.queues.queue("free").lease(10, worker="w")
    site.queues.queue("free").delete(leases)
    assert Site(store, site.clock).ticks().added == ()


def test_the_last_tick_outlives_the_process(site: Site, store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    site.ticks(2)
    site.finish_all()
    other = opened_again(store)
    try:
        assert [one.tick for one in Site(other, site.clock).ticks(1).added] == [at(3)]
    finally:
        other.close()


def test_a_tick_whose_caller_was_behind_is_refused_by_its_name(site: Site, store: Store) -> None:
    """A store that commits each verb by itself: the caller ends between the add and the note of it."""
    site.queues.queue(QUEUE).add(SECONDLY.task(SECONDLY.task_name(at(1)), eta=at(1)))
    site.clock.advance(1)
    site.finish_all()
    (added,) = Site(store, site.clock).ticks().added
    assert (added.tick, added.is_new) == (at(1), False)
    assert site.finish_all() == []


def test_many_callers_at_once_add_each_tick_once(store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    clock = ManualClock(START)
    Site(store, clock).schedules.declare([SECONDLY])
    others = [opened_again(store) for _ in range(2)]
    reports: list[TickReport] = []

    def add(where: Store) -> None:
        reports.extend([Site(where, clock).schedules.add_ticks() for _ in range(4)])

    try:
        for _ in range(5):
            clock.advance(1)
            threads = [Thread(target=add, args=(where,)) for where in (store, *others)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        for other in others:
            other.close()
    added = [one.tick for report in reports for one in report.added if one.is_new]
    assert len(added) == len(set(added))
    expected = [SECONDLY.task_name(at(second)) for second in range(1, 6)]
    assert sorted(Site(store, clock).finish_all()) == expected


@pytest.mark.parametrize(("catch_up", "seconds"), [("skip", range(3_540, 3_601)), ("last", [3_600])])
def test_a_host_that_slept_for_an_hour(store: Store, catch_up: str, seconds: list[int]) -> None:
    site = Site(store)
    site.schedules.declare([replace(SECONDLY, catch_up=catch_up)])  # type: ignore[arg-type]
    report = site.ticks(3_600)
    assert [one.tick for one in report.added] == [at(second) for second in seconds]
    (missed,) = report.missed
    assert (missed.first, missed.last) == (at(1), at(seconds[0] - 1))
    assert site.schedules.list()[0].missed == missed.count
    assert [one.tick for one in site.ticks(1).added] == [at(3_601)]


def test_a_host_that_slept_for_ten_minutes_and_catches_up_all(site: Site) -> None:
    found = []
    site.clock.advance(600)
    while (report := site.ticks()).added:
        found += [one.tick for one in report.added]
    assert found == [at(second) for second in range(1, 601)]
    assert len(site.finish_all()) == 600


def test_a_paused_schedule_misses_nothing(site: Site) -> None:
    site.ticks(1)
    assert site.schedules.pause("secondly").paused_at == at(1)
    assert site.ticks(100).added == ()
    assert site.schedules.pause("secondly").paused_at == at(1)
    assert site.schedules.resume("secondly").next_tick == at(102)
    report = site.ticks(1)
    assert [one.tick for one in report.added] == [at(102)]
    assert report.missed == ()


def test_a_paused_schedule_has_no_next_tick_and_can_be_run(site: Site) -> None:
    site.schedules.pause("secondly")
    assert site.schedules.list()[0].next_tick is None
    assert site.schedules.run("secondly").is_new
    assert site.ticks(5).coming == ()
    (name,) = site.finish_all()
    assert name.startswith("secondly-manual-")


def test_a_run_by_hand_is_beside_the_ticks(site: Site) -> None:
    site.clock.advance(1)
    first = site.schedules.run("secondly")
    site.clock.advance(0.000001)
    second = site.schedules.run("secondly")
    assert first.task != second.task
    assert [one.tick for one in site.ticks().added] == [at(1)]
    assert len(site.finish_all()) == 3


def test_what_is_declared_no_more_disappears(site: Site) -> None:
    other = Schedule("other", QUEUE, cron="0 3 * * *", origin="tasks:app")
    changes = site.schedules.declare([other], keep=["elsewhere:app"])
    assert (changes.added, changes.changed, changes.removed) == (("other",), (), ("secondly",))
    assert [one.name for one in site.schedules.list()] == ["other"]
    assert site.ticks(10).added == ()


def test_schedules_of_an_application_that_is_not_known_yet_stay(site: Site) -> None:
    site.schedules.declare([SECONDLY, Schedule("theirs", QUEUE, every=60.0, origin="tasks:app")])
    changes = site.schedules.declare([SECONDLY], keep=["tasks:app"])
    assert not changes.is_any
    assert [one.name for one in site.schedules.list()] == ["secondly", "theirs"]


def test_a_declaration_that_says_the_same_changes_nothing(site: Site) -> None:
    site.ticks(5)
    assert not site.schedules.declare([SECONDLY]).is_any
    assert site.ticks(0).added == ()


def test_other_times_begin_anew_and_another_payload_does_not(site: Site) -> None:
    site.ticks(10)
    assert site.schedules.declare([replace(SECONDLY, payload=b"new")]).changed == ("secondly",)
    assert [one.tick for one in site.ticks(1).added] == [at(11)]
    site.clock.advance(50)
    assert site.schedules.declare([replace(SECONDLY, every=2.0)]).changed == ("secondly",)
    assert [one.tick for one in site.ticks(2).added] == [at(62)]


def test_a_schedule_stays_paused_when_it_is_declared_anew(site: Site) -> None:
    site.schedules.pause("secondly")
    site.schedules.declare([replace(SECONDLY, payload=b"new")])
    assert site.schedules.list()[0].paused_at == START


def test_a_queue_that_is_missing_keeps_no_other_schedule_up(site: Site) -> None:
    lost = Schedule("lost", "nowhere", every=1.0)
    site.schedules.declare([lost, SECONDLY])
    report = site.ticks(1)
    assert [one.schedule for one in report.added] == ["secondly"]
    (trouble,) = report.troubles
    assert trouble.schedule == "lost"
    assert "no queue 'nowhere'" in trouble.why
    assert [one.trouble for one in site.schedules.list()] == [trouble.why, ""]
    site.queues.put_queue(QueueSpec("nowhere"))
    assert ("lost", at(1)) in {(one.schedule, one.tick) for one in site.ticks(1).added}


def test_a_schedule_that_nobody_serves_says_so(site: Site) -> None:
    site.clock.advance(61)
    assert site.schedules.list()[0].trouble == ""
    site.clock.advance(0.1)
    assert site.schedules.list()[0].trouble == verbs.NO_LEADER
    site.ticks()
    assert site.schedules.list()[0].trouble == ""


def test_a_clock_that_is_set_far_back_stops_no_schedule_and_repeats_no_tick(site: Site) -> None:
    site.ticks(200)
    while site.ticks().added:
        pass
    done = site.finish_all()
    site.clock.step(-100)
    assert site.ticks().went_back
    again = [one for one in site.ticks(1).added if one.is_new]
    assert again == []
    assert (len(done), site.finish_all()) == (200, [])
    site.ticks(100)
    assert len(site.finish_all()) == 1


@pytest.mark.parametrize("verb", [Schedules.run, Schedules.pause, Schedules.resume])
def test_an_unknown_schedule_is_named_with_others(site: Site, verb: Callable[[Schedules, str], object]) -> None:
    with pytest.raises(UnknownScheduleError, match="schedules: secondly"):
        getattr(site.schedules, verb.__name__)("nightly")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"name": "a b"}, id="name"),
        pytest.param({"queue": ""}, id="queue"),
        pytest.param({"every": 0.5}, id="every"),
        pytest.param({"cron": "* * * * *"}, id="both"),
        pytest.param({"every": None}, id="neither"),
        pytest.param({"every": None, "cron": "x"}, id="cron"),
        pytest.param({"timezone": "Mars"}, id="zone"),
        pytest.param({"payload": b"x" * 16_385}, id="payload"),
        pytest.param({"tag": ""}, id="tag"),
        pytest.param({"headers": {"a b": ""}}, id="headers"),
        pytest.param({"catch_up": "some"}, id="catch_up"),
        pytest.param({"overlap": "some"}, id="overlap"),
    ],
)
def test_a_declaration_that_can_not_be_changes_nothing(site: Site, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        site.schedules.declare([replace(SECONDLY, **wrong)])  # type: ignore[arg-type]
    assert [one.name for one in site.schedules.list()] == ["secondly"]


# -- ticks that overlap ------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(store: Store) -> Site:
    """A store with one schedule, of a tick a second that is skipped where it overlaps."""
    site = Site(store)
    site.schedules.declare([replace(SECONDLY, overlap="skip")])
    return site


def test_a_tick_that_overlaps_is_skipped_while_the_last_task_waits_or_runs(alone: Site) -> None:
    (first,) = alone.ticks(1).added
    report = alone.ticks(1)
    (skipped,) = report.skipped
    assert (report.added, skipped.count, skipped.first, skipped.last) == ((), 1, at(2), at(2))
    assert (skipped.schedule, skipped.queue, skipped.task) == ("secondly", QUEUE, first.task)
    leases = alone.queues.queue(QUEUE).lease(1, worker="w")
    assert (alone.ticks(1).added, alone.ticks(0).skipped) == ((), ())
    alone.queues.queue(QUEUE).release(leases, delay_seconds=60.0)
    assert alone.ticks(1).added == ()
    (status,) = alone.schedules.list()
    assert (status.overlap, status.skipped, status.last_skipped, status.missed) == ("skip", 3, at(4), 0)
    assert (status.last_tick, status.last_task) == (at(1), first.task)


def test_the_tick_after_the_last_task_is_done_is_added(alone: Site) -> None:
    alone.ticks(1)
    alone.ticks(1)
    alone.finish_all()
    report = alone.ticks(1)
    assert ([one.tick for one in report.added], report.skipped) == ([at(3)], ())


def test_a_task_that_failed_for_good_does_not_keep_the_next_tick_off(store: Store) -> None:
    site = Site(store)
    site.schedules.declare([replace(SECONDLY, overlap="skip", max_leases=1)])
    site.ticks(1)
    queue = site.queues.queue(QUEUE)
    queue.release(queue.lease(1, worker="w"))
    assert queue.stats().dead == 1
    assert [one.tick for one in site.ticks(1).added] == [at(2)]


def test_of_ticks_that_are_due_together_only_the_first_is_added(alone: Site) -> None:
    report = alone.ticks(3)
    (skipped,) = report.skipped
    assert [one.tick for one in report.added] == [at(1)]
    assert (skipped.count, skipped.first, skipped.last) == (2, at(2), at(3))
    assert alone.ticks().skipped == ()


def test_a_task_that_was_added_by_hand_skips_no_tick(alone: Site) -> None:
    alone.schedules.run("secondly")
    assert [one.tick for one in alone.ticks(1).added] == [at(1)]


def test_skipped_ticks_are_known_after_a_restart(alone: Site, store: Store) -> None:
    alone.ticks(2)
    other = Site(store, alone.clock)
    assert [one.count for one in other.ticks(1).skipped] == [1]
    (status,) = other.schedules.list()
    assert status.skipped == 2
