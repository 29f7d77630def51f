"""The bound on lease calls: a sliding second per queue."""

from collections.abc import Sequence

import pytest

from queue_core.server.leases.rates import MAX_LIMITED_QUEUES, LeaseRate
from tests.support.stores.task_builders import MICROSECOND, at

CALLS = [
    pytest.param(None, [0.0] * 50, [True] * 50, id="no bound"),
    pytest.param(2, [0, 0, 0], [True, True, False], id="so many in an instant"),
    pytest.param(2, [0, 0.5, 1 - MICROSECOND], [True, True, False], id="until the first is a second old"),
    pytest.param(2, [0, 0.5, 1], [True, True, True], id="not longer"),
    pytest.param(2, [0, 0.5, 1, 1.4, 1.5], [True, True, True, False, True], id="the window slides"),
    pytest.param(1, [0, 0.9, 1], [True, False, True], id="a refused call does not count"),
    pytest.param(1, [3600, 0, 0.5], [True, True, False], id="a clock that was stepped back"),
    pytest.param(1, [0, 1e6], [True, True], id="long after"),
]


@pytest.mark.parametrize(("limit", "seconds", "allowed"), CALLS)
def test_calls_are_allowed_up_to_the_limit_in_any_second(
    limit: int | None, seconds: Sequence[float], allowed: Sequence[bool]
) -> None:
    rate = LeaseRate()
    assert [rate.allows("q", limit, at(second)) for second in seconds] == list(allowed)


def test_each_queue_has_a_second_of_its_own() -> None:
    rate = LeaseRate()
    assert [rate.allows(queue, 1, at(0)) for queue in ("a", "b", "a")] == [True, True, False]


def test_queues_that_fell_quiet_are_forgotten_and_busy_ones_are_not() -> None:
    rate = LeaseRate()
    for number in range(MAX_LIMITED_QUEUES - 1):
        assert rate.allows(f"quiet-{number}", 1, at(0))
    assert rate.allows("busy", 1, at(1.5))
    assert rate.allows("new", 1, at(2))
    assert not rate.allows("busy", 1, at(2))
    assert len(rate._granted) == 2
