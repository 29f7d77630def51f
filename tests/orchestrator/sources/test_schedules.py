"""The ticks that a leading supervisor adds: what it declares, when it looks again, what it tells."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting, with_ticks
from orchestrator.sources.pull_queue import QueueSource
from orchestrator.sources.schedules import IDLE_SECONDS, LOOK_SECONDS, RETRY_SECONDS, ScheduleTicks, missed_sentence
from queue_core.client.local_calls import LocalQueues
from queue_core.clock import START, Instant, ManualClock, after
from queue_core.schedules.book import schedule_json
from queue_core.schedules.report import MissedTicks
from queue_core.schedules.schedule import MAX_COUNTED, Schedule
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.fleet.fleet_builders import a_pool

SECONDLY = Schedule("secondly", "work", every=1.0, origin="towline.yaml")
OF_APP = Schedule("of-app", "work", every=60.0, tag="t", origin="tasks:app")


class TickedQueues:
    """A memory store under a manual clock, and the ticks that are added to it."""

    def __init__(self, *schedules: Schedule) -> None:
        self.clock = ManualClock(START)
        self.queues = LocalQueues(QueueService(MemoryStore(), clock=self.clock))
        self.queues.put_queue(QueueSpec("work"))
        self.ticks = ScheduleTicks(self.queues, file=[schedule_json(one) for one in schedules])

    @property
    def now(self) -> Monotonic:
        """The supervisor's clock."""
        return Monotonic(self.clock.monotonic())

    def run(self, seconds: float = 0.0) -> list[str]:
        """Let time pass and run; return the events that were logged."""
        self.clock.advance(seconds)
        with capture_logs() as logs:
            self.ticks.run(now=self.now)
        return [str(entry["event"]) for entry in logs]

    def names(self) -> list[str]:
        """The schedules that the store has."""
        return [one.name for one in self.queues.schedules.list()]

    def added(self) -> int:
        """How many tasks were added."""
        return self.queues.queue("work").stats().added_total


@pytest.fixture
def site() -> TickedQueues:
    """A site with a tick a second."""
    return TickedQueues(SECONDLY)


def test_the_schedules_of_the_file_are_declared_and_their_ticks_added(site: TickedQueues) -> None:
    assert site.run() == [events.SCHEDULES_DECLARED]
    assert site.run(1) == [events.SCHEDULE_ADDED]
    assert (site.names(), site.added()) == (["secondly"], 1)


def test_it_is_due_at_the_next_tick_and_does_nothing_before(site: TickedQueues) -> None:
    site.run(0.25)
    assert site.ticks.due_at == pytest.approx(site.now + 0.75)
    site.clock.step(10)  # a look would find ticks
    assert site.run(0.5) == []


def test_without_schedules_it_looks_now_and_then() -> None:
    site = TickedQueues()
    site.run()
    assert site.ticks.due_at == site.now + IDLE_SECONDS


def test_it_looks_each_second_as_a_schedule_may_be_resumed_elsewhere() -> None:
    site = TickedQueues(replace(SECONDLY, every=3600.0))
    site.run()
    assert site.ticks.due_at == site.now + LOOK_SECONDS


def test_schedules_of_an_application_stay_until_it_was_imported(site: TickedQueues) -> None:
    site.queues.schedules.declare([OF_APP])
    site.ticks.set_pools([a_pool(app="tasks:app", command=None)])
    site.run()
    assert site.names() == ["of-app", "secondly"]
    site.ticks.set_application("tasks:app", [])
    site.run()
    assert site.names() == ["secondly"]


def test_schedules_of_an_application_that_no_pool_has_disappear(site: TickedQueues) -> None:
    site.ticks.set_pools([a_pool(app="tasks:app", command=None)])
    site.ticks.set_application("tasks:app", [schedule_json(OF_APP)])
    site.run()
    assert site.names() == ["of-app", "secondly"]
    site.ticks.set_pools([])
    site.run()
    assert site.names() == ["secondly"]


def test_the_same_schedules_again_are_not_declared_again(site: TickedQueues) -> None:
    site.ticks.set_pools([a_pool(app="tasks:app", command=None)])
    site.ticks.set_application("tasks:app", [schedule_json(OF_APP)])
    site.run()
    due_at = site.ticks.due_at
    site.ticks.set_application("tasks:app", [schedule_json(OF_APP)])
    assert site.ticks.due_at == due_at


def test_of_two_schedules_of_one_name_that_of_the_file_holds(site: TickedQueues) -> None:
    site.ticks.set_pools([a_pool(app="tasks:app", command=None)])
    site.ticks.set_application("tasks:app", [schedule_json(replace(OF_APP, name="secondly"))])
    assert events.SCHEDULE_REFUSED in site.run()
    (found,) = site.queues.schedules.list()
    assert found.origin == "towline.yaml"
    assert site.ticks.set_file([schedule_json(SECONDLY)]) == []
    assert events.SCHEDULE_REFUSED not in site.run()


def test_a_changed_file_is_told_by_the_names_of_its_schedules(site: TickedQueues) -> None:
    site.run()
    changed, new = replace(SECONDLY, payload=b"new"), replace(SECONDLY, name="new")
    assert site.ticks.set_file([schedule_json(changed), schedule_json(new)]) == ["secondly", "new"]
    with capture_logs() as logs:
        site.ticks.run(now=site.now)
    assert logs[0]["sentence"] == "schedules: added new; changed secondly   (towline schedules)"
    assert site.ticks.set_file([schedule_json(new)]) == ["secondly"]


