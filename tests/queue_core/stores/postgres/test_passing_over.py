"""A lease passes over the tasks that another transaction holds, whatever their priority, and waits for none."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import ANY, NewTask
from queue_core.verbs import LeaseRequest
from tests.support.stores.floored_store import unattended
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease, stats


@pytest.fixture
def servers() -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """Two servers on one database."""
    url = new_store_url("postgresql")
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(unattended(url))) for _ in range(2))
        a_queue(one)
        yield one, other
        assert one.check().problems == ()


def test_a_call_that_is_refused_in_the_end_is_passed_over_while_it_holds_a_task_and_no_longer(
    servers: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = servers
    add(one, *[NewTask(f"{priority}".encode(), priority=priority) for priority in (9, 5, 5, 5, 0)])
    with pytest.raises(ZeroDivisionError), one.begin() as late:
        (held,) = late.lease(QUEUE, LeaseRequest(1, 60.0, ANY, "late"), now=at(0)).leases
        assert held.payload == b"9"
        assert [granted.payload for granted in lease(other, 2)] == [b"5", b"5"]
        raise ZeroDivisionError  # as a call does that was made before, under the same number
    found = stats(one)
    assert (found.ready, found.in_flight, found.leased_total) == (3, 2, 2)
    assert [granted.payload for granted in lease(other, 3)] == [b"9", b"5", b"0"]
