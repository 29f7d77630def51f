"""Who is woken first."""

from dataclasses import dataclass

import pytest

from queue_core.server.leases.waiters import MAX_CALLERS_REMEMBERED, CallerActivity, Waiters, Watcher, Watchers, taking
from queue_core.task import ANY, UNTAGGED, TagFilter


@dataclass(eq=False)
class Caller:
    """A `Waiter`."""

    queue: str
    tags: TagFilter = ANY
    active_at: float = 0.0
    name: str = ""
    has_hung_up: bool = False

    def is_gone(self) -> bool:
        return self.has_hung_up


def waiting(*waiters: Caller) -> Waiters[Caller]:
    held: Waiters[Caller] = Waiters()
    for waiter in waiters:
        held.add(waiter)
    return held


def test_the_most_recently_active_waiter_is_woken_first() -> None:
    held = waiting(*(Caller("q", ANY, active, name) for name, active in (("old", 1.0), ("new", 9.0), ("mid", 5.0))))
    assert [caller.name for caller in held.take("q", 2, fits=taking(None))] == ["new", "mid"]
    assert [caller.name for caller in held.take("q", 2, fits=taking(None))] == ["old"]


@pytest.mark.parametrize(
    ("tags", "tag", "woken"),
    [
        pytest.param(ANY, "a", True, id="any takes a tag"),
        pytest.param(ANY, None, True, id="any takes the untagged"),
        pytest.param(TagFilter.of("a"), "a", True, id="its own tag"),
        pytest.param(TagFilter.of("a"), "b", False, id="not another tag"),
        pytest.param(TagFilter.of("a", "b"), "b", True, id="one of several"),
        pytest.param(TagFilter.of("a"), None, False, id="a tag does not take the untagged"),
        pytest.param(UNTAGGED, None, True, id="untagged takes the untagged"),
        pytest.param(UNTAGGED, "a", False, id="untagged takes no tag"),
        pytest.param(TagFilter.oldest(), "z", True, id="the oldest group may be any"),
        pytest.param(TagFilter.oldest("a"), "b", False, id="the oldest of some tags is one of them"),
    ],
)
def test_a_waiter_is_woken_only_for_what_it_would_take(*, tags: TagFilter, tag: str | None, woken: bool) -> None:
    held = waiting(Caller("q", tags))
    assert bool(held.take("q", 1, fits=taking(tag))) is woken


def test_a_waiter_that_left_is_not_woken() -> None:
    waiter = Caller("q")
    held = waiting(waiter)
    assert held.discard(waiter)
    assert not held.discard(waiter)
    assert held.take("q", 1, fits=taking(None)) == []
    assert held.queues() == []


def test_queues_do_not_wake_each_other() -> None:
    held = waiting(Caller("q"))
    assert held.take("other", 1, fits=taking(None)) == []
    assert len(held) == 1


def test_a_waiter_that_hung_up_is_passed_over_and_stays() -> None:
    held = waiting(Caller("q", active_at=1.0, name="here"), Caller("q", active_at=9.0, name="gone", has_hung_up=True))
    assert [caller.name for caller in held.take("q", 2, fits=taking(None))] == ["here"]
    assert [caller.name for caller in held.of("q")] == ["gone"]


def test_a_caller_counts_as_active_when_it_came_and_later_when_it_worked() -> None:
    activity = CallerActivity()
    assert activity.active_at("w", now=1.0) == 1.0
    assert activity.active_at("w", now=2.0) == 1.0
    activity.record("w", now=3.0)
    assert activity.active_at("w", now=4.0) == 3.0


def test_of_very_many_callers_those_silent_for_longest_are_forgotten() -> None:
    activity = CallerActivity()
    for number in range(MAX_CALLERS_REMEMBERED + 1):
        activity.active_at(number, now=float(number))
    assert activity.active_at(1, now=-1.0) == 1.0
    assert activity.active_at(0, now=-1.0) == -1.0


def test_a_watcher_is_notified_once_of_what_it_watches_for() -> None:
    watchers, notified = Watchers(), list[str]()
    watchers.add(Watcher([("q", TagFilter.of("a")), ("other", ANY)], notified.append))
    watchers.notify("q", fits=taking("b"))
    assert (notified, watchers.queues()) == ([], {"q", "other"})
    watchers.notify("q", fits=taking("a"))
    watchers.notify("other")
    assert (notified, watchers.queues()) == (["q"], set())