def test_a_supervisor_that_leads_again_declares_its_schedules_again(site: TickedQueues) -> None:
    site.run()
    site.queues.schedules.declare([replace(OF_APP, origin="another file")])
    site.run(4)
    assert site.names() == ["of-app"]
    site.run(6)
    assert site.names() == ["secondly"]


def test_a_tick_that_overlaps_is_told_with_the_task_that_is_still_there() -> None:
    site = TickedQueues(replace(SECONDLY, overlap="skip"))
    site.run()
    assert site.run(1) == [events.SCHEDULE_ADDED]
    site.clock.advance(1)
    with capture_logs() as logs:
        site.ticks.run(now=site.now)
    (told,) = logs
    assert (told["event"], told["count"], told["log_level"]) == (events.SCHEDULE_SKIPPED, 1, "info")
    (task,) = site.queues.queue("work").peek().tasks
    assert f"added no task: {task.name} is still waiting or running (overlap: skip)" in str(told["sentence"])
    assert site.added() == 1


def test_what_was_missed_is_told_once(site: TickedQueues) -> None:
    site.run()
    assert site.run(3600).count(events.SCHEDULE_MISSED) == 1
    assert events.SCHEDULE_MISSED not in site.run(1)


def test_a_long_list_is_caught_up_over_several_runs() -> None:
    site = TickedQueues(replace(SECONDLY, catch_up="all"))
    site.run()
    site.run(3600)
    assert site.ticks.due_at == site.now
    while site.ticks.due_at <= site.now:
        site.run()
    assert site.added() == 3600


def test_a_queue_that_is_missing_is_told_once_and_so_is_its_end(site: TickedQueues) -> None:
    site.ticks.set_file([schedule_json(replace(SECONDLY, queue="nowhere"))])
    site.run()
    assert site.run(1) == [events.SCHEDULE_TROUBLED]
    assert site.run(1) == []
    site.queues.put_queue(QueueSpec("nowhere"))
    assert events.SCHEDULE_RELIEVED in site.run(1)


def test_a_store_that_does_not_answer_is_asked_again(site: TickedQueues) -> None:
    from queue_core.errors import StoreUnavailableError

    class SilentQueues:
        @property
        def schedules(self) -> object:
            raise StoreUnavailableError("no answer")

    ticks = ScheduleTicks(SilentQueues(), file=[schedule_json(SECONDLY)])  # type: ignore[arg-type]
    ticks.run(now=site.now)
    assert ticks.due_at == site.now + RETRY_SECONDS


def test_a_pool_sees_the_ticks_that_it_will_work_on() -> None:
    site = TickedQueues(replace(SECONDLY, every=60.0, tag="t"), replace(SECONDLY, name="other", every=60.0, tag="u"))
    site.run()
    first = (60 - START / 1e6 % 60) % 60 or 60.0

    def seen(**pool: object) -> list[float]:
        return site.ticks.upcoming(a_pool(queue="work", **pool), within_seconds=120.0, now=site.now)

    assert seen(tags=("t",)) == pytest.approx([first])
    assert seen() == pytest.approx([first, first])
    assert seen(untagged=True) == []
    assert site.ticks.upcoming(a_pool(queue="else"), within_seconds=120.0, now=site.now) == []
    assert site.ticks.upcoming(a_pool(queue="work"), within_seconds=first / 2, now=site.now) == []


def test_a_sample_has_the_next_ticks_among_its_upcoming_tasks() -> None:
    site = TickedQueues(replace(SECONDLY, every=60.0))
    site.run()
    source = QueueSource(site.queues, ticks=site.ticks.upcoming)
    sample = source.sample(a_pool(queue="work"), workers=(), ahead_seconds=120.0, now=site.now)
    assert [one.position for one in sample.upcoming] == [1]
    assert source.sample(a_pool(queue="work"), workers=(), now=site.now).upcoming == ()


@pytest.mark.parametrize(
    ("upcoming", "ticks", "expected"),
    [
        pytest.param([], [5.0, 9.0], [(1, 5.0), (2, 9.0)], id="ticks alone"),
        pytest.param([(1, 3.0), (4, 7.0)], [5.0], [(1, 3.0), (2, 5.0), (5, 7.0)], id="between"),
        pytest.param([(2, 3.0)], [1.0, 8.0], [(1, 1.0), (3, 3.0), (4, 8.0)], id="around"),
        pytest.param([(2, 3.0)], [], [(2, 3.0)], id="no ticks"),
    ],
)
def test_ticks_take_their_places_among_the_upcoming_tasks(
    upcoming: list[tuple[int, float]], ticks: list[float], expected: list[tuple[int, float]]
) -> None:
    found = with_ticks([Waiting(position, -seconds) for position, seconds in upcoming], ticks)
    assert [(one.position, -one.age_seconds) for one in found] == expected


@pytest.mark.parametrize(
    ("count", "rule", "told"),
    [
        pytest.param(1, "skip", "1 tick of", id="one"),
        pytest.param(59, "last", "59 ticks from", id="several"),
        pytest.param(MAX_COUNTED, "skip", "more than 1,000 ticks from", id="too many to count"),
    ],
)
def test_missed_ticks_are_told_in_a_sentence(count: int, rule: str, told: str) -> None:
    missed = MissedTicks("nightly", "work", count, START, Instant(after(START, 60)), rule)  # type: ignore[arg-type]
    sentence = missed_sentence(missed, now=START)
    assert sentence.startswith("schedule nightly: nobody was there to add ")
    assert told in sentence
    assert f"catch_up: {rule}" in sentence
