"""The watch for tags that no pool works on: what it logs, and how often it looks."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from orchestrator.base import events
from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.base.samples import UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.supervisor.unserved import (
    LOOK_SECONDS,
    MAX_LOGGED,
    MAX_LOOKS,
    PUBLISHED_SECONDS,
    RETRY_SECONDS,
    UnservedWatch,
)
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import a_pool

RESIZE = a_pool(tags=["resize"])


class WatchStage:
    """A watch over a fake source, with a clock that stands still."""

    def __init__(self, logs: list[EventDict]) -> None:
        self.logs = logs
        self.source = FakeSource()
        self.clock = ManualMonotonicClock()
        self.watch = UnservedWatch(self.source, clock=self.clock)

    def look(self, *pools: PoolSpec, after: float = LOOK_SECONDS) -> list[tuple[str, object, object]]:
        """Look after so many seconds; return what that logged."""
        self.clock.advance(after)
        self.logs.clear()
        self.watch.look({pool.name: pool for pool in pools or [RESIZE]})
        return [(one["event"], one.get("tag"), one["sentence"]) for one in self.logs]


@pytest.fixture
def stage() -> Iterator[WatchStage]:
    with capture_logs() as logs:
        yield WatchStage(logs)


def a_tag(tag: str | None = "rezise", *, tasks: int = 1, leases: int = 0, queue: str = "thumbs") -> UnservedTag:
    return UnservedTag(queue, tag, tasks, leases, f"{tag} waits", f"{tag} has a pool", f"{tag} is gone")


def test_a_tag_is_logged_when_it_comes_and_when_its_tasks_are_gone(stage: WatchStage) -> None:
    assert stage.look() == []
    stage.source.unserved_tags = [a_tag(), a_tag(None)]
    assert stage.look() == [
        (events.TASKS_UNSERVED, "rezise", "rezise waits"),
        (events.TASKS_UNSERVED, None, "None waits"),
    ]
    stage.source.unserved_tags = [a_tag(tasks=7)]
    assert stage.look() == [(events.TASKS_SERVED, None, "None is gone")]
    assert [(one.tag, one.tasks) for one in stage.watch.found] == [("rezise", 7)]
    stage.source.unserved_tags = []
    assert stage.look() == [(events.TASKS_SERVED, "rezise", "rezise is gone")]
    assert stage.watch.found == ()


def test_a_pool_that_works_on_it_is_the_end_of_it(stage: WatchStage) -> None:
    stage.source.unserved_tags = [a_tag()]
    stage.look()
    stage.source.unserved_tags = []
    both = a_pool(tags=["resize", "rezise"])
    assert stage.look(both) == [(events.TASKS_SERVED, "rezise", "rezise has a pool")]


def test_a_queue_with_a_pool_for_any_tag_is_not_looked_at(stage: WatchStage) -> None:
    stage.source.unserved_tags = [a_tag()]
    assert stage.look() != []
    assert stage.look(RESIZE, a_pool("all")) == [(events.TASKS_SERVED, "rezise", "rezise has a pool")]
    stage.source.is_down = True
    assert stage.look(RESIZE, a_pool("all")) == []


def test_a_tag_that_others_lease_is_none_of_them_unless_its_leases_stop(stage: WatchStage) -> None:
    for leases in (3, 4, 7):
        stage.source.unserved_tags = [a_tag(leases=leases)]
        assert stage.look() == []
    assert stage.look() == [(events.TASKS_UNSERVED, "rezise", "rezise waits")]
    stage.source.unserved_tags = [a_tag(leases=8)]
    assert stage.look() == [(events.TASKS_SERVED, "rezise", "rezise is gone")]


def test_very_many_tags_are_a_few_lines(stage: WatchStage) -> None:
    stage.source.unserved_tags = [a_tag(f"t{number:03}") for number in range(100)]
    lines = stage.look()
    assert len(lines) == MAX_LOGGED + 1
    assert lines[-1][2] == f"tasks wait with {100 - MAX_LOGGED} more tags that no pool works on: `towline why thumbs`"
    stage.source.unserved_tags = []
    assert len(stage.look()) == MAX_LOGGED + 1


def test_while_the_queue_does_not_answer_the_last_look_stands(stage: WatchStage) -> None:
    stage.source.unserved_tags = [a_tag()]
    stage.look()
    stage.source.is_down = True
    assert stage.look() == []
    assert len(stage.watch.found) == 1


def test_a_queue_is_looked_at_every_two_seconds_and_few_queues_in_one_pass(stage: WatchStage) -> None:
    pools = [a_pool(f"p{number}", queue=f"q{number}", tags=["x"]) for number in range(MAX_LOOKS + 1)]
    stage.source.unserved_tags = [a_tag(queue=pool.queue) for pool in pools]
    assert len(stage.look(*pools)) == MAX_LOOKS
    assert len(stage.look(*pools, after=0.0)) == 1
    assert stage.look(*pools, after=0.0) == []
    assert len(stage.watch.found) == len(pools)


def test_what_pools_work_on_is_registered_when_it_changes_and_once_an_hour(stage: WatchStage) -> None:
    stage.look()
    assert stage.source.published == {RESIZE.name: ("resize",)}
    stage.source.published.clear()
    stage.look()
    assert stage.source.published == {}
    stage.look(after=PUBLISHED_SECONDS)
    assert stage.source.published == {RESIZE.name: ("resize",)}
    stage.look(a_pool("mails", tags=["mail"]))
    assert stage.source.published == {"mails": ("mail",)}


def test_a_registration_that_fails_is_tried_again_later(stage: WatchStage) -> None:
    stage.source.is_down = True
    stage.look()
    stage.source.is_down = False
    stage.look(after=RETRY_SECONDS - 1.0)
    assert stage.source.published == {}
    stage.look(after=1.0)
    assert stage.source.published == {RESIZE.name: ("resize",)}
