"""Who is woken first."""

import pytest

from queue_core.server.leases.waiters import Waiter, Waiters
from queue_core.task import ANY, UNTAGGED, TagFilter


def waiting(*waiters: Waiter[str]) -> Waiters[str]:
    held: Waiters[str] = Waiters()
    for waiter in waiters:
        held.add(waiter)
    return held


def test_the_most_recently_active_waiter_is_woken_first() -> None:
    held = waiting(*(Waiter("q", ANY, active, name) for name, active in (("old", 1.0), ("new", 9.0), ("mid", 5.0))))
    assert [waiter.handle for waiter in held.take("q", None, 2)] == ["new", "mid"]
    assert [waiter.handle for waiter in held.take("q", None, 2)] == ["old"]


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
    held = waiting(Waiter("q", tags, 0.0, "w"))
    assert bool(held.take("q", tag, 1)) is woken


def test_a_waiter_that_left_is_not_woken() -> None:
    waiter = Waiter("q", ANY, 0.0, "w")
    held = waiting(waiter)
    assert held.discard(waiter)
    assert not held.discard(waiter)
    assert held.take("q", None, 1) == []
    assert held.queues() == []


def test_queues_do_not_wake_each_other() -> None:
    held = waiting(Waiter("q", ANY, 0.0, "w"))
    assert held.take("other", None, 1) == []
    assert len(held) == 1
